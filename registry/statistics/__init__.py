"""Statistics of one expert: the forward pass that collects them, and their file."""
