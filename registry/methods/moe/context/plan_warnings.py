"""Warnings of a planned mixture, from stored counts alone: members that it would hardly use, or route by a template."""

from collections.abc import Iterator

from registry.composition.method import COUNTS, OWN
from registry.composition.plan import Plan, PlanWarning
from registry.composition.taken_files import chat_marks, chat_template
from registry.errors import RegError
from registry.families.sites import CONTENT_COUNTS
from registry.methods.moe.context.predicted_routing import INDISTINCT_COUNTS, predict_routing
from registry.methods.moe.plan import statistics_weights
from registry.methods.moe.recipe import router_of
from registry.methods.moe.refinement import SOLVES_AGAIN
from registry.progress import silent

LEAST_OWN = 0.05
"""A member that gets a smaller share of its own tokens is drowned."""

LEAST_LOAD = 0.003
"""So is a member that gets a smaller share of all tokens, if every member's text has as many."""

LEAST_PART = 0.15
"""Least part in the solve of routers, as a share of an even part.

*Measured* on three experts of the demo: with a part of 0.39 a member gets 73 % of its tokens (88 % with an even one),
with 0.14 it gets 50 %, with 0.04 27 %.
"""

MOST_WORK = 2 * 10**9
"""E³ · V up to which routing is predicted: a few tenths of a second, where composing takes many."""


def plan_warnings(plan: Plan) -> tuple[PlanWarning, ...]:
    """Return the warnings of a plan; none where they would need more than stored counts, or much time."""
    if plan.from_base is not None or len(plan.members) < 2:
        return ()
    features = router_of(plan.recipe).statistics
    if features == OWN:
        return tuple(_of_parts(plan))
    if features != COUNTS or len(plan.members) ** 3 * plan.lead.architecture.vocab_size > MOST_WORK:
        return ()
    try:
        return (*_of_routing(plan), *_of_templates(plan))
    except RegError:  # composing refuses what cannot be predicted, and says why
        return ()


def _of_parts(plan: Plan) -> Iterator[PlanWarning]:
    """Yield members with few tokens, which the routers' least squares neglect."""
    counts = [member.tokens for member in plan.members]
    weighted = [count * weight for count, weight in zip(counts, statistics_weights(plan), strict=True)]
    for member, one in zip(plan.members, weighted, strict=True):
        part = one / sum(weighted)
        if part < LEAST_PART / len(counts):
            balanced = plan.recipe.balance != "none" or member.name in plan.recipe.weights
            yield PlanWarning(
                (member.version.ref,),
                part,
                f"{member.version.ref} is drowned: it brings {part:.1%} of the statistics that routers are solved from",
                f"give it more weight: --weights {member.name}=X" if balanced else "--balance tokens",
            )


def _of_routing(plan: Plan) -> Iterator[PlanWarning]:
    """Yield members whose tokens go to others, and pairs that counts of tokens cannot tell apart."""
    predicted = predict_routing(plan, silent, only_typical=True)
    confusion, refs = predicted.confusion[predicted.typical], [member.version.ref for member in plan.members]
    loads = confusion.mean(dim=0).tolist()
    for number, (ref, row) in enumerate(zip(refs, confusion.tolist(), strict=True)):
        if row[number] < LEAST_OWN or loads[number] < LEAST_LOAD:
            taker = refs[max(range(len(row)), key=lambda other: -1.0 if other == number else row[other])]
            yield PlanWarning(
                (ref,),
                row[number],
                f"{ref} is drowned: {row[number]:.1%} of its own tokens are predicted to go to it, most to {taker}",
                f"leave it out, or route by activations: --router {SOLVES_AGAIN}",
            )
    for (a, b), share in predicted.overlap.items():
        if share >= INDISTINCT_COUNTS:
            yield PlanWarning(
                (refs[a], refs[b]),
                share,
                f"{refs[a]} and {refs[b]} overlap in token counts: {min(share, 1.0):.0%} of their texts look alike",
                f"leave one out; if reg preview --router {SOLVES_AGAIN} shows a small overlap of activations, use that "
                "router",
            )


def _of_templates(plan: Plan) -> Iterator[PlanWarning]:
    """Yield members whose evidence counts the tokens of their chat template.

    They were registered before contents of messages were counted apart, or from text in which chats were rendered.
    """
    for member in plan.members:
        if member.has_statistics(CONTENT_COUNTS) or chat_template(member) is None:
            continue
        counts = member.evidence_counts
        marks = {token: int(counts[number]) for number, token in chat_marks(member).items() if number < len(counts)}
        if not any(marks.values()):
            continue
        most = max(marks, key=marks.__getitem__)
        yield PlanWarning(
            (member.version.ref,),
            sum(marks.values()) / int(counts.sum()),
            f"{member.version.ref} is known by its chat template too: {most} came {marks[most]:,} times in its text, "
            "so chats tend to go to the expert of the shortest ones",
            f"register it again from rows with messages: reg add-expert {member.name} CKPT --data FILE",
        )
