"""Suggestions: which experts to compose for a text, from counts of tokens alone."""
