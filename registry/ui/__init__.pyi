from .app import make_app as make_app
from .serving import listen as listen
from .serving import server as server
