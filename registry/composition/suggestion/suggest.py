"""Suggested experts for a text: one by one those that lower its predicted loss most, by counts of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from registry.calibration import Corpus, random_places
from registry.composition.compatibility import leading
from registry.composition.compose import plan_composition
from registry.composition.suggestion.candidates import Candidates, find_candidates
from registry.composition.taken_files import taken_files
from registry.errors import CalibrationError, InvalidInputError
from registry.io.display import size
from registry.maths.context.text_costs import losses_with, text_costs
from registry.member import load_member
from registry.runtime.loading import load_tokenizer
from registry.workspace import PathLike, Workspace

TOKENS = 32_768
"""Tokens of a text that are read, at most, at places spread over all of it."""

PIECE = 64
"""Tokens of a piece, which goes to one expert: about as many as the recent text that routers weigh."""

LEAST_GAIN = 0.03
"""Nats a token by which an expert has to lower the predicted loss.

*Measured* on six experts: one that is not needed gains 0.02 at most here, and raises the perplexity of their mixture by
2 to 6 %, as it has a part in what all share.
"""

STRANGE = 0.3
"""Nats a token, beyond what an expert's own text costs, from which text is not of its kind.

*Measured* on six experts and seven domains: test text of its own domain costs 0.00 to 0.15 more, in turn with others
0.28 at most, that of a near domain 0.14 to 0.21 (of which the expert knows more than the base model does), and all
other 0.37 or more.
"""

LEAST_KNOWN = 0.1
"""Least share of a text that experts know, unless it is nobody's."""


@dataclass(frozen=True)
class SuggestedExpert:
    """An expert that is suggested for a text."""

    name: str  # its name
    ref: str  # its version
    share: float  # share of the text that is predicted to go to it
    loss: float  # predicted loss with it and those before it, in nats a token, of counts alone
    beyond: float  # nats a token that its share costs more than its own text
    knows: bool  # true if its share is text of its kind


@dataclass(frozen=True)
class Suggestion:
    """The experts that are suggested for a text."""

    experts: tuple[SuggestedExpert, ...]  # in the order in which they were chosen
    tokens: int  # tokens of the text that were read
    left_out: tuple[str, ...]  # a line on each expert that could not be chosen, which says why
    others_know: bool = False  # true if more experts than the bounds allow would know enough of the text

    @property
    def known(self) -> float:
        """Share of the text that goes to experts that know it."""
        return sum((expert.share for expert in self.experts if expert.knows), 0.0)

    @property
    def nobody(self) -> bool:
        """True if no expert knows the text: those that are suggested are the nearest."""
        return self.known < LEAST_KNOWN

    def document(self) -> dict[str, Any]:
        """Return every figure as `--json` shows it."""
        experts = [vars(expert) for expert in self.experts]
        return vars(self) | {"experts": experts, "known": self.known, "nobody": self.nobody}


def suggest_experts(
    workspace: Workspace,
    files: Sequence[PathLike],
    *,
    budget: int | None = None,
    max_bytes: int | None = None,
    must: Sequence[str] = (),
    without: Sequence[str] = (),
) -> Suggestion:
    """Choose experts for a text (arguments and errors as `Registry.suggest`)."""
    fewest = max(1, len(must))
    if budget is not None and budget < fewest:
        raise InvalidInputError(f"the budget is {budget}, it must be {fewest} or more", f"give --budget {fewest}")
    found = find_candidates(workspace, must, without)
    refs = [member.version.ref for member in found.members]
    chosen = [refs.index(workspace.resolve(ref).ref) for ref in must]
    ids, keep = _pieces(workspace, [Path(file) for file in files], found)
    every, lengths, own = text_costs(ids, keep, found.counts)
    costs, bases = every[:, : len(refs)], every[:, len(refs) :]
    losses = [float(losses_with(costs, lengths, chosen[:count])[number]) for count, number in enumerate(chosen)]
    losses += _add_best(costs, lengths, chosen, budget or len(refs), losses[-1:])
    while max_bytes is not None:
        names = [refs[number] for number in chosen]
        if (needed := plan_composition(workspace, names).nbytes) <= max_bytes:
            break
        if len(chosen) == fewest:
            weights = f"their default mixture has at least {size(needed)} of weights"
            raise InvalidInputError(f"{', '.join(names)} do not fit into {size(max_bytes)}: {weights}", "allow more")
        del chosen[-1]
    parts = _parts(costs, bases, lengths, own, chosen)
    experts = tuple(
        SuggestedExpert(found.members[number].name, refs[number], share, losses[place], beyond, knows)
        for place, (number, (share, beyond, knows)) in enumerate(zip(chosen, parts, strict=True))
    )
    made = Suggestion(experts, int(lengths.sum()), found.left_out)
    if made.nobody:
        everyone = list[int]()
        _add_best(costs, lengths, everyone, len(refs), [])
        known = sum(share for share, _, knows in _parts(costs, bases, lengths, own, everyone) if knows)
        made = replace(made, others_know=known >= LEAST_KNOWN)
    return made


def _add_best(
    costs: Float[Tensor, "W E"], lengths: Float[Tensor, "W"], chosen: list[int], most: int, last: list[float]
) -> list[float]:
    """Add those that lower the predicted loss most to `chosen`, `most` in all, and return the loss after each.

    `last` is the loss before, empty if none is chosen.
    """
    losses = list[float]()
    while len(chosen) < min(costs.shape[1], most):
        after = losses_with(costs, lengths, chosen)
        best = int(after.argmin())
        if chosen and (last + losses)[-1] - float(after[best]) < LEAST_GAIN:
            break
        chosen.append(best)
        losses.append(float(after[best]))
    return losses


def _parts(
    costs: Float[Tensor, "W E"],
    bases: Float[Tensor, "W B"],
    lengths: Float[Tensor, "W"],
    own: Float[Tensor, "E"],
    chosen: Sequence[int],
) -> list[tuple[float, float, bool]]:
    """Return of each chosen expert its share of the text, what that costs beyond its own text, and if it knows it."""
    mine = costs[:, list(chosen)].argmin(dim=1)  # the place of each piece's expert
    parts = []
    for place, number in enumerate(chosen):
        part = lengths * (mine == place)
        total = float(part.sum())
        beyond = float(part @ costs[:, number]) / total - float(own[number]) if total else 0.0
        is_ahead = all(float(part @ (costs[:, number] - base)) < 0 for base in bases.T)
        parts.append((total / float(lengths.sum()), beyond, total > 0 and beyond < STRANGE and is_ahead))
    return parts


def _pieces(workspace: Workspace, files: Sequence[Path], found: Candidates) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pieces of a text, and where their tokens are evidence (CalibrationError: there is no text)."""
    lead = load_member(workspace, leading(found.members).version)
    with TemporaryDirectory() as name:
        for file, data in (taken_files((lead,), lead) | {"config.json": lead.file("config.json")}).items():
            (Path(name) / file).write_bytes(data)
        tokenizer = load_tokenizer(Path(name))
    corpus = Corpus(files, tokenizer)
    text = random_places(corpus, tokenizer, tokens=TOKENS, seq_len=PIECE, seed=0)
    keep = text.keep & ~torch.isin(text.ids, torch.tensor(found.special, dtype=torch.int32))
    keep = keep if text.written is None else keep & text.written
    if not keep.any():
        raise CalibrationError(f"{corpus.label} holds no text to be like", "give --like a file of documents")
    return text.ids[keep.any(dim=1)], keep[keep.any(dim=1)]
