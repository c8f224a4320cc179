"""Folders of members of several architectures between one embedding and one head."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from registry.errors import CheckpointError
from registry.io.untrusted import COUNT, LABEL, SWITCH, Kind, list_of, some_fields
from registry.runtime.sequence_hosts import FACTOR, HINT, MOST_TOKENS, POSITIVE, SequenceHost, check_member_configs

HETERO = "ensemble_hetero"
"""Their `model_type`."""
MODELLING_FILE = Path(__file__).with_name("modeling_hetero.py")
_OF_HETERO = {
    "members": list_of(LABEL),
    "routing": Kind("sequence", lambda value: value == "sequence"),
    "routing_temperature": POSITIVE,
    "routing_tokens": COUNT,
    "routing_top_k": COUNT,
    "input_projectors": list_of(SWITCH),
    "output_projectors": list_of(SWITCH),
    "logit_scale": FACTOR,
    "logits_scaling": FACTOR,
    "final_logit_softcapping": FACTOR,
}


class HeteroHost(SequenceHost):
    """Members of several architectures."""

    model_type = HETERO
    files = (MODELLING_FILE,)

    def check(self, config: Mapping[str, Any], where: str) -> None:
        own = some_fields(config, _OF_HETERO, where, hint=HINT)
        members, tokens, wrong = len(own["members"]), own["routing_tokens"], ""
        if not 1 <= own["routing_top_k"] <= members:
            wrong = f"routing_top_k is {own['routing_top_k']}, it must be from 1 to {members}, the number of members"
        elif tokens == 1 or tokens > MOST_TOKENS:
            wrong = f"routing_tokens is {tokens}, it must be 0, or from 2 to {MOST_TOKENS:,}"
        for key in ("input_projectors", "output_projectors"):
            if len(own[key]) != members:
                wrong = wrong or f"{key} has {len(own[key])} values, expected {members}, one a member"
        if wrong:
            raise CheckpointError(f"{where}: {wrong}", HINT)
        check_member_configs(config, where)
