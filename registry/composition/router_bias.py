"""Routers with a bias: which compositions have one, and the host that carries it exactly."""

from collections.abc import Sequence
from dataclasses import replace

from registry.composition.recipe import Recipe
from registry.composition.recipe.recipe_fields import FROM_ROWS
from registry.errors import UnsupportedFamilyError
from registry.families import Translation
from registry.hosts.remote_code import REMOTE_CODE, biased_code_host
from registry.member import Member

_NOTE = (
    "its routers have a bias, which no native architecture carries: its modelling file does, and it loads with "
    "trust_remote_code=True"
)


def has_router_bias(members: Sequence[Member], recipe: Recipe) -> bool:
    """Tell whether routers of trained rows add a number other than 0 to a logit, trained with a row or asked for."""
    if recipe.to != "moe" or recipe.router not in FROM_ROWS:
        return False
    layers = range(members[0].architecture.num_hidden_layers)
    return any(recipe.bias.values()) or any(member.router_bias(layer) for member in members for layer in layers)


def host_of_bias(host: str | None) -> str:
    """Return the host of routers with a bias, as recipes call it.

    Raises:
        UnsupportedFamilyError: another host was asked for.
    """
    if host not in (None, REMOTE_CODE):
        raise UnsupportedFamilyError(
            f"host {host!r} has no router bias, and this composition has one",
            "drop --host: the folder then carries a modelling file; or drop --bias",
        )
    return REMOTE_CODE


def with_router_bias(translation: Translation, lead: Member) -> Translation:
    """Return a translation to the modelling file whose routers have a bias.

    Args:
        translation: that of the modelling file without.
        lead: the member whose family is carried.
    """
    family = lead.family
    host = biased_code_host(family.model_type, family.class_name, family.layers)
    return replace(translation, host=host, notes=(*translation.notes, _NOTE))
