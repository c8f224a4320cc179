"""Commands that follow other commands: what `cli.output.next_step` prints after a success."""

import json
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.option_groups import typed_words
from registry.families.sites import TOKEN_COUNTS
from registry.names.suggest import fresh

if TYPE_CHECKING:
    from registry.registration.expert_overlap import ExpertOverlap
    from registry.registration.lineage import Relation
    from store.catalog import VersionRecord

_MOST = 8  # maximum number of experts or domains in a line
_OUTPUT_FORMS = ("as_json", "as_csv", "as_markdown")


def composing(experts: Iterable[str], *options: str) -> list[str]:
    """Return the words that compose experts."""
    return ["compose", "--experts", ",".join(experts), *options, "--out", fresh("moe/")]


def of_counts_alone(versions: "Sequence[VersionRecord]") -> tuple[str, ...]:
    """Return the options that compose versions of which some have counts alone, of which no trunk is solved."""
    if all(one.site != TOKEN_COUNTS for version in versions for one in version.statistics):
        return ()
    from registry.checkpoint.version_files import base_of_adapter

    return ("--to", "adapters") if all(map(base_of_adapter, versions)) else ("--trunk", "mean")


def composing_as_typed(*, without: Collection[str] = (), renamed: Mapping[str, str] | None = None) -> list[str]:
    """Return the words that compose what this command was about, with its options (arguments as of `typed_words`)."""
    words = typed_words(without=(*_OUTPUT_FORMS, *without, "out"), renamed=renamed)
    out = click.get_current_context().params.get("out")
    return ["compose", *words, "--out", fresh("moe/") if out is None else str(out)]


def after_registration(
    version: "VersionRecord",
    relations: "Sequence[Relation]",
    overlaps: "Sequence[ExpertOverlap]" = (),
    beside: Iterable[str] = (),
) -> list[str]:
    """Return the words that compose a new expert with those of its base that routing separates, or register one.

    An adapter stays one beside others of its base model, `beside`; of counts alone no trunk is solved.
    """
    name, adapters = version.name, [ref.partition("@")[0] for ref in beside]
    alike = {name, *(overlap.ref.partition("@")[0] for overlap in overlaps if overlap.is_indistinct)}
    related = [one.ref for one in relations if one.kind == "expert" and one.verdict == "same base"]
    others = list(dict.fromkeys((*adapters, *(ref.partition("@")[0] for ref in related))))
    options: tuple[str, ...] = ()
    if adapters:
        others, options = adapters, ("--to", "adapters")
    elif any(statistics.site == TOKEN_COUNTS for statistics in version.statistics):
        options = ("--trunk", "mean")
    others = [other for other in others if other not in alike]
    words = composing(sorted([*others[: _MOST - 1], name]), *options)
    return words if others else ["add-expert", "NAME", "CKPT"]


def evaluating(folders: Iterable[Path | str], domains: Iterable[str]) -> list[str]:
    """Return the words that score folders on text of each domain."""
    data = [word for domain in [*dict.fromkeys(domains)][:_MOST] for word in ("--data", f"{domain}=FILE")]
    return ["evaluate", *map(str, folders), *(data or ["--data", "DOMAIN=FILE"])]


def reporting(composition: Path | str) -> list[str]:
    """Return the words that write a page about a composition."""
    return ["report", str(composition), "--out", fresh("report.html")]


def loading(repo: str, revision: str) -> str:
    """Return the line that loads a pushed model."""
    words = [json.dumps(repo), *([] if revision == "main" else [f"revision={json.dumps(revision)}"])]
    load = f"AutoModelForCausalLM.from_pretrained({', '.join(words)})"
    return shlex.join(["python", "-c", f"from transformers import AutoModelForCausalLM; {load}"])
