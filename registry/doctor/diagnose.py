"""Diagnosis of a folder: all checks in order, the cheap ones first; those that an error makes useless are skipped."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from registry.checkpoint.adapter import is_adapter
from registry.doctor import forward_checks as forward
from registry.doctor import header_checks as header
from registry.doctor import value_checks as value
from registry.doctor.examination import Examination
from registry.doctor.finding import Cost, Diagnosis, Finding, error, passed, skipped
from registry.errors import CheckpointError, RegError, first_line, is_foreign
from registry.evaluation.model_folders import check_examined
from registry.io.display import printable
from registry.names.suggest import fresh
from registry.progress import Progress, silent
from registry.runtime.loading import check_device
from registry.workspace import PathLike, Workspace


@dataclass(frozen=True)
class Check:
    """One check of a folder.

    Attributes:
        run: yields what it finds; an error of `registry.errors` counts as a finding. It is named `check_` and the name.
        needs: checks without which it makes no sense: it is skipped if one of them found an error or was skipped.
    """

    run: Callable[[Examination], Iterable[Finding]]
    cost: Cost
    passed: str  # what is true of a folder in which it finds nothing
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name, in findings and in `needs`."""
        return self.run.__name__.removeprefix("check_").replace("_", "-")


_DOMAINS = 4  # most domains in a line to type
_FILES = ("files",)
_LOGITS = ("logits",)

CHECKS = (
    Check(header.check_files, "headers", "config.json and all weight files are there and whole"),
    Check(header.check_dtypes, "headers", "all tensors have the dtype that config.json says", _FILES),
    Check(header.check_vocabulary, "headers", "embedding, config.json and tokenizer agree", _FILES),
    Check(
        header.check_special_tokens, "headers", "all files agree on the tokens that begin, end and pad a text", _FILES
    ),
    Check(header.check_chat_template, "headers", "the chat template renders a conversation", ("vocabulary",)),
    Check(
        header.check_architecture,
        "headers",
        "the sizes in config.json fit one another and the tensors",
        ("files", "vocabulary?"),
    ),
    Check(header.check_tied, "headers", "the head is there, or tied to the embedding", _FILES),
    Check(
        header.check_keys,
        "headers",
        "names and shapes are those of the architecture",
        ("dtypes", "vocabulary?", "special-tokens", "architecture", "tied"),
    ),
    Check(header.check_members, "headers", "all members are registered and active"),
    Check(value.check_values, "weights", "every weight is finite, and no part is zero", _FILES),
    Check(value.check_head, "weights", "the head equals the embedding, if tied", ("files", "tied")),
    Check(forward.check_loads, "forward", "transformers loads it", ("keys", "vocabulary", "values", "head")),
    Check(forward.check_logits, "forward", "its logits are finite", ("loads",)),
    Check(forward.check_routing, "forward", "every router uses its experts", _LOGITS),
    Check(forward.check_perplexity, "forward", "it predicts text better than a uniform guess", _LOGITS),
    Check(forward.check_generation, "forward", "it writes text", ("logits", "perplexity?")),
    Check(forward.check_comparison, "forward", "it is compared with its members", ("perplexity",)),
    # Last, as another error says more of what is wrong than that a file was changed.
    Check(header.check_integrity, "weights", "every file is as it was composed"),
)
"""All checks, in their order. A need that ends with `?` is met by a skipped check too."""


def diagnose(
    workspace: Workspace | None,
    folder: PathLike,
    data: Mapping[str, Sequence[PathLike]] | None = None,
    *,
    quick: bool = False,
    device: str | None = None,
    progress: Progress = silent,
) -> Diagnosis:
    """Examine a model folder (errors as `check_examined`; CheckpointError: it holds an adapter, and no whole model).

    InvalidInputError: the device cannot be used.

    Args:
        workspace: the registry, which knows the members of a composition; None without one.
        data: domain → files of text to run it on; default the members' text, else built-in text.
        device: a torch device; None for the GPU if there is one.
    """
    path = Path(folder)
    check_examined(folder, data or {})
    if is_adapter(path):
        raise CheckpointError(
            f"{folder} holds an adapter, not a whole model, and a whole one is examined",
            f"register it: reg add-expert NAME {shlex.quote(str(folder))} --base BASE; what is composed of it is whole",
        )
    if device is not None and not quick:
        check_device(device)
    files = {domain: [Path(file) for file in listed] for domain, listed in (data or {}).items()}
    exam, unmet = Examination(path, workspace, files, device, progress), dict[str, str]()
    for check in CHECKS:
        found = [
            # One printable line, whatever the folder's files say.
            replace(one, message=printable(one.message)[:1000], check=check.name, cost=check.cost)
            for one in _found(check, exam, unmet, quick)
        ]
        exam.findings += found
        severities = {one.severity for one in found}
        if "error" in severities:
            unmet[check.name] = "error"
        elif severities == {"skipped"}:
            unmet[check.name] = "skipped"
    return Diagnosis(path, tuple(exam.findings), dict(exam.perplexity), _again(exam))


def _found(check: Check, exam: Examination, unmet: Mapping[str, str], quick: bool) -> list[Finding]:
    if quick and check.cost == "forward":
        return [skipped("--quick runs nothing")]
    for need in check.needs:
        name = need.removesuffix("?")
        state = unmet.get(name)
        if state == "error":
            return [skipped(f"{name} has an error, which comes first")]
        if state == "skipped" and name == need:
            return [skipped(f"{name} was skipped")]
    found = []
    try:
        for finding in check.run(exam):
            found.append(finding)
    except RegError as failure:
        found.append(error(_without(failure.message, exam), failure.hint))
    except BaseException as failure:  # libraries raise many kinds on what was not made by them
        if not is_foreign(failure):
            raise
        found.append(error(f"the check of {check.name} fails: {first_line(failure)}"))
    return found or [passed(check.passed)]


def _without(message: str, exam: Examination) -> str:
    """Return an error's message without the folder's name before it, which the verdict begins with."""
    for prefix in (f"{exam.path}: ", f"{exam.path.name}: "):
        message = message.removeprefix(prefix)
    if message.startswith(f"{exam.path} "):
        return f"it {message.removeprefix(f'{exam.path} ')}"
    return message.replace(f"{exam.path}/", "")


def _again(exam: Examination) -> str | None:
    errors = [finding for finding in exam.findings if finding.severity == "error"]
    if errors:
        return exam.again
    if exam.evaluations:
        return f"reg report {exam.quoted} --out {fresh('report.html')}"
    domains = list(exam.perplexity)[:_DOMAINS] if exam.members else []
    text = " ".join(f"--data {domain}=FILE" for domain in domains) or "--data DOMAIN=FILE"
    return f"reg evaluate {exam.quoted} {text}"
