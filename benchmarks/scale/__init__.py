"""Arithmetic of large registries: bytes and times of a thousand experts, from shapes and from rates measured here."""
