"""Experts of a real chat model, by every method that people would choose from."""
