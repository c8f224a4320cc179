"""Context routing: evidence of tokens, its recent mean, and how attention computes that mean."""
