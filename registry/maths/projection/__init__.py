"""Members of different sizes between one embedding and one head: projectors and the router of a sequence."""
