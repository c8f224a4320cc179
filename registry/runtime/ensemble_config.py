"""Checks of the `config.json` of an ensemble's folder, which may come from anywhere: its own keys and their values."""

import math
from collections.abc import Mapping
from typing import Any

from registry.errors import CheckpointError
from registry.hosts.remote_code import FAMILIES_MODULE, MIXED_MODULE
from registry.io.untrusted import COUNT, LABEL, Kind, fields, list_of, maybe

_HINT = "compose it again: reg compose --to ensemble, or copy the folder again"
_MOST_TOKENS = 2**24
_OF_MIXED = "prompt-perplexity"
_BY_BASE = "task-vector"
_ROUTINGS = ("posterior", "perplexity", _OF_MIXED, _BY_BASE)
_MIXINGS = ("probabilities", "logits")
_MIXING_MODULES = (MIXED_MODULE, FAMILIES_MODULE)


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _one_of(words: tuple[str, ...]) -> Kind:
    return Kind(f"one of {', '.join(words)}", lambda value: isinstance(value, str) and value in words)


_POSITIVE = Kind("a finite number, more than 0", _is_positive)
_KINDS = {
    "members": list_of(LABEL),
    "routing": _one_of(_ROUTINGS),
    "routing_prior": maybe(list_of(_POSITIVE)),
    "routing_temperature": _POSITIVE,
    "routing_tokens": maybe(COUNT),
    "routing_top_k": COUNT,
    "shared_tensors": Kind(
        "an object of lists of counts",
        lambda value: isinstance(value, dict) and all(list_of(COUNT).holds(owners) for owners in value.values()),
    ),
    "mixing": _one_of(_MIXINGS),
}


def check_ensemble_config(config: Mapping[str, Any], where: str) -> None:
    """Check the keys that say how an ensemble mixes its members.

    Args:
        config: the content of `config.json`, untrusted.
        where: the file's name in messages.

    Raises:
        CheckpointError: a key is missing, or its value is of another kind or does not fit the others.
    """
    own = {key: config[key] for key in _KINDS if key in config}
    mixes = str((config.get("auto_map") or {}).get("AutoModelForCausalLM")).partition(".")[0] in _MIXING_MODULES
    given = fields(own, _KINDS, where, optional=() if mixes else ("mixing",), hint=_HINT)
    members, routing, tokens = len(given["members"]), given["routing"], given["routing_tokens"]
    whole = members + (routing == _BY_BASE)
    by_first_tokens = routing in (_OF_MIXED, _BY_BASE)
    least = 0 if routing == _OF_MIXED else 2
    wrong = ""
    if not 1 <= given["routing_top_k"] <= members:
        wrong = f"routing_top_k is {given['routing_top_k']}, it must be from 1 to {members}, the number of members"
    elif given["routing_prior"] is not None and len(given["routing_prior"]) != members:
        wrong = f"routing_prior has {len(given['routing_prior'])} numbers, expected {members}, one a member"
    elif routing == _OF_MIXED and not mixes:
        wrong = f"routing {routing!r} needs {MIXED_MODULE}.py"
    elif by_first_tokens and (tokens is None or tokens == 1 or not least <= tokens <= _MOST_TOKENS):
        wrong = f"routing_tokens is {tokens}, it must be from {max(2, least)} to {_MOST_TOKENS:,}"
    for name, owners in given["shared_tensors"].items():
        if len(owners) != whole or any(owner >= whole or owners[owner] != owner for owner in owners):
            wrong = wrong or (
                f"shared_tensors of {name[:80]} is {str(owners)[:80]}, expected {whole} numbers of models that keep "
                "their own"
            )
    if wrong:
        raise CheckpointError(f"{where}: {wrong}", _HINT)
