"""Options that several outputs have; each may have another default of them."""

from registry.composition.option import Limits, Option, OptionKind
from registry.io.dtypes import WEIGHT_DTYPES

TRUNK_OPTIONS = "trunk_options"
"""Key of a recipe that holds the numbers of its trunk method."""
FIRST = "the first method"
"""Default of an option whose values are methods: the first of these."""

WINDOW = 64.0
"""τ of the window by default, in tokens.

*Measured*, whole text and the first 32 tokens after a change of subject: near experts 91.2 and 52.7 (over the whole
text so far 91.3 and 32.7), far ones 86.6 and 45.8 (86.4 and 25.3), experts with look-alikes 81.2 and 42.7 (81.1 and
20.6). 24 tokens gain 4 to 7 points after a change, and cost 0.3 to 0.9 on whole text.
"""

KEPT = 0.9
"""Share of the change of an expert that was trained in full which is kept at low rank where no rank is given."""

TO = Option(
    "to", OptionKind.CHOICE, "What to make: {choices}.", "OUTPUT", noun="output", label="Make"
)  # fmt: skip

TRUNK = Option(
    "trunk", OptionKind.CHOICE,
    "Trunk method: {choices}. In an ensemble, the members then share one trunk and keep their MLPs.", "METHOD",
    default=FIRST, noun="trunk method", label="Trunk",
    note="combines the experts’ weights outside the MLPs, for a dense model all weights; by default {default}",
)  # fmt: skip

ROUTER = Option(
    "router", OptionKind.CHOICE, "Router method: {choices}.", "METHOD", default=FIRST, noun="router method",
    label="Router", note="decides which experts a token goes to; this is how it is made",
)  # fmt: skip

TOP_K = Option(
    "top_k", OptionKind.WHOLE, "Experts per token.", "N", limits=Limits(1.0), noun="top-k", label="Experts per token",
    unset="all", note="how many experts each token goes to; by default {default}",
)  # fmt: skip

TEMPERATURE = Option(
    "temperature", OptionKind.NUMBER, "Divides the router logits.", "X", default=0.05, limits=Limits(0.0, above=True),
    label="Temperature", note="the lower, the more the best expert counts; by default {default}", advanced=True,
)  # fmt: skip

WEIGHTS = Option(
    "weights", OptionKind.BY_MEMBER, "Members' weights in every sum over them.", "A=W,…", default={}, unset="1",
    limits=Limits(0.0, above=True), noun="weight",
)  # fmt: skip

BALANCE = Option(
    "balance", OptionKind.CHOICE, "none, or tokens: divide each member's statistics by its share of the tokens.", "HOW",
    default="none", choices=("none", "tokens"), label="Balance",
    note="none: members with more text count more; tokens: all count the same", advanced=True,
)  # fmt: skip

DTYPE = Option(
    "dtype", OptionKind.CHOICE, "bfloat16, float16 or float32: what the folder is written in.", "DTYPE",
    unset="the members' own", choices=WEIGHT_DTYPES, label="Written in",
    note="the number format of the weights; by default the members’ own", advanced=True,
)  # fmt: skip

ROUTING_TOKENS = Option(
    "routing_tokens", OptionKind.WHOLE,
    "For prompt-perplexity, task-vector and hetero: how many first tokens decide, 2 or more; of all but task-vector "
    "also 0, for the whole prompt, in generation alone.", "N", default=32, limits=Limits(0.0), noun="routing-tokens",
    advanced=True,
)  # fmt: skip

CONTEXT_WINDOW = Option(
    "context_window", OptionKind.NUMBER,
    "how far back evidence counts, in tokens; 0 for the whole text so far.", "TOKENS", default=WINDOW,
    limits=Limits(0.0, 1e6), noun="context-window", label="Context window", advanced=True,
    note="about how many tokens back the context router looks; 0: the whole text so far",
)  # fmt: skip
