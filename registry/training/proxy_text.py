"""Choice of the public documents that are nearest to each expert, to tune routers on where no expert's text is at hand.

FlexOlmo (Shi et al. 2025, §3.3.3, A.2) trains a classifier on each expert's text against public text, and takes the
public documents that it is surest of. Here the expert's statistics stand for its text, and the discriminant of each
layer is solved for (`maths.router.gates`):

    score of a document = mean over layers l of w_l · x̄_l        x̄_l the mean MLP input of the base model on it

Shapes: E members, L layers, H hidden size.
"""

import heapq
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from registry.calibration import Corpus, random_places
from registry.checkpoint import Checkpoint
from registry.composition.compose import plan_composition
from registry.composition.document_means import document_means
from registry.composition.passes import PassContext, pass_context, stored_folder
from registry.composition.recipe.fields import FIELDS
from registry.composition.recipe.recipe import Recipe
from registry.errors import CalibrationError, InvalidInputError
from registry.families.sites import MLP_INPUT
from registry.io.dtypes import AUTO
from registry.io.model_folder import fresh_folder
from registry.maths.router.gates import discriminant
from registry.maths.statistics import Statistics
from registry.member import Member
from registry.names.reference import require_list
from registry.progress import remark
from registry.runtime.loading import load_tokenizer
from registry.runtime.upcast import load_for_pass
from registry.statistics.forward_pass import window_size
from registry.statistics.layer_pass import mlp_statistics
from registry.statistics.settings import PassSettings
from registry.training.training_windows import check_vocabulary
from registry.workspace import PathLike, Workspace
from store.lock import exclusive

DOCUMENTS = 500
"""Documents that are chosen for a member, if nothing else is asked for."""


@dataclass(frozen=True)
class ProxyText:
    """The documents that were chosen for one member."""

    name: str  # the member's name
    path: Path  # their file, a document a row, in the order of the public text
    documents: int  # their number
    candidates: int  # number of public documents that they were chosen from
    best: float  # the highest score of a document
    least: float  # the lowest score of a chosen one


def proxy_text(
    workspace: Workspace,
    experts: Sequence[str],
    files: Sequence[PathLike],
    out: PathLike,
    *,
    base: str | None = None,
    documents: int = DOCUMENTS,
    device: str | None = None,
) -> list[ProxyText]:
    """Write the public documents nearest to each expert to `out`, a file each (arguments as `Registry.proxy`)."""
    if documents < 1:
        raise InvalidInputError(f"documents is {documents}, the least is 1", "give --documents 1 or more")
    out = Path(out).absolute()
    plan = plan_composition(workspace, experts, Recipe(trunk="base", to="dense"), base=base)
    assert plan.base is not None
    paths = [Path(file) for file in require_list(files, "files")]
    for member in plan.members:
        member.require_statistics([MLP_INPUT], "the comparison with public text", "needs")
    with (
        exclusive(workspace.home.output_lock(out), f"writing into {out}"),
        workspace.reading(*plan.versions),
        pass_context(workspace, plan.used) as context,
        stored_folder(plan.base, context) as folder,
    ):
        model, tokenizer = load_for_pass(folder, AUTO, device, prefer_whole=True), load_tokenizer(folder)
        corpus = Corpus(paths, tokenizer)
        public = _public_statistics(folder, plan.base, model, (corpus, tokenizer), context)
        directions = _directions(plan.members, public)  # E of (L, H)
        nearest: list[list[tuple[float, int]]] = [[] for _ in plan.members]  # heaps of (score, −number)
        candidates = 0
        for number, mean in document_means(plan.base, model, corpus, tokenizer, context.progress):
            candidates += 1
            for heap, direction in zip(nearest, directions, strict=True):
                score = float((direction * mean).sum(dim=1).mean())  # one member at a time: (L, H) → (L,) → ()
                if not math.isfinite(score):
                    raise CalibrationError(
                        f"{corpus.label}, document {number + 1}: its activations in the base model are not finite",
                        "leave it out",
                    )
                (heapq.heappush if len(heap) < documents else heapq.heappushpop)(heap, (score, -number))
        if candidates < documents:
            remark(context.progress, f"{corpus.label} has {candidates:,} documents: each expert gets all of them")
        names = [member.name for member in plan.members]
        for name, heap in zip(names, nearest, strict=True):
            if max(heap)[0] < 0:
                remark(
                    context.progress,
                    f"all documents chosen for {name} have scores below 0: {corpus.label} has nothing on its side of "
                    "the border; give public text with some of its kind",
                )
        _write(out, corpus, dict(zip(names, ({-number for _, number in heap} for heap in nearest), strict=True)))
    return [
        ProxyText(name, out / f"{name}.jsonl", len(heap), candidates, max(heap)[0], min(heap)[0])
        for name, heap in zip(names, nearest, strict=True)
    ]


def _public_statistics(
    folder: Path, base: Member, model: Any, text: tuple[Corpus, Any], context: PassContext
) -> Iterator[Statistics]:
    """Return the statistics of as much public text as an expert is calibrated on, layer by layer."""
    checkpoint, settings = Checkpoint(folder, base.version.ref, remote_code=True), PassSettings()
    corpus, tokenizer = text
    size = window_size(checkpoint, settings)
    calibration = random_places(corpus, tokenizer, tokens=settings.tokens, seq_len=size, seed=0)
    hint = "register the base model with the tokenizer that it was trained with"
    check_vocabulary(calibration, checkpoint.architecture.vocab_size, corpus.label, hint)
    return mlp_statistics(checkpoint, model, calibration, settings.batch_size, context.progress)


def _directions(members: Sequence[Member], public: Iterable[Statistics]) -> list[Float64[Tensor, "L H"]]:
    """Return each member's discriminants against public text, all members of a layer before the next layer."""
    rows: list[list[Tensor]] = [[] for _ in members]
    for layer, other in enumerate(public):
        for member, found in zip(members, rows, strict=True):
            try:
                found.append(discriminant(member.packed_statistics(MLP_INPUT, layer), other, FIELDS["lam"].default))
            except ValueError as error:
                raise CalibrationError(
                    f"{member.version.ref} cannot be distinguished from public text at layer {layer}: {error}",
                    f"register it again with more text: reg add-expert {member.name} CKPT --data FILE",
                ) from error
    return [torch.stack(found) for found in rows]


def _write(out: Path, corpus: Corpus, chosen: dict[str, set[int]]) -> None:
    with fresh_folder(out, replace=None, nbytes=0) as folder, ExitStack() as stack:
        files = {name: stack.enter_context((folder / f"{name}.jsonl").open("w", encoding="utf-8")) for name in chosen}
        for number, document in enumerate(corpus):
            for name, numbers in chosen.items():
                if number in numbers:
                    files[name].write(json.dumps({"text": document.text}) + "\n")
        for file in files.values():
            file.flush()
