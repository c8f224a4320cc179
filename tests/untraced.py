"""Work of libraries, of which coverage sees nothing: where it measures, they run without its tracer.

The tracer follows every line of every library, and keeps those of the registry alone, so a model takes several times as
long to load. What runs untraced calls no code of the registry.
"""

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def untraced(function: Callable[P, T]) -> Callable[P, T]:
    """Run a function without the tracer."""

    @functools.wraps(function)
    def run(*arguments: P.args, **options: P.kwargs) -> T:
        tracer = sys.gettrace()
        sys.settrace(None)
        try:
            return function(*arguments, **options)
        finally:
            sys.settrace(tracer)

    return run


def _replace(owner: Any, name: str) -> None:
    """Let a method of a library run untraced."""
    found = inspect.getattr_static(owner, name)
    is_class_method = isinstance(found, classmethod)
    run: Any = untraced(found.__func__ if is_class_method else found)
    setattr(owner, name, classmethod(run) if is_class_method else run)


@untraced
def _load() -> None:
    """Import what nearly every test needs, and what takes long."""
    for name in (
        "alembic.command",
        "sqlalchemy.orm",
        "transformers.models.llama.modeling_llama",
        "transformers.trainer",
    ):
        importlib.import_module(name)


if sys.gettrace() is not None and "PYTEST_XDIST_WORKER" in os.environ:
    _load()
    import jaxtyping
    import jsonschema
    import torch
    import transformers

    _replace(transformers.AutoModelForCausalLM, "from_pretrained")
    _replace(transformers.AutoTokenizer, "from_pretrained")
    _replace(transformers.PreTrainedTokenizerFast, "__call__")
    _replace(transformers.TrainingArguments, "__post_init__")
    _replace(torch.optim.AdamW, "step")
    _replace(jsonschema.Draft202012Validator, "check_schema")
    _replace(jsonschema.Draft202012Validator, "validate")
    _replace(inspect.Signature, "bind")  # of every call whose shapes jaxtyping checks
    _replace(type(jaxtyping.Float[torch.Tensor, "n"]), "__instancecheck__")
