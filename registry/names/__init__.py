"""References to versions: parsing, resolution and suggestions."""
