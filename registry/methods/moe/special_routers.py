"""Routers that not every host carries exactly: with a bias, or with the weights of the softmax over all experts."""

from collections.abc import Sequence
from dataclasses import replace

from registry.composition.recipe.recipe import Recipe
from registry.errors import UnsupportedFamilyError
from registry.families import Translation
from registry.hosts.host import NORM_TOPK_PROB
from registry.hosts.remote_code import REMOTE_CODE, biased_code_host, softmax_topk_code_host
from registry.member import Member
from registry.methods.moe.options import SOFTMAX_TOPK

_BIAS_NOTE = (
    "its routers have a bias, which no native architecture carries: its modelling file does, and it loads with "
    "trust_remote_code=True"
)


def has_router_bias(members: Sequence[Member], recipe: Recipe) -> bool:
    """Tell whether routers of trained rows add a number other than 0 to a logit, trained with a row or asked for."""
    if recipe.router_method is None or not recipe.router_method.is_trained:
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
    return replace(translation, host=host, notes=(*translation.notes, _BIAS_NOTE))


def with_softmax_topk(translation: Translation, lead: Member, *, bias: bool) -> Translation:
    """Return a translation whose experts keep the weights of the softmax over all of them.

    Args:
        translation: that to the same host with weights that add up to 1.
        lead: the member whose family is carried.
        bias: routers have a bias.

    Raises:
        UnsupportedFamilyError: the class of the host makes them add up to 1 all the same.
    """
    host, family = translation.host, lead.family
    if host.files:
        kept = softmax_topk_code_host(family.model_type, family.class_name, family.layers, bias=bias)
        return replace(translation, host=kept)
    if not host.obeys_norm_topk_prob:
        fitting = [name for name, one in lead.hosts.items() if one.host.obeys_norm_topk_prob]
        remote = "--remote-code, a modelling file in the folder"
        raise UnsupportedFamilyError(
            f"host {host.model_type!r} makes the weights of a token's experts add up to 1, which gating "
            f"{SOFTMAX_TOPK!r} does not",
            f"choose --host {fitting[0]}, or {remote}" if fitting else f"add {remote}",
        )
    return replace(translation, host=replace(host, config=lambda *sizes: host.config(*sizes) | {NORM_TOPK_PROB: False}))
