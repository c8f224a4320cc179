"""Compositions whose weights were trained: the files of their parent with some tensors replaced."""
