"""Checks of the `config.json` of a folder whose members differ in architecture, which may come from anywhere."""

import math
from collections.abc import Mapping
from typing import Any

from registry.errors import CheckpointError
from registry.families import FAMILIES
from registry.hosts.remote_code import FAMILIES_ENSEMBLE, HETERO
from registry.io.schema import COUNT, LABEL, OBJECT, SWITCH, Kind, fields, list_of, maybe
from registry.runtime.ensemble_config import check_ensemble_config

_HINT = "compose it again, or copy the folder again"
_MOST_TOKENS = 2**24


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -math.inf < value < math.inf


_FACTOR = maybe(Kind("a finite number other than 0", lambda value: _is_number(value) and value != 0))
_CONFIGS = {"member_configs": list_of(OBJECT)}
_OF_HETERO = {
    "members": list_of(LABEL),
    "routing": Kind("sequence", lambda value: value == "sequence"),
    "routing_temperature": Kind("a finite number, more than 0", lambda value: _is_number(value) and value > 0),
    "routing_tokens": COUNT,
    "routing_top_k": COUNT,
    "input_projectors": list_of(SWITCH),
    "output_projectors": list_of(SWITCH),
    "logit_scale": _FACTOR,
    "logits_scaling": _FACTOR,
    "final_logit_softcapping": _FACTOR,
}


def check_whole_members(config: Mapping[str, Any], where: str) -> None:
    """Check the own keys of a folder that holds whole members or their bodies, of one architecture or several.

    Args:
        config: the content of `config.json`, untrusted.
        where: the file's name in messages.

    Raises:
        CheckpointError: a key is missing, or its value is of another kind or does not fit the others.
    """
    if config["model_type"] not in (HETERO, FAMILIES_ENSEMBLE):
        check_ensemble_config(config, where)
        return
    if config["model_type"] == FAMILIES_ENSEMBLE:
        check_ensemble_config(config, where)
    else:
        _check_hetero(config, where)
    configs = fields({key: config[key] for key in _CONFIGS if key in config}, _CONFIGS, where, hint=_HINT)
    members = len(config["members"])
    if len(configs["member_configs"]) != members:
        raise CheckpointError(
            f"{where}: member_configs has {len(configs['member_configs'])} configurations, expected {members}, one a "
            "member",
            _HINT,
        )
    for own in configs["member_configs"]:
        family = FAMILIES.get(str(own.get("model_type")))
        try:
            if family is None:
                raise ValueError(f"model type {str(own.get('model_type'))[:80]!r} is not one of {', '.join(FAMILIES)}")
            family.architecture(own)
        except ValueError as error:
            raise CheckpointError(f"{where}, member_configs: {error}", _HINT) from error


def _check_hetero(config: Mapping[str, Any], where: str) -> None:
    given = fields({key: config[key] for key in _OF_HETERO if key in config}, _OF_HETERO, where, hint=_HINT)
    members, tokens, wrong = len(given["members"]), given["routing_tokens"], ""
    if not 1 <= given["routing_top_k"] <= members:
        wrong = f"routing_top_k is {given['routing_top_k']}, it must be from 1 to {members}, the number of members"
    elif tokens == 1 or tokens > _MOST_TOKENS:
        wrong = f"routing_tokens is {tokens}, it must be 0, or from 2 to {_MOST_TOKENS:,}"
    for key in ("input_projectors", "output_projectors"):
        if len(given[key]) != members:
            wrong = wrong or f"{key} has {len(given[key])} values, expected {members}, one a member"
    if wrong:
        raise CheckpointError(f"{where}: {wrong}", _HINT)
