"""Where compositions are written to: a folder, or a prefix of a bucket; and reading them back from there."""
