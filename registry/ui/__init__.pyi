from .app import listen as listen
from .app import make_app as make_app
from .app import server as server
from .guard import WriteAccess as WriteAccess
from .jobs import Jobs as Jobs
