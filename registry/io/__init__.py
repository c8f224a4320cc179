"""Reading and writing files: limits, formats, atomic writes, locks."""
