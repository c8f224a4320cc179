"""Compositions side by side, and which of them is better on the same text."""
