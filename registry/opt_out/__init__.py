"""Withdrawing a version, and the receipt of it."""
