"""From what a user types to a version."""
