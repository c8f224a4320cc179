"""The mathematics, pure: torch and the standard library, no file, database or model.

Symbols: H hidden size, E experts, T tokens, `lam` ridge strength, `k` experts per token.
"""
