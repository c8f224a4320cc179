"""Inputs of some modules of a loaded model in its latest pass."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn


@contextmanager
def seen_inputs(modules: Iterable[nn.Module]) -> Iterator[dict[int, Tensor]]:
    """Yield the input of each module by its number, which every pass replaces while the context is open."""
    seen: dict[int, Tensor] = {}
    with ExitStack() as stack:
        for number, module in enumerate(modules):
            hook = module.register_forward_pre_hook(lambda _, inputs, number=number: seen.update({number: inputs[0]}))
            stack.enter_context(hook)
        yield seen
