from .app import make_app as make_app
from .guard import WriteAccess as WriteAccess
from .jobs import Jobs as Jobs
from .serving import listen as listen
from .serving import server as server
