"""Check of a checkpoint: the report of a registration, without registering it."""

from dataclasses import dataclass

from registry.checkpoint import hash_checkpoint
from registry.families.sites import MLP_INPUT
from registry.registration.candidate import Candidate
from registry.registration.expert_overlap import ExpertOverlap, overlaps, registered_experts, summarise
from registry.registration.lineage import Relation, equal_mlps
from registry.statistics.collect import carried_statistics, collect, report_few_tokens, text_calibration
from registry.workspace import Workspace


@dataclass(frozen=True)
class Check:
    """Report on a checkpoint that can be registered.

    Attributes:
        label: name of the checkpoint.
        family: its `model_type`.
        hosts: the hosts that carry it, by their names in `--host`, the preferred one first.
        notes: limitations of a composition in the preferred host, and of what a mixture would keep of it.
        dtype: the dtype that most weights have.
        parameters: number of weights.
        tokens: number of tokens in its tokenizer's vocabulary; None without a tokenizer.json.
        relations: its distance to every registered version of its shape, the nearest first.
        text: label of the text that its statistics were collected on, its own ones or new; None without statistics.
        overlaps: overlap of its statistics with those of registered experts, the largest first; None without text to
            collect statistics on, and with token counts alone.
    """

    label: str
    family: str
    hosts: tuple[str, ...]
    notes: tuple[str, ...]
    dtype: str
    parameters: int
    tokens: int | None
    relations: tuple[Relation, ...]
    text: str | None
    overlaps: tuple[ExpertOverlap, ...] | None


def check_candidate(workspace: Workspace, candidate: Candidate) -> Check:
    """Return the report on a candidate (`Registry.check`).

    Raises:
        CheckpointError: weights are NaN or infinite, or the statistics in its folder do not belong to it.
        CalibrationError: there is no text, or an activation is NaN or infinite.
    """
    checkpoint, settings, progress = candidate.checkpoint, candidate.settings, workspace.progress
    hashed = hash_checkpoint(checkpoint, progress)
    calibration = text_calibration(checkpoint, candidate.files, settings, progress)
    collected = carried_statistics(hashed) if calibration is None else None
    if calibration is not None:
        collected = collect(hashed, calibration, settings, progress=progress)
    if collected is not None:
        report_few_tokens(collected, checkpoint, settings, progress)
    inputs = None if collected is None else collected.sites.get(MLP_INPUT)
    summaries = None if inputs is None else summarise(inputs, progress)
    hosts = checkpoint.family.hosts(checkpoint.architecture)
    return Check(
        label=checkpoint.label,
        family=checkpoint.family.model_type,
        hosts=tuple(hosts),
        notes=(*next(iter(hosts.values())).notes, *equal_mlps(candidate.relations, candidate.mlps)),
        dtype=checkpoint.dtype,
        parameters=checkpoint.parameters,
        tokens=hashed.tokens,
        relations=candidate.relations,
        text=None if collected is None else collected.calibration_label,
        overlaps=None if summaries is None else overlaps(summaries, registered_experts(workspace), workspace),
    )
