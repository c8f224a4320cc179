"""Local web pages over a registry, for looking: nothing in the registry is ever written by them.

One file a kind of page, each of which is a function from the site and a request to a response; templates in
`templates/`, the one stylesheet and the one script in `static/`. `guard` decides who is answered at all.
"""

from registry.ui.app import make_app
from registry.ui.serving import listen, server

__all__ = ["listen", "make_app", "server"]
