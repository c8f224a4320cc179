"""Compositions in words: a name, what each is, how it differs from an earlier one, and its score with its sample."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.composition.recipe.recipe_fields import (
    DENSE,
    ENSEMBLE,
    FIELDS,
    FROM_COUNTS,
    HETERO,
    MOE,
    SIMOE,
    TOP_K,
    TRUNK_OPTIONS,
    default,
)
from registry.ui.scores import Score
from registry.ui.wording import counted, plain
from store.catalog import CompositionRecord

TRUNK_WORDS = {
    "regmean": "shared weights merged by RegMean",
    "mean": "shared weights averaged",
    "base": "shared weights of the base model",
    "ties": "shared weights merged by TIES",
    "dare": "shared weights merged by DARE",
    "task-arithmetic": "shared weights merged by task arithmetic",
}
"""Trunk method → its part in a mixture."""

DENSE_WORDS = {
    "regmean": "all weights merged by RegMean",
    "mean": "all weights averaged",
    "ties": "all weights merged by TIES",
    "dare": "all weights merged by DARE",
    "task-arithmetic": "all weights merged by task arithmetic",
}
"""Trunk method → its part in a dense model."""

ROUTER_WORDS = {
    "context": "routed by the text so far",
    "ridge": "linear routers solved by ridge regression",
    "domain-embedding": "routers from the base model’s embeddings of each domain",
    "anchored": "routers trained with the experts",
    "random": "random routers",
}
"""Router method → words."""

ROUTING_WORDS = {
    "posterior": "weighted by how well each predicts the text so far",
    "perplexity": "weighted by perplexity",
    "prompt-perplexity": "weighted by perplexity on the prompt",
    "task-vector": "weighted by task vectors",
}
"""Routing method of an ensemble → words."""

MADE = {
    MOE: "a sparse mixture",
    DENSE: "one dense model",
    ENSEMBLE: "an ensemble",
    HETERO: "one model of several architectures",
    SIMOE: "a SIMoE",
}
"""Output → words."""

EARLIER = 200
"""Number of earlier compositions, the latest, among which a similar one is looked for."""

MOST_CHANGES = 3
"""Number of differences up to which a composition is described by another one."""

UNSTATED = ("to", "weights", TRUNK_OPTIONS, "computed", "fit", "bias", "coefficients")
"""Keys of a recipe that are not compared as they are."""


@dataclass(frozen=True)
class Described:
    """A composition for a list.

    Attributes:
        record: the composition.
        title: its name: that of its latest folder, else its members.
        experts: the references of its experts; none of copies.
        base: the reference of its base model, if that is no expert of it.
        copies: number of its experts, where they are copies of its base model.
        kind: what it is, in a few words.
        difference: how it differs from an earlier one, if it resembles one.
        score: its scores, as a rule those of its widest evaluation.
    """

    record: CompositionRecord
    title: str
    experts: Sequence[str]
    base: Sequence[str]
    copies: int | None
    kind: str
    difference: "Difference | None"
    score: Score | None


@dataclass(frozen=True)
class Difference:
    """The differences of a composition from an earlier one.

    Attributes:
        other: the earlier one.
        title: its name.
        words: what differs, each as a few words: `router ridge instead of context`.
    """

    other: CompositionRecord
    title: str
    words: Sequence[str]


def title(record: CompositionRecord) -> str:
    """Return the name of a composition: that of the folder it was written to last, else its members."""
    name = Path(record.folders[-1]).name if record.folders else ""
    return name or ", ".join(record.members) or record.digest[:12]


def expert_names(record: CompositionRecord) -> tuple[list[str], list[str]]:
    """Return the references of a composition's experts (none of copies), and that of another base model, if any."""
    document = record.document
    names = set() if "from_base" in document else {one["name"] for one in document["members"]}
    experts = [ref for ref in record.members if ref.partition("@")[0] in names]
    return experts, [ref for ref in record.members if ref not in experts]


def output(document: Mapping[str, Any]) -> str:
    """Return what a composition is: `moe`, `dense`, …; of the first format's, a mixture."""
    return str(document["recipe"].get("to", MOE))


def kind(document: Mapping[str, Any]) -> str:
    """Return what a composition is, in a few words: `mixture · regmean · context, 1 per token`."""
    recipe, to = document["recipe"], output(document)
    words = {MOE: "mixture", DENSE: "dense model", ENSEMBLE: "ensemble", HETERO: "mixed architectures", SIMOE: "SIMoE"}
    routing = ROUTING_WORDS.get(str(recipe.get("routing")), recipe.get("routing"))
    parts = [words.get(to, to), recipe.get("trunk"), routing]
    if to == MOE:
        parts.append(f"{recipe.get('router')}, {recipe['top_k']} per token" if "top_k" in recipe else None)
    refits = [
        f"refine {recipe.get('refine')}" if recipe.get("refine") else None,
        "MLPs refitted" if recipe.get("refine_mlp") else None,
        "trained" if "training" in document else None,
    ]
    return " · ".join(str(part) for part in (*parts, *refits) if part)


def sentences(document: Mapping[str, Any]) -> list[str]:
    """Return how a composition was made, each step as a few words."""
    recipe, to, count = document["recipe"], output(document), len(document["members"])
    trunk, top_k = recipe.get("trunk"), recipe.get("top_k")
    per_token = f"; {counted(top_k, 'expert')} per token" if top_k else ""
    if to == DENSE:
        made = [f"One dense model of {counted(count, 'expert')}", DENSE_WORDS.get(str(trunk), f"merged by {trunk}")]
    elif to == ENSEMBLE:
        made = [
            f"An ensemble of {counted(count, 'whole model')}",
            ROUTING_WORDS.get(str(recipe.get("routing")), str(recipe.get("routing"))),
            *([TRUNK_WORDS.get(str(trunk), str(trunk))] if trunk else []),
        ]
    elif to == HETERO:
        made = [f"{counted(count, 'expert')} of several architectures between one embedding and one head{per_token}"]
    elif to == SIMOE:
        made = [f"{counted(count, 'expert')} of a SIMoE, as they were trained together"]
    else:
        copies = document.get("from_base")
        of = f"{copies} copies of the base model’s MLPs" if copies else counted(count, "expert")
        made = [f"A sparse mixture of {of}{per_token}"]
        made += [TRUNK_WORDS.get(str(trunk), f"shared weights: {trunk}")] if trunk else []
        made += [ROUTER_WORDS.get(str(recipe["router"]), str(recipe["router"]))] if "router" in recipe else []
    made += [f"routers solved again in {counted(recipe['refine'], 'pass', 'passes')}"] if recipe.get("refine") else []
    made += ["MLPs refitted to the composed model"] if recipe.get("refine_mlp") else []
    made += ["trained further"] if "training" in document else []
    return made


def stated(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a composition's recipe that are not at their defaults, as text."""
    recipe, to, count = document["recipe"], output(document), len(document["members"])
    fields = {key: value for key, value in recipe.items() if key not in UNSTATED}
    fields |= recipe.get(TRUNK_OPTIONS) or {}
    trunk = recipe.get("trunk")
    usual = count if to == ENSEMBLE else 1 if to == HETERO or recipe.get("router") in FROM_COUNTS else TOP_K
    found = {}
    for name, value in fields.items():
        normal = min(usual, count) if name == "top_k" else default(name, to)
        if name in FIELDS:  # where the default depends on a method
            usual_with = FIELDS[name].default_with
            normal = next((usual_with[one] for one in (recipe.get("router"), trunk) if one in usual_with), normal)
        if value is not None and value != normal:
            found[name] = plain(value)
    weights = recipe.get("weights") or {}
    return found | ({"weights": plain(weights)} if any(weight != 1 for weight in weights.values()) else {}) | {"to": to}


def set_in_recipe(document: Mapping[str, Any]) -> str:
    """Return the fields of a composition's recipe that are not at their defaults: `router ridge`, `default recipe`."""
    return "; ".join(words for _, words in _fields_changed(stated(document), {"to": MOE})) or "default recipe"


def difference(
    record: CompositionRecord,
    earlier: Sequence[CompositionRecord],
    known: dict[str, dict[str, str]] | None = None,
) -> Difference | None:
    """Return how a composition differs from the most similar earlier one; None if it resembles none of them.

    Of equally similar ones it is the latest.

    Args:
        record: the composition.
        earlier: the compositions made before it, oldest first.
        known: digest → what `stated` returned, kept from call to call where many are described.
    """
    known = {} if known is None else known
    best: tuple[int, int, CompositionRecord, list[str]] | None = None
    for at, other in enumerate(earlier):
        if other.digest == record.digest or not _share_members(record, other):
            continue
        count, words = _changed(record, other, known)
        key = (count, -at)
        if 0 < count <= MOST_CHANGES and (best is None or key < best[:2]):
            best = (*key, other, words)
    return None if best is None else Difference(best[2], title(best[2]), tuple(best[3]))


def changes(record: CompositionRecord, other: CompositionRecord) -> list[str]:
    """Return every difference of a composition from another one, however many, each as a few words."""
    return _changed(record, other, {})[1]


def describe(record: CompositionRecord, earlier: Sequence[CompositionRecord], score: Score | None) -> Described:
    """Return a composition for a list.

    Args:
        record: the composition.
        earlier: the compositions made before it, oldest first.
        score: its scores.
    """
    experts, base = expert_names(record)
    copies = record.document.get("from_base")
    return Described(
        record, title(record), experts, base, copies, kind(record.document), difference(record, earlier), score
    )


def _changed(
    record: CompositionRecord, other: CompositionRecord, known: dict[str, dict[str, str]]
) -> tuple[int, list[str]]:
    """Return the number of differences of a composition from another, and their words."""
    count, words = _members_changed(record, other)
    if record.document.get("parent") == other.digest:
        return 1, ["trained further"]
    own, old = (known.get(one.digest) or known.setdefault(one.digest, stated(one.document)) for one in (record, other))
    fields = _fields_changed(own, old, record.document["recipe"])
    fields += _top_k_changed(record.document["recipe"], other.document["recipe"], {name for name, _ in fields})
    count += sum(MOST_CHANGES if name == "to" else 1 for name, _ in fields)
    if own["to"] != old["to"]:  # whose other fields have no part in the one or in the other
        fields = [(name, text) for name, text in fields if name == "to"]
    return count, [*words, *(text for _, text in fields)]


def _experts_by_name(record: CompositionRecord) -> dict[str, str]:
    return {ref.partition("@")[0]: ref for ref in expert_names(record)[0]}


def _share_members(record: CompositionRecord, other: CompositionRecord) -> bool:
    """Tell whether two compositions have enough members in common to describe one by the other."""
    if record.document.get("from_base") or other.document.get("from_base"):
        copies = all(one.document.get("from_base") for one in (record, other))
        return copies and record.members == other.members
    own, old = set(_experts_by_name(record)), set(_experts_by_name(other))
    added, removed, shared = own - old, old - own, own & old
    return bool(shared) and not (added and removed and len(shared) < len(added) + len(removed))


def _members_changed(record: CompositionRecord, other: CompositionRecord) -> tuple[int, list[str]]:
    """Return the number of differences between the experts of two compositions, and their words."""
    copies, earlier = (one.document.get("from_base") for one in (record, other))
    if copies or earlier:
        own, old = (f"{count} copies" if count else "experts" for count in (copies, earlier))
        return (0, []) if copies == earlier else (1, [f"{own} instead of {old}"])
    by_name, before = _experts_by_name(record), _experts_by_name(other)
    added = [by_name[name] for name in by_name if name not in before]
    removed = [before[name] for name in before if name not in by_name]
    replaced = [(by_name[name], before[name]) for name in by_name if before.get(name, by_name[name]) != by_name[name]]
    words = [f"without {_and(removed)}"] if removed else []
    words += [f"with {_and(added)} added"] if added else []
    words += [f"{new} in place of {earlier}" for new, earlier in replaced]
    return len(added) + len(removed) + len(replaced), words


def _top_k_changed(own: Mapping[str, Any], old: Mapping[str, Any], said: Collection[str]) -> list[tuple[str, str]]:
    """Return the experts per token where a changed router brings its own default."""
    new, before = own.get("top_k"), old.get("top_k")
    if "router" not in said or "top_k" in said or new == before or not new or not before:
        return []
    return [("top_k", f"{counted(new, 'expert')} per token instead of {before}")]


def _fields_changed(
    own: Mapping[str, str], old: Mapping[str, str], recipe: Mapping[str, Any] | None = None
) -> list[tuple[str, str]]:
    """Return the fields of two recipes that differ, each with words; `recipe` has the values that are defaults."""
    words = []
    for name in [*own, *(key for key in old if key not in own)]:
        if own.get(name) == old.get(name):
            continue
        label = name.replace("_", " ")
        if name == "to":
            words.append((name, MADE.get(own[name], own[name])))
        elif name not in own:
            value = (recipe or {}).get(name)
            now = "by default" if value is None or isinstance(value, bool) else plain(value)
            words.append((name, f"{label} {now} instead of {old[name]}"))
        else:
            words.append((name, f"{label} {own[name]}" + (f" instead of {old[name]}" if name in old else "")))
    return words


def _and(refs: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(refs[:-1]), refs[-1])))
