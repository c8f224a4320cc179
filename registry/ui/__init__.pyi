from .app import make_app as make_app
from .guard import WriteAccess as WriteAccess
from .jobs import Jobs as Jobs
