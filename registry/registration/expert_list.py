"""Lists of experts to register: YAML that somebody else may have written.

    - name: math
      checkpoint: checkpoints/math      # a path from the folder of the list, or hf://ORG/NAME
      data: [math.jsonl]
      license: apache-2.0
      tags: {language: de}
      alias: stable

The keys are the arguments of `Registry.add_expert`. A key without a value counts as absent.
"""

from pathlib import Path
from typing import Any

from registry.checkpoint.annotations import Annotations
from registry.errors import InvalidInputError, NotFoundError
from registry.io.limits import YAML_BYTES
from registry.io.strict_yaml import Located, parse_yaml
from registry.io.untrusted import SWITCH, Kind
from registry.names.reference import check_name
from registry.names.suggest import suggest
from registry.registration.candidate import RegistrationRequest
from registry.statistics.settings import PassSettings

_TEXT = Kind("text", lambda value: isinstance(value, str) and value != "")
_LIST = Kind("a list of text", lambda value: isinstance(value, list) and all(map(_TEXT.holds, value)))
_MAPPING = Kind(
    "a mapping of text to text",
    lambda value: isinstance(value, dict) and all(isinstance(part, str) for part in value.values()),
)
KEYS = {
    "name": _TEXT,
    "checkpoint": _TEXT,
    "data": _LIST,
    "license": _TEXT,
    "tags": _MAPPING,
    "alias": _TEXT,
    "base": _TEXT,
    "keep_calibration": SWITCH,
    "allow_unrelated": SWITCH,
    "remote_code": SWITCH,
    "tokenizer_of": _TEXT,
}
"""Key → what its value must be."""

_EXAMPLE = "write each expert as {name: math, checkpoint: checkpoints/math, data: [math.jsonl]}"


def read_experts(path: Path, settings: PassSettings) -> list[RegistrationRequest]:
    """Read a list of experts (NotFoundError: no such file; InvalidInputError, with the line: it is no such list)."""
    if not path.is_file():
        raise NotFoundError(f"{path} is not a file", "name a YAML file that lists experts")
    with path.open("rb") as file:
        listed = parse_yaml(file.read(YAML_BYTES + 1), str(path))
    if not isinstance(listed.value, list) or not listed.value:
        raise _error(path, listed.line, "it must be a list of experts")
    lines: dict[str, int] = {}
    requests = []
    for item in listed.value:
        request = _request(path, item, settings)
        name = str(request.name)
        if name in lines:
            raise _error(path, item.line, f"{name} is listed twice, first in line {lines[name]}", "keep one of them")
        lines[name] = item.line
        requests.append(request)
    return requests


def _request(path: Path, item: Located, settings: PassSettings) -> RegistrationRequest:
    if not isinstance(item.value, dict):
        raise _error(path, item.line, "an expert must be a mapping")
    values: dict[str, Any] = {}
    for key, located in item.value.items():
        if key not in KEYS:
            raise _error(path, located.line, f"there is no key {key[:80]!r}{suggest(key[:80], KEYS)}", ", ".join(KEYS))
        value = located.plain
        if value is None:
            continue
        if not KEYS[key].holds(value):
            raise _error(path, located.line, f"{key} must be {KEYS[key].words}")
        values[key] = value
    for key in ("name", "checkpoint"):
        if not values.get(key):
            raise _error(path, item.line, f"an expert has no {key}")
    try:
        name = check_name(values.pop("name"))
        annotations = Annotations(values.pop("tags", {}), values.pop("license", None), values.pop("alias", None))
    except InvalidInputError as error:
        raise _error(path, item.line, error.message, error.hint) from error
    data = tuple(_from(path, file) for file in values.pop("data", []))
    checkpoint = _from(path, values.pop("checkpoint"))
    return RegistrationRequest(name, checkpoint, "expert", data, settings, annotations, **values)


def _from(path: Path, text: str) -> str:
    """Return a path of the list as it is seen from here."""
    return text if text.startswith("hf://") else str(path.parent / Path(text).expanduser())


def _error(path: Path, line: int, message: str, hint: str | None = _EXAMPLE) -> InvalidInputError:
    return InvalidInputError(f"{path}:{line}: {message}", hint)
