"""Checks of the weights' values, read once, block by block: the model is never in memory as a whole."""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from registry.checkpoint.model_files import Stored, stored_rows
from registry.doctor.examination import FLOATS, Examination
from registry.doctor.finding import Finding, error, warning
from registry.doctor.tensor_names import in_words, is_made_up, named, part_of, role_of, tensors_of

_PEERS = 4  # tensors of one role from which on the size of one is compared with the others'
_FAR = 100.0  # ratio of a tensor's size to that of its peers from which on it is remarked on
_DIVERGED = "merge from checkpoints before the training diverged; a merge itself diverges with too large a weight"
_ZERO = "look for it in the members that were merged, and merge again"


@dataclass
class _Values:
    """Values seen of one tensor: NaN, infinities, the sum of squares, and experts of a joint tensor that are zero."""

    count: int
    has_nan: bool = False
    has_infinity: bool = False
    squares: float = 0.0
    largest: float = 0.0
    zero_experts: list[int] = field(default_factory=list)

    @property
    def size(self) -> float:
        """The root of the mean square."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0


def check_values(folder: Examination) -> Iterator[Finding]:
    """Look for weights that are NaN, infinite, or zero all over, and for tensors far larger than their peers."""
    seen = _read(folder)
    if bad := [name for name, values in seen.items() if values.has_nan]:
        yield error(_are(bad, "NaN"), folder.again or _DIVERGED)
    if bad := [name for name, values in seen.items() if values.has_infinity]:
        yield error(_are(bad, "infinite"), folder.again or _DIVERGED)
    trained = {name: values for name, values in seen.items() if not is_made_up(name, folder.config)}
    for name, values in trained.items():
        if values.zero_experts:
            yield error(
                f"{in_words(name).removesuffix('s')} {values.zero_experts[0]} ({name}) is zero all over",
                folder.again or _ZERO,
            )
    zeros = [
        name
        for name, values in trained.items()
        if not values.largest and not values.zero_experts and len(folder.tensors[name].shape) > 1
    ]
    # A router of one expert has nothing to choose.
    zeros = [name for name in zeros if not (part_of(name) == "router" and folder.tensors[name].shape[0] == 1)]
    if needed := [name for name in zeros if part_of(name) in ("experts", "router", "embedding", "head")]:
        yield error(_are(needed, "zero all over"), folder.again or _ZERO)
    if others := [name for name in zeros if name not in needed]:
        yield warning(f"{_are(others, 'zero all over')}: it adds nothing to the stream")
    yield from _outliers({name: values for name, values in trained.items() if values.largest})


def check_head(folder: Examination) -> Iterator[Finding]:
    """Compare a stored head with the embedding that config.json makes it share."""
    if not folder.config.get("tie_word_embeddings", False) or isinstance(folder.config.get("members"), list):
        return
    heads, embeddings = (tensors_of(part, folder.tensors) for part in ("head", "embedding"))
    if len(heads) != 1 or len(embeddings) != 1:
        return
    if not _equal(folder.tensors[heads[0]], folder.tensors[embeddings[0]]):
        yield error(
            f"config.json says tie_word_embeddings true, but {heads[0]} differs from {embeddings[0]}: "
            "one of them would be ignored",
            "set tie_word_embeddings to false in config.json, if the model was trained so",
        )


def _are(names: list[str], what: str) -> str:
    more = f", and {len(names) - 1} more tensors are" if len(names) > 1 else ""
    return f"{in_words(names[0])} is {what} ({names[0]}){more}"


def _outliers(seen: dict[str, _Values]) -> Iterator[Finding]:
    """Compare each tensor's size with the median of those that are the same in other layers."""
    peers: dict[str, list[str]] = defaultdict(list)
    for name in seen:
        peers[role_of(name)].append(name)
    odd = []
    for names in peers.values():
        usual = median(seen[name].size for name in names)
        if len(names) >= _PEERS and usual > 0:
            ratios = ((name, seen[name].size / usual) for name in names)
            odd += [(name, ratio) for name, ratio in ratios if not 1 / _FAR <= ratio <= _FAR]
    if odd:
        name, ratio = max(odd, key=lambda one: abs(math.log(one[1])))
        yield warning(
            f"{named([name, *(other for other, _ in odd if other != name)])} is {ratio:.3g} times the size of the same "
            "tensor in other layers"
        )


def _read(folder: Examination) -> dict[str, _Values]:
    names = [name for name, stored in folder.tensors.items() if stored.dtype in FLOATS]
    seen = {name: _Values(math.prod(folder.tensors[name].shape)) for name in names}
    total = sum(path.stat().st_size for path in {folder.tensors[name].file for name in names})
    with folder.progress("reading weights", total, "B") as advance:
        for name in names:
            stored = folder.tensors[name]
            for start, part in stored_rows(stored):
                _take(seen[name], part, start, joint=len(stored.shape) == 3 and part_of(name) == "experts")
                advance(part.numel() * part.element_size())
    return seen


def _take(values: _Values, part: Any, start: int, *, joint: bool) -> None:
    least, most = (bound.item() for bound in part.aminmax())
    if math.isnan(least):
        values.has_nan = True
    elif math.isinf(least) or math.isinf(most):
        values.has_infinity = True
    else:
        values.largest = max(values.largest, -least, most)
        values.squares += torch.linalg.vector_norm(part, dtype=torch.float32).item() ** 2
        if joint:
            largest = part.abs().flatten(1).amax(dim=1)
            values.zero_experts += [start + number for number in (largest == 0).nonzero().flatten().tolist()]
    if values.has_nan or values.has_infinity:
        values.largest = math.inf  # not zero all over


def _equal(stored: Stored, other: Stored) -> bool:
    if stored.shape != other.shape or stored.dtype != other.dtype:
        return False
    return all(bool((a == b).all()) for (_, a), (_, b) in zip(stored_rows(stored), stored_rows(other), strict=True))
