"""Feeds every parser inputs that nobody should write."""
