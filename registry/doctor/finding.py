"""Findings of the checks, and the diagnosis that they add up to."""

from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from registry.io.display import counted

Severity = Literal["ok", "warning", "error", "skipped"]  # error: the folder is broken; warning: it may be
Cost = Literal["headers", "weights", "forward"]
"""What a check reads: small files and headers; every weight once; or what the loaded model computes."""

MEMBERS = "members"
"""The check of the members, of which an error says that the folder must not be used, not that it is broken."""

_ORDER: tuple[Severity, ...] = ("error", "warning", "ok", "skipped")


@dataclass(frozen=True)
class Finding:
    """One thing that a check found."""

    severity: Severity  # how bad it is; `skipped` if the check was not done
    message: str  # a sentence; of a skipped check, the reason
    next: str | None = None  # the command to type, or what to do
    check: str = ""  # the name of the check
    cost: Cost = "headers"  # what the check reads


error = partial(Finding, "error")  # returns the finding that the folder is broken, given its message and what to do
warning = partial(Finding, "warning")
passed = partial(Finding, "ok")
skipped = partial(Finding, "skipped")  # returns the finding that a check was not done, given the reason


@dataclass(frozen=True)
class Diagnosis:
    """All that was found in a folder; `again` is the command to type if no finding has one."""

    folder: Path
    findings: tuple[Finding, ...]
    perplexity: dict[str, float] = field(default_factory=dict)
    again: str | None = None

    def of(self, severity: Severity) -> list[Finding]:
        """Return the findings of a severity."""
        return [finding for finding in self.findings if finding.severity == severity]

    @property
    def is_healthy(self) -> bool:
        """True if there is no error; there may be warnings."""
        return not self.of("error")

    @property
    def sorted_findings(self) -> list[Finding]:
        """The findings with errors first, then warnings, then what is in order, then what was skipped."""
        return sorted(self.findings, key=lambda finding: _ORDER.index(finding.severity))

    @property
    def short_findings(self) -> list[Finding]:
        """The sorted findings, with one that names all skipped checks in place of several."""
        skipped_checks = self.of("skipped")
        if len(skipped_checks) < 2:
            return self.sorted_findings
        names = ", ".join(dict.fromkeys(finding.check for finding in skipped_checks))
        reasons = {finding.message for finding in skipped_checks}
        why = f" ({reasons.pop()})" if len(reasons) == 1 else "; --every-check says why"
        done = [finding for finding in self.sorted_findings if finding.severity != "skipped"]
        return [*done, skipped(f"{names}{why}")]

    @property
    def verdict(self) -> str:
        """The diagnosis in one sentence."""
        errors, warnings, passed = self.of("error"), self.of("warning"), self.of("ok")
        if errors:
            judged = "must not be used" if errors[0].check == MEMBERS else "is broken"
            return f"{self.folder} {judged}: {_first_of(errors)}"
        if warnings:
            return f"{self.folder} has no error, but {_first_of(warnings)}"
        checks = counted(len({finding.check for finding in passed}), "check")
        skipped = {finding.check for finding in self.of("skipped")}
        return f"{self.folder} looks healthy: {checks} passed" + (f", {len(skipped)} skipped" if skipped else "")

    @property
    def next(self) -> str | None:
        """The one command to type now, or what to do: a broken composition is composed again, whatever broke it."""
        errors = self.of("error")
        if errors and self.again and errors[0].check != MEMBERS:
            return self.again
        notable = [*errors, *self.of("warning")]
        return next((finding.next for finding in notable if finding.next), self.again)

    def document(self) -> dict[str, Any]:
        """Return everything as `--json` shows it."""
        return {
            "folder": str(self.folder),
            "healthy": self.is_healthy,
            "verdict": self.verdict,
            "findings": [asdict(finding) for finding in self.sorted_findings],
            "perplexity": self.perplexity,
            "next": self.next,
        }


def _first_of(found: list[Finding]) -> str:
    more = f" (and {counted(len(found) - 1, f'more {found[0].severity}')})" if len(found) > 1 else ""
    return f"{found[0].message}{more}"
