"""The `reg` command: parse, call the library, print. One noun or verb per file."""
