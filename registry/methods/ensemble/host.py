"""Folders of ensembles: their modelling files, and the keys of `config.json` that say how members are mixed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from registry.errors import CheckpointError
from registry.io.untrusted import COUNT, LABEL, Kind, list_of, maybe, some_fields
from registry.methods.ensemble.output import MIXING, PROMPT_PERPLEXITY, ROUTINGS
from registry.runtime.sequence_hosts import MOST_TOKENS, POSITIVE, SequenceHost, check_member_configs, one_of

ENSEMBLE = "ensemble_"
"""Prefix of an ensemble's `model_type`, before that of the dense model."""
FAMILIES_ENSEMBLE = "ensemble_families"
"""The `model_type` of an ensemble whose members differ in family or size."""
WHOLE, MIXED, FAMILIES = (Path(__file__).with_name(f"modeling_{kind}.py") for kind in ("ensemble", "mixed", "families"))
"""Modelling files: of plain ensembles, of those weighed by the prompt or mixed by logits, and of several families."""

_HINT = "compose it again: reg compose --to ensemble, or copy the folder again"
_OF_ENSEMBLE = {
    "members": list_of(LABEL),
    "routing": one_of(*ROUTINGS),
    "routing_prior": maybe(list_of(POSITIVE)),
    "routing_temperature": POSITIVE,
    "routing_tokens": maybe(COUNT),
    "routing_top_k": COUNT,
    "shared_tensors": Kind(
        "an object of lists of counts",
        lambda value: isinstance(value, dict) and all(list_of(COUNT).holds(owners) for owners in value.values()),
    ),
    "mixing": one_of(*MIXING.choices),
}


class EnsembleHost(SequenceHost):
    """Ensembles of one architecture."""

    model_type = ENSEMBLE
    files: ClassVar[tuple[Path, ...]] = (WHOLE, MIXED)

    def check(self, config: Mapping[str, Any], where: str) -> None:
        module = str((config.get("auto_map") or {}).get("AutoModelForCausalLM")).partition(".")[0]
        mixes = module in (MIXED.stem, FAMILIES.stem)
        keys = some_fields(config, _OF_ENSEMBLE, where, optional=() if mixes else ("mixing",), hint=_HINT)
        members, routing, tokens = len(keys["members"]), keys["routing"], keys["routing_tokens"]
        whole = members + ROUTINGS[routing].needs_base
        least = 0 if routing == PROMPT_PERPLEXITY else 2
        wrong = ""
        if not 1 <= keys["routing_top_k"] <= members:
            wrong = f"routing_top_k is {keys['routing_top_k']}, it must be from 1 to {members}, the number of members"
        elif keys["routing_prior"] is not None and len(keys["routing_prior"]) != members:
            wrong = f"routing_prior has {len(keys['routing_prior'])} numbers, expected {members}, one a member"
        elif routing == PROMPT_PERPLEXITY and not mixes:
            wrong = f"routing {routing!r} needs {MIXED.name}"
        elif ROUTINGS[routing].by_first_tokens and (tokens in (None, 1) or not least <= tokens <= MOST_TOKENS):
            wrong = f"routing_tokens is {tokens}, it must be from 2 to {MOST_TOKENS:,}"
        for name, owners in keys["shared_tensors"].items():
            if len(owners) != whole or any(owner >= whole or owners[owner] != owner for owner in owners):
                wrong = wrong or (
                    f"shared_tensors of {name[:80]} is {str(owners)[:80]}, expected {whole} numbers of models that "
                    "keep their own"
                )
        if wrong:
            raise CheckpointError(f"{where}: {wrong}", _HINT)


class FamiliesHost(EnsembleHost):
    """Ensembles whose members differ in family or size."""

    model_type = FAMILIES_ENSEMBLE
    files = (FAMILIES,)

    def check(self, config: Mapping[str, Any], where: str) -> None:
        super().check(config, where)
        check_member_configs(config, where)
