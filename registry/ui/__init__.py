"""Local web pages for browsing a registry; they never write to it.

Each page is a function from the site and a request to a response, in one file per kind of page. Templates are in
`templates/`, stylesheet and scripts in `static/`. `guard` rejects requests from elsewhere.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
