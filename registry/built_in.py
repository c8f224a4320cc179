"""The table of built-in methods: module and class of everything that is found by name, and not imported by it."""

from functools import cache
from importlib import import_module
from typing import Any

METHODS = (
    "registry.methods.moe.output:Moe",
    "registry.methods.dense.output:Dense",
    "registry.methods.ensemble.output:Ensemble",
    "registry.methods.hetero.output:Hetero",
    "registry.methods.simoe.output:Simoe",
    "registry.methods.adapters.output:Adapters",
    "registry.methods.moe.trunks:RegMean",
    "registry.methods.moe.trunks:Mean",
    "registry.methods.moe.trunks:Base",
    "registry.methods.moe.trunks:Ties",
    "registry.methods.moe.trunks:Dare",
    "registry.methods.moe.trunks:TaskArithmetic",
    "registry.methods.moe.routers:Context",
    "registry.methods.moe.routers:Ridge",
    "registry.methods.moe.routers:DomainEmbedding",
    "registry.methods.moe.routers:Anchored",
    "registry.methods.moe.routers:Random",
)
"""Outputs, trunks and routers (`composition/method.py`), the default of each kind first."""

JOINT_TRAININGS = ("registry.methods.soup.versions:SoupVersions", "registry.methods.simoe.versions:SimoeVersions")
"""What versions of trainings of several experts keep (`checkpoint/joint_training.py`)."""

SEQUENCE_HOSTS = (
    "registry.methods.hetero.host:HeteroHost",
    "registry.methods.ensemble.host:FamiliesHost",
    "registry.methods.ensemble.host:EnsembleHost",
    "registry.methods.simoe.host:SimoeHost",
    "registry.methods.adapters.host:AdaptersHost",
)
"""Hosts that weigh members by each sequence's text (`runtime/sequence_hosts.py`)."""


@cache
def instances(places: tuple[str, ...]) -> tuple[Any, ...]:
    """Return the one instance of each class of a table, in its order."""
    named = (place.partition(":") for place in places)
    return tuple(getattr(import_module(module), name)() for module, _, name in named)
