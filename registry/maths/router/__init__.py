"""Router methods: one file a method, one line a method in `ROUTERS`."""

from registry.maths.router.anchored import anchored
from registry.maths.router.balance import balanced
from registry.maths.router.domain_embedding import domain_embedding
from registry.maths.router.method import BASE, COUNTS, OWN, RouterInputs, RouterMethod
from registry.maths.router.random import random
from registry.maths.router.ridge import ridge_of_sum

ROUTERS = {
    "ridge": RouterMethod(
        lambda given: ridge_of_sum(given.total(), given.lam, given.normalize),
        OWN,
        frozenset({"lam", "weights", "normalize"}),
    ),
    "context": RouterMethod(None, COUNTS, frozenset({"context_window", "vocabulary"})),
    "domain-embedding": RouterMethod(
        lambda given: domain_embedding(given.statistics, given.lam, given.bias, given.normalize),
        BASE,
        frozenset({"lam", "bias", "normalize"}),
    ),
    # Its bias is a tensor of its own, which no gate.weight holds.
    "anchored": RouterMethod(lambda given: anchored(given.rows()), None, frozenset({"bias"})),
    "random": RouterMethod(
        lambda given: random(given.digests, given.hidden_size, given.layer, given.seed, given.normalize),
        None,
        frozenset({"seed", "normalize"}),
    ),
}
"""Name in a recipe → the method that makes the gates."""

__all__ = ["BASE", "COUNTS", "OWN", "ROUTERS", "RouterInputs", "RouterMethod", "balanced"]
