"""Model cards of composed folders."""
