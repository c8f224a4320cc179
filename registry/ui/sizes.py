"""The size of a composition: what an evaluation counted, else what its plan says."""

from collections.abc import Sequence
from dataclasses import dataclass

from registry.composition.manifest import CompositionManifest
from registry.errors import RegError
from registry.ui.describing import expert_names
from registry.ui.site import Site
from registry.ui.wording import short
from store.catalog import CompositionRecord, EvaluationRecord


@dataclass(frozen=True)
class Size:
    """The size of a composition; None where neither an evaluation nor a plan tells it.

    Attributes:
        parameters: all of them.
        active: those that take part in one token.
        nbytes: what is written.
        routing: parameters that context routing adds, for reading the text so far and for maps of the head.
    """

    parameters: int | None
    active: int | None
    nbytes: int | None
    routing: int | None = None


def size_of(site: Site, record: CompositionRecord, evaluations: Sequence[EvaluationRecord]) -> Size:
    """Return the size that the latest evaluation counted, else that of its plan, which reads no array."""
    figures = evaluations[0].document["figures"] if evaluations else {}
    planned = site.cache.get(("size", record.digest), lambda: _planned(site, record))
    return Size(
        figures.get("parameters") or planned.parameters,
        figures.get("active_parameters") or planned.active,
        planned.nbytes,
        planned.routing,
    )


def _planned(site: Site, record: CompositionRecord) -> Size:
    """Return the size by the plan of a composition; nothing of one that was trained, or cannot be made again."""
    try:
        manifest = CompositionManifest.from_document(record.document, f"composition {short(record.digest)}")
        experts, base = expert_names(record)
        known = next(iter(base), None)
        if manifest.from_base is not None:
            plan = site.registry.plan((), manifest.recipe, base=known, from_base=manifest.from_base)
        else:
            plan = site.registry.plan(experts, manifest.recipe, base=known)
    except RegError:
        return Size(None, None, None)
    if plan.digest != record.digest:
        return Size(None, None, None)
    cost = plan.output.routing_cost(plan)
    return Size(plan.parameters, plan.active_parameters, plan.nbytes, None if cost is None else cost.parameters)
