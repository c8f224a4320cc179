"""Checks of the `config.json` of a folder of whole members, their bodies or a SIMoE, which may come from anywhere."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from registry.errors import CheckpointError
from registry.families import FAMILIES
from registry.hosts.remote_code import FAMILIES_ENSEMBLE, HETERO, SIMOE
from registry.io.untrusted import COUNT, LABEL, OBJECT, SWITCH, Kind, fields, list_of, maybe
from registry.runtime.ensemble_config import check_ensemble_config
from registry.runtime.stored_sizes import check_stored_sizes

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
_OF_SIMOE = {"members": list_of(LABEL), "prompt_tokens": COUNT, "interpolated_layers": list_of(LABEL)}


def check_members(folder: Path, config: Mapping[str, Any]) -> None:
    """Check the `config.json` of a folder that holds members beside one another, not as experts of its layers.

    Args:
        folder: an ensemble, of one architecture or several, or a SIMoE; with this program's own modelling file.
        config: the content of its `config.json`, untrusted.

    Raises:
        CheckpointError: a key is missing, its value is of another kind or does not fit the others, or a size is beyond
            what the folder's tensors can have.
    """
    where = str(folder / "config.json")
    if str(config["model_type"]).startswith(SIMOE):
        check_stored_sizes(folder, [config], where)
        _check_simoe(config, where)
    else:
        check_whole_members(config, where)
        check_stored_sizes(folder, [config, *config.get("member_configs", ())], where)


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


def _check_simoe(config: Mapping[str, Any], where: str) -> None:
    given = fields({key: config[key] for key in _OF_SIMOE if key in config}, _OF_SIMOE, where, hint=_HINT)
    family, tokens = FAMILIES[config["model_type"].removeprefix(SIMOE)], given["prompt_tokens"]
    try:
        names = family.layer_matrices(family.architecture(config))
    except ValueError as error:
        raise CheckpointError(f"{where}: {error}", _HINT) from error
    layers = [family.renamed.get(name, name).removesuffix(".weight") for name in names]
    if not 1 <= tokens <= _MOST_TOKENS:
        raise CheckpointError(f"{where}: prompt_tokens is {tokens}, it must be from 1 to {_MOST_TOKENS:,}", _HINT)
    if not given["members"]:
        raise CheckpointError(f"{where}: members is empty, expected one name or more", _HINT)
    if given["interpolated_layers"] != layers:
        own, expected = given["interpolated_layers"], len(layers)
        strange = next((name for name in own if name not in layers), None)
        problem = f"has {len(own)} names, expected {expected}" if strange is None else f"names {strange[:80]!r}"
        raise CheckpointError(
            f"{where}: interpolated_layers {problem}: all linear layers of attention and MLPs, in their order", _HINT
        )


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
