"""Sites: the points in the network where statistics are taken."""

MLP_INPUT = "mlp_input"
"""What the MLP of a layer, and so the router that takes its place, sees."""

ATTENTION_INPUT = "attention_input"
"""What the query, key and value projections of a layer see."""

ATTENTION_OUTPUT = "attention_output"
"""What the output projection of a layer's attention sees: the heads' outputs, side by side."""

HEAD_INPUT = "head_input"
"""What the head sees; there is one for the whole network, counted as layer 0."""

TOKEN_COUNTS = "token_counts"
"""Beside the sites: how often each token came in the calibration."""

SITES = {
    "all": (MLP_INPUT, ATTENTION_INPUT, ATTENTION_OUTPUT, HEAD_INPUT),
    "router": (MLP_INPUT,),
}
"""What a pass takes: all that any method needs, or only what routers need."""
