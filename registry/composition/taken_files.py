"""Files that a folder takes over from its members: the tokenizer's are the lead's, generation_config.json is of all.

Every field of generation_config.json has a rule:

    eos_token_id               every token that ends a text of some member: an expert that is never stopped never ends
    bos_token_id, pad_token_id the lead's, whose tokenizer the folder has
    do_sample, temperature, …  the members' if all say the same, else left out together, so that generation is greedy
    transformers_version, …    the same, without a word: they say who wrote a file
    any other                  the members' if all say the same, else left out

A member without the file says nothing. Settings of sampling without `do_sample` are left out too, and those of beams
without `num_beams`: transformers refuses to save a model with them. What is left out is noted.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from registry.checkpoint import COPIED_FILES
from registry.errors import RegError
from registry.io.display import few
from registry.io.limits import TOKENIZER_VALUES
from registry.io.model_folder import json_file
from registry.io.untrusted import json_object
from registry.member import Member

GENERATION = "generation_config.json"
ENDS = "eos_token_id"

_OF_LEAD = ("bos_token_id", "pad_token_id")
_ORIGIN = ("transformers_version", "_from_model_config")
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
_BEAMS = ("early_stopping", "length_penalty")
_NEUTRAL = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 50,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "early_stopping": False,
    "length_penalty": 1.0,
}
"""Values that change nothing, which transformers accepts in any case."""

Settings = dict[str, Any]


def taken_files(members: Sequence[Member], lead: Member) -> dict[str, bytes]:
    """Return the tokenizer's files and generation_config.json of a folder, by name."""
    files = {name: lead.file(name) for name in lead.names("file") if name in COPIED_FILES and name != GENERATION}
    settings, _ = _combined(members, lead)
    if settings is None:
        return files
    own = _settings(lead)
    return files | {GENERATION: lead.file(GENERATION) if own == settings else json_file(settings)}


def taken_notes(members: Sequence[Member], lead: Member) -> tuple[str, ...]:
    """Return remarks on what a folder does not take over: other chat templates, other settings of generation."""
    return (*_template_notes(members, lead), *_combined(members, lead)[1])


def special_tokens(members: Sequence[Member], lead: Member) -> Settings:
    """Return the special tokens of config.json: the lead's, and every token that ends a text of some member."""
    own = dict(lead.content["special_tokens"])
    return own | {ENDS: _union(own.get(ENDS), (m.content["special_tokens"].get(ENDS) for m in members))}


def _combined(members: Sequence[Member], lead: Member) -> tuple[Settings | None, tuple[str, ...]]:
    """Return the settings of a folder, None if no member has any, and remarks on what was left out."""
    given = {member.name: own for member in members if (own := _settings(member)) is not None}
    if not given:
        return None, ()
    settings, left = Settings(), list[str]()
    groups = [(("do_sample", *_SAMPLING), "generation is greedy"), (("num_beams", *_BEAMS), "")]
    others = sorted({key for own in given.values() for key in own} - {ENDS, *_OF_LEAD, *groups[0][0], *groups[1][0]})
    for keys, effect in [*groups, *(((key,), "") for key in others)]:
        stated = {name: {key: own[key] for key in keys if key in own} for name, own in given.items()}
        first = next(iter(stated.values()))
        if all(own == first for own in stated.values()):
            settings |= first
        elif keys[0] not in _ORIGIN:
            said = (f"{name} {_shown(own)}" for name, own in stated.items())
            left.append(f"{few(list(said))}{f', so {effect}' if effect else ''}")
    notes = [f"settings of generation in which members differ are left out: {'; '.join(left)}"] if left else []
    for switch, keys in (("do_sample", _SAMPLING), ("num_beams", _BEAMS)):
        if settings.get(switch) is not True and settings.get(switch) in (None, False, 1):
            idle = {key: settings.pop(key) for key in keys if settings.get(key) not in (None, _NEUTRAL.get(key))}
            notes += [f"settings that do nothing without {switch} are left out: {_shown(idle)}"] if idle else []
    lead_settings = _settings(lead) or {}
    settings |= {key: lead_settings[key] for key in _OF_LEAD if key in lead_settings}
    if any(ENDS in own for own in given.values()):
        settings[ENDS] = _union(_end(lead, lead_settings), (_end(m, given.get(m.name, {})) for m in members))
    return settings, tuple(notes)


def _settings(member: Member) -> Settings | None:
    """Return a member's settings of generation; None if it has no such file, or one that is not JSON."""
    if GENERATION not in member.names("file"):
        return None
    data = member.file(GENERATION)  # which is not to be left out where it is damaged
    try:
        return json_object(data, GENERATION)
    except RegError:
        return None


def _end(member: Member, settings: Settings) -> Any:
    """Return what ends a member's texts: what its generation_config.json says, else its config.json."""
    return settings.get(ENDS, member.content["special_tokens"].get(ENDS))


def _union(first: Any, others: Iterable[Any]) -> Any:
    """Return tokens as config.json has them: as `first` has them if there are no more, else a list of all."""
    listed = [_tokens(value) for value in (first, *others)]
    found = list(dict.fromkeys(token for tokens in listed for token in tokens))
    return first if {*found} == {*listed[0]} else found[0] if len(found) == 1 else found


def _tokens(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [token for token in values if isinstance(token, int) and not isinstance(token, bool)]


def _shown(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {json.dumps(value)[:40]}" for key, value in settings.items()) or "none"


_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
"""Files that may have a chat template; transformers prefers the first."""


def _template_notes(members: Sequence[Member], lead: Member) -> tuple[str, ...]:
    """Return a remark if members render a conversation by other templates than the one that the folder takes over.

    Files are read only where members' differ.
    """
    files = [
        {(link.name, link.digest) for link in member.arrays if link.role == "file" and link.name in _TEMPLATE_FILES}
        for member in members
    ]
    if all(own == files[0] for own in files):
        return ()
    own = chat_template(lead)
    others = [member.name for member in members if chat_template(member) not in (own, None)]
    if not others:
        return ()
    of_lead = "has no chat template" if own is None else f"renders chats by the template of {lead.name}"
    have = "has another one" if own is not None else "has one"
    have = have if len(others) == 1 else have.replace("has", "have").replace("another one", "others")
    why = "a chat in another form than an expert was trained on may be answered worse"
    return (f"it {of_lead}; {few(others)} {have}: {why}",)


def chat_template(member: Member) -> str | None:
    """Return a member's chat template, several of them as JSON; None if it has none, or a file that is not JSON."""
    names = member.names("file")
    if _TEMPLATE_FILES[0] in names:
        return member.file(_TEMPLATE_FILES[0]).decode(errors="replace").rstrip("\n")
    for name in _TEMPLATE_FILES[1:]:
        if name not in names:
            continue
        try:
            found = json_object(member.file(name), name).get("chat_template")
        except RegError:
            continue
        if found:
            return found.rstrip("\n") if isinstance(found, str) else json.dumps(found, sort_keys=True)
    return None


def chat_marks(member: Member) -> dict[int, str]:
    """Return number → token of the special tokens that stand in chats alone: all but the one that begins a document.

    Empty where the member has no tokenizer.json.
    """
    names = member.names("file")
    if "tokenizer.json" not in names:
        return {}
    added = json_object(member.file("tokenizer.json"), "tokenizer.json", values=TOKENIZER_VALUES).get("added_tokens")
    config = "tokenizer_config.json"
    settings = json_object(member.file(config), config) if config in names else {}
    begins = next((settings[key] for key in ("bos_token", "eos_token") if settings.get(key)), None)
    begins = begins.get("content") if isinstance(begins, dict) else begins
    special = [token for token in added or [] if isinstance(token, dict) and token.get("special")]
    return {int(token["id"]): str(token["content"]) for token in special if token.get("content") != begins}
