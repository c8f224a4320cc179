"""JSON schemas of what commands print."""
