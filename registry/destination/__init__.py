"""Destinations of compositions, a folder or a prefix of a bucket; and reading compositions back from there."""
