"""Members of different architectures between one embedding and one head."""
