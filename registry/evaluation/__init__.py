"""Evaluating: perplexity and normalised score per domain, routing, cost, methods side by side, continual learning."""

from registry.evaluation.continual import Continual
from registry.evaluation.methods import METHODS, Method
from registry.evaluation.rows import Row, Spread, TestSettings
from registry.evaluation.scoring import perplexities
from registry.evaluation.table import evaluate
from registry.evaluation.text import test_windows

__all__ = [
    "METHODS",
    "Continual",
    "Method",
    "Row",
    "Spread",
    "TestSettings",
    "evaluate",
    "perplexities",
    "test_windows",
]
