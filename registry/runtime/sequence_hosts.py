"""Hosts whose modelling file weighs members, or what they add to one model, by each sequence's text.

Each method with such folders implements `SequenceHost`; `built_in.py` has the table. A folder's `config.json` may come
from anywhere, so it is checked before torch or transformers read it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from registry.built_in import SEQUENCE_HOSTS, instances
from registry.errors import CheckpointError
from registry.families import FAMILIES, family_of
from registry.hosts.remote_code import modelling_file
from registry.io.untrusted import OBJECT, Kind, list_of, maybe, some_fields

HINT = "compose it again, or copy the folder again"
MOST_TOKENS = 2**24  # the largest number of first tokens that a folder may weigh its members by


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -math.inf < value < math.inf


def one_of(*words: str) -> Kind:
    """Return the kind of a key that has one of some words."""
    return Kind(f"one of {', '.join(words)}", lambda value: isinstance(value, str) and value in words)


POSITIVE = Kind("a finite number, more than 0", lambda value: _is_number(value) and value > 0)
FACTOR = maybe(Kind("a finite number other than 0", lambda value: _is_number(value) and value != 0))


@dataclass(frozen=True)
class Picked:
    """The member that goes on with a text.

    Attributes:
        number: its place among the members.
        ahead: by how much what the model compares is above that of the next; None where no token tells.
    """

    number: int
    ahead: float | None


Picker = Callable[[Sequence[int]], Picked]
"""Picks the member of a text's tokens (CheckpointError: the model does not know one)."""


class SequenceHost(ABC):
    """A kind of folder whose modelling file is built on `modeling_sequences`."""

    model_type: ClassVar[str]  # that of its `config.json`, or the beginning of it, before that of the dense model
    files: ClassVar[tuple[Path, ...]]  # the modelling file of each kind of its folders

    def code(self, model_type: str) -> list[Mapping[str, bytes]]:
        """Return each modelling file, by its name, as a folder has it (CheckpointError: the dense model is unknown)."""
        dense = model_type.removeprefix(self.model_type)
        class_name = [family_of(dense).class_name] if dense else []
        return [modelling_file(path, *class_name) for path in self.files]

    def picker(self, folder: Path, config: Mapping[str, Any]) -> Picker | None:
        """Return what picks the member of a text by its tokens alone; None if the model must run to tell.

        `config` is a checked config.json (CheckpointError: the tensors of the folder are of other shapes).
        """
        return None

    @abstractmethod
    def check(self, config: Mapping[str, Any], where: str) -> None:
        """Check the own keys of an untrusted `config.json`, whose sizes are known to be those of stored tensors.

        (CheckpointError: a key is missing, or its value is of another kind or does not fit the others.)
        """


def sequence_host(model_type: object) -> SequenceHost | None:
    """Return the host of a model type; None of one that routes the tokens of each layer, or none."""
    hosts: tuple[SequenceHost, ...] = instances(SEQUENCE_HOSTS)
    return next((host for host in hosts if str(model_type).startswith(host.model_type)), None)


def check_member_configs(config: Mapping[str, Any], where: str) -> None:
    """Check that each member has a configuration of a known family (arguments and errors as `SequenceHost.check`)."""
    configs = some_fields(config, {"member_configs": list_of(OBJECT)}, where, hint=HINT)["member_configs"]
    if len(configs) != (members := len(config["members"])):
        problem = f"has {len(configs)} configurations, expected {members}, one a member"
        raise CheckpointError(f"{where}: member_configs {problem}", HINT)
    for own in configs:
        model_type = str(own.get("model_type"))
        try:
            if model_type not in FAMILIES:
                raise ValueError(f"model type {model_type[:80]!r} is not one of {', '.join(FAMILIES)}")
            FAMILIES[model_type].architecture(own)
        except ValueError as error:
            raise CheckpointError(f"{where}, member_configs: {error}", HINT) from error
