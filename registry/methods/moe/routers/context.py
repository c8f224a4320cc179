"""Context routers: each token goes by the evidence of the text so far, from counts of tokens."""

from __future__ import annotations

from registry.composition.method import COUNTS, Compared, Router, Settings
from registry.composition.recipe.option import Limits, Option, OptionKind, Problem
from registry.methods.moe.refinement import SOLVES_AGAIN
from registry.methods.works import LEWIS, MARON, ROFORMER

SHARED, MAPPED = "shared", "mapped"
"""Vocabularies of a mixture: one embedding and head for all experts, or a map in front of the head for each."""

WINDOW = 64.0
"""τ of the window by default, in tokens.

*Measured*, whole text and the first 32 tokens after a change of subject: near experts 91.2 and 52.7 (over the whole
text so far 91.3 and 32.7), far ones 86.6 and 45.8 (86.4 and 25.3), experts with look-alikes 81.2 and 42.7 (81.1 and
20.6). 24 tokens gain 4 to 7 points after a change, and cost 0.3 to 0.9 on whole text.
"""


class Context(Router):
    """Naive Bayes over unigrams of the text so far (`registry/maths/context/`); a layer of attention averages it."""

    name = "context"
    options = (
        Option(
            "context_window", OptionKind.NUMBER,
            "how far back evidence counts, in tokens; 0 for the whole text so far.", "TOKENS", default=WINDOW,
            limits=Limits(0.0, 1e6), noun="context-window", label="Context window", advanced=True,
            note="about how many tokens back the context router looks; 0: the whole text so far",
        ),
        Option(
            "vocabulary", OptionKind.CHOICE,
            "shared, one head for all experts; mapped, a layer more that brings it near the expert's own.", "HOW",
            default=MAPPED, choices=(SHARED, MAPPED), label="Vocabulary", advanced=True,
            note="mapped: a layer brings the shared head near each expert’s own; shared: one head as it is",
        ),
    )  # fmt: skip
    words = "routed by the text so far"
    sentence = (
        "The router of every layer takes the expert whose calibration text used the tokens of the text so far most, "
        "compared with the others': naive Bayes over unigrams (Maron 1961; Lewis 1998). Each token's evidence is in "
        "the weights and is averaged over the text so far, by one layer of attention with rotary positions (RoFormer) "
        "or by the modelling file; nothing of it is trained."
    )
    works = (MARON, LEWIS, ROFORMER)
    compared = {
        "context": Compared(),
        "context-whole": Compared({"context_window": 0.0}),
        "context-shared": Compared({"vocabulary": SHARED}),
        "refine-mlp-context": Compared({"refine_mlp": True}),
        "oracle-context": Compared(oracle=True),
    }
    statistics = COUNTS
    is_linear = False

    def problem(self, values: Settings) -> Problem | None:
        if not values["refine"]:
            return None
        return Problem(
            ("refine", "router"),
            f"router method {self.name!r} is made from counts of tokens, which no pass through a model changes",
            f"drop --refine, or choose --router {SOLVES_AGAIN}",
        )
