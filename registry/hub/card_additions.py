"""Additions of a push to a model card: facts of the registry that are not part of the composition."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from registry.checkpoint.annotations import HUB_TAG, LANGUAGE_TAG
from registry.hub.hub_errors import endpoint
from store.catalog import Catalog, EvaluationRecord, VersionRecord

_HUB = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", re.ASCII)
_LANGUAGE = re.compile(r"[a-z]{2,3}|code|multilingual")


Source = tuple[VersionRecord, str | None]
"""A version and its location on the Hub: `ORG/NAME` or `ORG/NAME@COMMIT`, None if unknown."""


def source_of(catalog: Catalog, version: VersionRecord) -> Source:
    """Return the location of a version on the Hub: from its tag, else from its latest push."""
    tagged = version.tags.get(HUB_TAG)
    if tagged is not None and _HUB.fullmatch(tagged):
        return version, tagged
    pushed = [push for push in catalog.pushes([version.ref]) if push.commit is not None]
    return version, f"{pushed[-1].repo}@{pushed[-1].commit}" if pushed else None


def languages_of(versions: Sequence[VersionRecord]) -> list[str]:
    """Return the distinct languages in the tags of versions, sorted."""
    languages = [part.strip() for version in versions for part in version.tags.get(LANGUAGE_TAG, "").split(",")]
    return sorted({language for language in languages if _LANGUAGE.fullmatch(language)})


def metadata(
    name: str,
    sources: Sequence[Source],
    languages: Sequence[str],
    license_id: str | None,
    evaluation: EvaluationRecord | None,
) -> str:
    """Return lines of YAML for the front matter, or nothing; `license_id` overrides the members' licenses."""
    from huggingface_hub import ModelCardData

    repositories = list(dict.fromkeys(location.partition("@")[0] for _, location in sources if location))
    data = ModelCardData(
        base_model=repositories or None,
        language=list(languages) or None,
        license=license_id,
        model_name=name if evaluation else None,
        eval_results=_results(evaluation) if evaluation else None,
    )
    if repositories:
        data["base_model_relation"] = "merge"
    return f"{data.to_yaml(line_break=chr(10))}\n" if any((repositories, languages, license_id, evaluation)) else ""


def page(
    sources: Sequence[Source], evaluation: EvaluationRecord | None, audits: Sequence[EvaluationRecord] = ()
) -> str:
    """Return Markdown for the end of the card (arguments as in `metadata`, and the stored audits of extraction)."""
    parts = (_members(sources), _scores(evaluation) if evaluation else "", _audits(audits) if audits else "")
    return "\n".join(part for part in parts if part)


def _members(sources: Sequence[Source]) -> str:
    rows, commands = "", ""
    for version, location in sources:
        link = "not known" if location is None else _link(location)
        rows += f"| {version.name} | {version.ref} | `{version.digest[:12]}` | {link} |\n"
        if location is not None:
            commands += f"$ reg add-{version.kind} {version.name} hf://{location}\n"
    return (
        "## Members\n\nVersions are numbered as in the registry that this was pushed from.\n\n"
        f"| expert | version | content digest | on the Hub |\n|---|---|---|---|\n{rows}"
        + (f"\n```console\n{commands}```\n" if commands else "")
    )


def _link(location: str) -> str:
    repo_id, _, commit = location.partition("@")
    return f"[{repo_id}]({endpoint()}/{repo_id})" + (f" at `{commit[:12]}`" if commit else "")


def _scores(evaluation: EvaluationRecord) -> str:
    document = evaluation.document
    figures, oracle, settings = document["figures"], document["oracle"] or {}, document["settings"]
    intervals = figures.get("interval", {})
    rows = [
        f"| {domain} | {figures['perplexity'][domain]:.3f} | {_number(figures['score'].get(domain))} "
        f"| {_interval(intervals.get(domain))} | {_number(oracle.get('score', {}).get(domain))} | {text['tokens']:,} "
        f"| `{str(text['digest'])[:12]}` |"
        for domain, text in document["data"].items()
    ]
    mean, best = _number(figures["average"]), _number(oracle.get("average"))
    rows.append(f"| average | | {mean} | {_interval(figures.get('average_interval'))} | {best} | | |")
    return (
        "## Scores\n\nScore: 100 is the perplexity of the domain's own expert; oracle: every token sent to it; "
        "interval: 95 % of bootstrap samples of the windows. "
        f"Windows of {settings['seq_len']:,} tokens, {settings['dtype']}.\n\n"
        "| domain | perplexity | score | interval | oracle | tokens | text |\n|---|---|---|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


def _audits(audits: Sequence[EvaluationRecord]) -> str:
    rows = []
    for audit in audits:
        data, found, settings = (audit.document[key] for key in ("data", "extraction", "settings"))
        rows.append(
            f"| `{str(data['digest'])[:12]}` | {found['extracted']} of {data['documents']} | {found['similarity']:.3f} "
            f"| {found['most']:.3f} | {settings['prefix']} | {settings['continued']} | {settings['samples']} "
            f"| {settings['threshold']:g} |"
        )
    return (
        "## Extraction\n\nDocuments that the model continues nearly word for word from their first tokens: the best of "
        "the samples is similar to the document by the threshold or more (normalised Levenshtein similarity, on "
        "tokens; FlexOlmo §5.3).\n\n"
        "| text | extracted | mean similarity | largest | prefix | continued | samples | threshold |\n"
        "|---|---|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _interval(ends: Sequence[float] | None) -> str:
    return "" if ends is None else f"{ends[0]:.2f} to {ends[1]:.2f}"


def _results(evaluation: EvaluationRecord) -> list[Any]:
    from huggingface_hub import EvalResult

    figures: Mapping[str, Mapping[str, float]] = evaluation.document["figures"]
    results = []
    for domain, text in evaluation.document["data"].items():
        for kind, name in (("perplexity", "perplexity"), ("score", "score (100: the domain's own expert)")):
            if domain in figures[kind]:
                results.append(
                    EvalResult(
                        task_type="text-generation",
                        dataset_type=domain,
                        dataset_name=f"{domain} {str(text['digest'])[:12]}",
                        metric_type=kind,
                        metric_name=name,
                        metric_value=round(figures[kind][domain], 4),
                    )
                )
    return results
