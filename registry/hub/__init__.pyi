from .push import Sign as Sign
from .push import check_push as check_push
from .push import push as push
from .push import push_expert as push_expert
from .target import Pushed as Pushed
from .target import Target as Target
