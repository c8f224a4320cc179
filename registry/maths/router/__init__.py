"""Mathematics of router methods: statistics, or rows, become the gate of a layer."""
