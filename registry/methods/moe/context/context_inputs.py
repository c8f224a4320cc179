"""Inputs of a context layer's tensors, computed once a composition, whatever number of tensors uses them."""

from jaxtyping import Float
from torch import Tensor

from registry.maths.threads import Once
from registry.methods.moe.context.head_maps import HeadMaps, SharedTensors
from registry.methods.moe.context.member_evidence import evidence_of, stream_unit, thresholds_of


class ContextInputs:
    """The members' evidence, its thresholds, the size of the stream, and the head maps; safe for several threads.

    Args:
        source: the tensors that all experts share.
    """

    def __init__(self, source: SharedTensors) -> None:
        self.head_maps = HeadMaps(source)
        self._evidence = Once(lambda: evidence_of(source.plan))
        self._thresholds = Once(lambda: thresholds_of(source.plan))
        self._unit = Once(lambda: stream_unit(source))

    @property
    def evidence(self) -> Float[Tensor, "V E"]:
        """Each token's evidence of the members (`evidence_of`)."""
        return self._evidence()

    @property
    def thresholds(self) -> Float[Tensor, "E E"]:
        """Evidence of the last few tokens that is no chance (`thresholds_of`)."""
        return self._thresholds()

    @property
    def unit(self) -> float:
        """The size of the embedding's mean row in the residual stream (`stream_unit`)."""
        return self._unit()
