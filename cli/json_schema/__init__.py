"""JSON schemas of the commands' output."""
