"""Keeping a home in order: verification, garbage, the schema, the environment."""
