"""One dense model made of several."""
