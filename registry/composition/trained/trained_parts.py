"""The parts of a mixture that a training changes."""

ROUTERS, MLPS, ALL = "routers", "mlps", "all"
NAMED = {
    ROUTERS: ("routers alone", "The routers were then trained on the language-model loss; no other weight was."),
    MLPS: (
        "the experts' MLPs and the routers",
        "The experts' MLPs and the routers were then trained on the language-model loss; no other weight was.",
    ),
    ALL: ("all weights", "All weights were then trained on the language-model loss."),
}
"""What trained → its names in a row and in a sentence of the model card."""
