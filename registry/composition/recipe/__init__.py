"""Recipes: their options, checks and documents."""
