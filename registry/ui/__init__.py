"""Local web pages over a registry, for looking: nothing in the registry is ever written by them.

One file a kind of page, each of which is a function from the site and a request to a response; templates in
`templates/`, the one stylesheet and the one script in `static/`. `guard` decides who is answered at all.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
