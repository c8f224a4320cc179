"""The files of a pushed expert: its checkpoint as registered, its statistics, and its manifest."""

from dataclasses import replace
from pathlib import Path

from registry.calibration.calibration import is_self_sampled
from registry.checkpoint.annotations import FILE_NAME, ExpertManifest
from registry.composition.stored import write_dense
from registry.families.sites import CONTENT_COUNTS, MLP_INPUT, SITES, TOKEN_COUNTS
from registry.hub.card_additions import languages_of
from registry.io.model_folder import json_file
from registry.maths.statistics import Statistics
from registry.member import Member
from registry.progress import Progress, remark
from registry.statistics import file as statistics_file
from registry.statistics.file import Collected
from registry.workspace import content_digest

_PAGE = """\
---
{metadata}
---

# {name}

An expert language model with its sufficient statistics, for [expert-registry](https://pypi.org/project/expert-registry/):
it can be composed with others of its kind into one model, without its data and without training.

| | |
|---|---|
| content digest | `{digest}` |
| family | {family}, {parameters:,} parameters, {dtype} |
| statistics | {tokens:,} tokens: {sites} |
| calibration | {label} (`{calibration}`) |
| calibration tokens | {kept} |
| license | {license} |

```console
$ reg add-expert {name} hf://{repo_id}
```

registers it with no data and no forward pass, under the digest above. The weights are the whole checkpoint's, the trunk
too, as it was registered; it loads with transformers as any other does.

{contents}; no text is
in them{own}.
"""

_SUMS = """\
Statistics are sums over tokens (Gram matrices and moments of activations, and how often each token came)"""
_COUNTS = "The statistics are how often each token came in the calibration"


def write_expert(member: Member, folder: Path, *, calibration: bool, progress: Progress) -> ExpertManifest:
    """Write the files of an expert, except its card, to an absent or empty folder, and return its manifest.

    `calibration` includes kept calibration tokens that were taken from text, else a remark says that they are left out;
    tokens that the expert generated itself are always included.
    """
    collected = collected_of(member)
    digest = member.version.digest
    if collected.calibration is not None and not calibration and not is_self_sampled(collected.calibration_label):
        collected = replace(collected, calibration=None)
        links = [link for link in member.arrays if link.role != "calibration"]
        digest = content_digest(member.content | {"calibration_kept": False}, links)
        remark(
            progress,
            f"the calibration tokens of {member.version.ref} are not pushed, so elsewhere it is {digest[:12]}, not "
            f"{member.version.digest[:12]}; --calibration pushes them",
        )
    write_dense([member], folder, progress)
    statistics_file.save(folder / statistics_file.FILE_NAME, collected)
    manifest = ExpertManifest(member.name, digest, member.content["license"], tuple(languages_of([member.version])))
    (folder / FILE_NAME).write_bytes(json_file(manifest.document()))
    return manifest


def collected_of(member: Member) -> Collected:
    """Return an expert's statistics in the form that a checkpoint carries."""
    sites: dict[str, tuple[Statistics, ...]] = {}
    folds = {name: member.open("statistics", name) for name in member.names("statistics") if "/fold/" in name}
    for site in SITES["all"]:
        if member.has_statistics(site):
            count = sum(name.startswith(f"{site}/gram/") for name in member.names("statistics"))
            sites[site] = tuple(member.statistics(site, layer) for layer in range(count))
    record = member.version.statistics[0]
    return Collected(
        member.content["weights"],
        sites,
        record.calibration_digest,
        record.calibration_label,
        member.content["computed"],
        member.calibration,
        folds,
        member.token_counts if member.has_statistics(TOKEN_COUNTS) else None,
        member.evidence_counts if member.has_statistics(CONTENT_COUNTS) else None,
        member.pair_counts,
    )


def card(member: Member, manifest: ExpertManifest, repo_id: str, *, kept: bool) -> bytes:
    """Return the model card of an expert's repository."""
    from huggingface_hub import ModelCardData

    record, content = member.version.statistics[0], member.content
    metadata = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["expert-registry", "expert", content["family"]],
        license=None if manifest.license is None else manifest.license.lower(),
        language=list(manifest.languages) or None,
    )
    return _PAGE.format(
        metadata=metadata.to_yaml(line_break="\n"),
        name=member.name,
        digest=manifest.digest,
        family=content["family"],
        parameters=member.version.parameters,
        dtype=content["dtype"],
        tokens=member.tokens,
        sites=", ".join(each.site for each in member.version.statistics),
        label=record.calibration_label,
        calibration=record.calibration_digest[:12],
        kept="in `statistics.safetensors`" if kept else "not here",
        license=manifest.license or "not given",
        repo_id=repo_id,
        contents=_SUMS if member.has_statistics(MLP_INPUT) else _COUNTS,
        own=" but the calibration tokens" if kept else "",
    ).encode()
