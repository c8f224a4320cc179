"""One file a revision; every table is spelled out, nothing of the program is imported."""
