"""A continual-learning registry of expert language models.

    from registry import PassSettings, Recipe, Registry

    with Registry("home") as registry:
        registry.add_expert("math", "checkpoints/math")
        registry.add_expert("code", "checkpoints/code", data=["code.jsonl"], settings=PassSettings(tokens=8192))
        registry.compose(["code", "math"], "moe", Recipe(trunk="regmean"))
        registry.opt_out("math", purge=True)

Importing this package loads nothing that takes time; what is taken from it loads what it needs, and neither torch nor
transformers before a method needs them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
