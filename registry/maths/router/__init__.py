"""Router methods: one file a method, one line a method in `ROUTERS`."""

from registry.maths.router.balance import balanced
from registry.maths.router.domain_embedding import domain_embedding
from registry.maths.router.method import BASE, OWN, RouterInputs, RouterMethod
from registry.maths.router.random import random
from registry.maths.router.ridge import ridge

ROUTERS = {
    "ridge": RouterMethod(
        lambda given: ridge(given.statistics, given.weights, given.lam, given.normalize),
        OWN,
        frozenset({"lam", "weights", "normalize"}),
    ),
    "domain-embedding": RouterMethod(
        lambda given: domain_embedding(given.statistics, given.lam, given.bias, given.normalize),
        BASE,
        frozenset({"lam", "bias", "normalize"}),
    ),
    "random": RouterMethod(
        lambda given: random(given.digests, given.hidden_size, given.layer, given.seed, given.normalize),
        None,
        frozenset({"seed", "normalize"}),
    ),
}
"""Name in a recipe → the method that makes one layer's gate."""

NEEDS_COUNTS: frozenset[str] = frozenset()
"""Router methods that need how often each member's calibration used each token."""

__all__ = ["BASE", "NEEDS_COUNTS", "OWN", "ROUTERS", "RouterInputs", "RouterMethod", "balanced"]
