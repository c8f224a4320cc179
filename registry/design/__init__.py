"""The design of all pages: colours, type and space as CSS, and the colour of each expert.

`static/tokens.css` has the values, `static/base.css` the elements and components, `static/shared.js` what both do. The
local pages serve these files under `/static`; reports contain them. `templates/shared.html` has the macros of both.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
