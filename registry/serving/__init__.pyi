from .gateway import Gateway as Gateway
from .hub_api import hub_app as hub_app
from .repositories import Repositories as Repositories
