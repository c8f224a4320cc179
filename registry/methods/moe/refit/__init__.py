"""Refits of a composition: maps solved again on the stream that the composed model gives."""
