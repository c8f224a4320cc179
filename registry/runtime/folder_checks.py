"""Checks of a model folder by its `config.json`, which may come from anywhere, before torch or transformers read it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from registry.checkpoint.model_files import read_config
from registry.errors import CheckpointError, InvalidInputError
from registry.families import FAMILIES
from registry.hosts.context import CONTEXT_LAYERS
from registry.hosts.remote_code import ENSEMBLE, FAMILIES_ENSEMBLE, FAMILIES_MODULE, HETERO, MIXED_MODULE, SIMOE
from registry.io.safetensors_file import read_header
from registry.io.untrusted import COUNT, LABEL, OBJECT, SWITCH, Kind, fields, list_of, maybe

_HINT = "compose it again, or copy the folder again"
_ENSEMBLE_HINT = "compose it again: reg compose --to ensemble, or copy the folder again"
_ROUTED_HINT = "name a mixture, an ensemble or a SIMoE: reg compose --experts A,B --out DIR"
_MOST_TOKENS = 2**24
_OF_MIXED = "prompt-perplexity"
_BY_BASE = "task-vector"
_MIXING_MODULES = (MIXED_MODULE, FAMILIES_MODULE)
_LAYERS = "num_hidden_layers"
_WIDTHS = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -math.inf < value < math.inf


def _one_of(*words: str) -> Kind:
    return Kind(f"one of {', '.join(words)}", lambda value: isinstance(value, str) and value in words)


_POSITIVE = Kind("a finite number, more than 0", lambda value: _is_number(value) and value > 0)
_FACTOR = maybe(Kind("a finite number other than 0", lambda value: _is_number(value) and value != 0))
_CONFIGS = {"member_configs": list_of(OBJECT)}
_OF_ENSEMBLE = {
    "members": list_of(LABEL),
    "routing": _one_of("posterior", "perplexity", _OF_MIXED, _BY_BASE),
    "routing_prior": maybe(list_of(_POSITIVE)),
    "routing_temperature": _POSITIVE,
    "routing_tokens": maybe(COUNT),
    "routing_top_k": COUNT,
    "shared_tensors": Kind(
        "an object of lists of counts",
        lambda value: isinstance(value, dict) and all(list_of(COUNT).holds(owners) for owners in value.values()),
    ),
    "mixing": _one_of("probabilities", "logits"),
}
_OF_HETERO = {
    "members": list_of(LABEL),
    "routing": Kind("sequence", lambda value: value == "sequence"),
    "routing_temperature": _POSITIVE,
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
    if config["model_type"] == HETERO:
        _check_hetero(config, where)
    else:
        check_ensemble_config(config, where)
    if config["model_type"] not in (HETERO, FAMILIES_ENSEMBLE):
        return
    configs = _given(config, _CONFIGS, where)
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


def check_ensemble_config(config: Mapping[str, Any], where: str) -> None:
    """Check the keys that say how an ensemble mixes its members.

    Args:
        config: the content of `config.json`, untrusted.
        where: the file's name in messages.

    Raises:
        CheckpointError: a key is missing, or its value is of another kind or does not fit the others.
    """
    mixes = str((config.get("auto_map") or {}).get("AutoModelForCausalLM")).partition(".")[0] in _MIXING_MODULES
    given = _given(config, _OF_ENSEMBLE, where, optional=() if mixes else ("mixing",), hint=_ENSEMBLE_HINT)
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
        raise CheckpointError(f"{where}: {wrong}", _ENSEMBLE_HINT)


def _given(
    config: Mapping[str, Any],
    kinds: Mapping[str, Kind],
    where: str,
    *,
    optional: tuple[str, ...] = (),
    hint: str = _HINT,
) -> dict[str, Any]:
    """Return the keys of a configuration that are of some kinds (errors as `fields`)."""
    return fields({key: config[key] for key in kinds if key in config}, kinds, where, optional=optional, hint=hint)


def _check_simoe(config: Mapping[str, Any], where: str) -> None:
    given = _given(config, _OF_SIMOE, where)
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
    given = _given(config, _OF_HETERO, where)
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


def check_stored_sizes(folder: Path, configs: Iterable[Mapping[str, Any]], where: str) -> None:
    """Check that no size in a folder's configurations is beyond what its tensors can have.

    Making a model takes time for each layer and memory for each width, whatever is stored.

    Args:
        folder: the model's folder.
        configs: the configurations of all models in it, untrusted.
        where: the file's name in messages.

    Raises:
        CheckpointError: a number of layers is beyond that of the tensors, or a width beyond all of theirs.
    """
    shapes = [entry.shape for path in folder.glob("*.safetensors") for entry in read_header(path).tensors.values()]
    if not shapes:
        return  # what is missing is said where weights are read
    widest = max((size for shape in shapes for size in shape), default=0)
    for config in configs:
        for name in (_LAYERS, *_WIDTHS):
            size, most = config.get(name), len(shapes) if name == _LAYERS else widest
            if isinstance(size, int | float) and not size <= most:
                held = f"{most:,} tensors" if name == _LAYERS else f"tensors of at most {most:,} rows or columns"
                raise CheckpointError(f"{where}: {name} is {size}, and the folder has {held}", _HINT)


def check_routed(folder: Path, layers: Sequence[int] = ()) -> None:
    """Check that a folder holds a model of several experts, and has some layers; the Hub is never asked.

    Layers that context routing adds do not count. An ensemble or a SIMoE, whose layers are not counted here, is not
    checked for them.

    Raises:
        CheckpointError: it is no folder, or holds no model.
        InvalidInputError: its model is dense, or a mixture without one of `layers`.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder", _ROUTED_HINT)
    config = read_config(folder)
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in FAMILIES:
        raise InvalidInputError(f"{folder} holds a dense model, of type {kind}, which routes no token", _ROUTED_HINT)
    depth, added = config.get("num_hidden_layers"), config.get(CONTEXT_LAYERS)
    if str(kind).startswith((ENSEMBLE, SIMOE)) or type(depth) is not int:
        return
    depth -= len(added) if isinstance(added, list) else 0
    if wrong := [layer for layer in layers if layer >= depth]:
        raise InvalidInputError(
            f"there is no layer {wrong[0]} in {folder}, which has {depth}", f"choose one from 0 to {depth - 1}"
        )
