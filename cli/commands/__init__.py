"""The commands of `reg`, one per module."""
