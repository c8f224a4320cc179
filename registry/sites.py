"""Sites: the points in the network where statistics are taken."""

MLP_INPUT = "mlp_input"
"""What the MLP of a layer, and so the router that takes its place, sees."""
