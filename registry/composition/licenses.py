"""Licences of members, rolled up into one that a composition of them may be published under.

The table has well-known licences by the Hub's identifiers, and which of them may go into which. It is no legal advice;
a licence outside the table gives no roll-up.

Sources: the Hub's list of licences (hub-docs, "Licenses"); the GNU project's "Various Licenses and Comments about
Them"; Creative Commons' chart for adapters' licences, its declaration of one-way compatibility of BY-SA 4.0 with GPLv3
(2015); Apache-2.0 section 4; MPL-2.0 sections 1.12 and 3.3; LGPL-2.1 section 3; GPLv3 and AGPLv3 section 13; the Llama
community licences section 1.b; Gemma's terms of use section 3.1; the Open RAIL-M licences sections 4 and 5.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from registry.errors import InvalidInputError
from registry.names.suggest import suggest

_PUBLIC = ("cc0-1.0", "unlicense", "wtfpl", "0bsd", "pddl")
_PLAIN = ("mit", "isc", "bsd", "bsd-2-clause", "bsd-3-clause", "bsd-3-clause-clear", "zlib", "bsl-1.0", "ncsa")
_COPYLEFT = ("mpl-2.0", "lgpl-2.1", "lgpl-3.0", "gpl-2.0", "gpl-3.0", "agpl-3.0", "cc-by-sa-4.0")
_NON_COMMERCIAL = ("cc-by-nc-4.0", "cc-by-nc-sa-4.0")
_CUSTOM = (
    *("llama2", "llama3", "llama3.1", "llama3.2", "llama3.3", "llama4", "gemma"),
    *("openrail", "openrail++", "bigscience-openrail-m", "bigscience-bloom-rail-1.0", "creativeml-openrail-m"),
    "bigcode-openrail-m",
)
"""Each requires that derivatives are passed on under its own terms, and accepts no other's."""
_NO_DERIVATIVES = ("cc-by-nd-4.0", "cc-by-nc-nd-4.0")
_ORDER = (*_PUBLIC, *_PLAIN, "apache-2.0", "cc-by-4.0", *_COPYLEFT, *_NON_COMMERCIAL, *_CUSTOM)
"""From the least to the most restrictive; among equals the order decides which one names the composition."""

_ELSEWHERE = (
    *("afl-3.0", "artistic-2.0", "c-uda", "cc", "cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-sa-3.0", "cc-by-nc-2.0"),
    *("cc-by-nc-3.0", "cc-by-nc-nd-3.0", "cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cdla-sharing-1.0"),
    *("cdla-permissive-1.0", "cdla-permissive-2.0", "ecl-2.0", "epl-1.0", "epl-2.0", "etalab-2.0", "eupl-1.1"),
    *("eupl-1.2", "gfdl", "gpl", "lgpl", "lgpl-lr", "h-research", "intel-research", "lppl-1.3c", "ms-pl", "apple-ascl"),
    *("apple-amlr", "odc-by", "odbl", "openmdw-1.0", "osl-3.0", "postgresql", "ofl-1.1", "deepfloyd-if-license"),
    *("fair-noncommercial-research-license", "grok2-community", "unknown", "other"),
)
"""The rest of the Hub's list, without rules in the table."""

_GPL3 = ("gpl-3.0", "agpl-3.0")
_INTO: dict[str, frozenset[str]] = {
    **dict.fromkeys(_PUBLIC, frozenset(_ORDER)),
    **dict.fromkeys(_PLAIN, frozenset(_ORDER) - frozenset(_PUBLIC)),
    "apache-2.0": frozenset(("cc-by-4.0", *_COPYLEFT, *_NON_COMMERCIAL, *_CUSTOM)) - {"lgpl-2.1", "gpl-2.0"},
    "cc-by-4.0": frozenset(("cc-by-sa-4.0", *_NON_COMMERCIAL, *_CUSTOM, "gpl-2.0", *_GPL3)),
    "mpl-2.0": frozenset(("lgpl-2.1", "lgpl-3.0", "gpl-2.0", *_GPL3)),
    "lgpl-2.1": frozenset(("gpl-2.0", *_GPL3)),
    "lgpl-3.0": frozenset(_GPL3),
    "gpl-3.0": frozenset(("agpl-3.0",)),
    "cc-by-sa-4.0": frozenset(("gpl-3.0",)),
    "cc-by-nc-4.0": frozenset(("cc-by-nc-sa-4.0",)),
}
"""Licence of a part → other licences that a work with this part may be under. All pairs are listed: no chains."""


@dataclass(frozen=True)
class RollUp:
    """The common licence of some parts.

    Attributes:
        license: the most restrictive of them, which all others may go into; None if there is no such licence.
        why: the reason why no licence is common to all, in words.
    """

    license: str | None
    why: str | None = None


def check_spelling(license_id: str) -> None:
    """Refuse what resembles an identifier on the Hub's list, which grows: others pass (InvalidInputError: misspelt)."""
    known = (*_ORDER, *_NO_DERIVATIVES, *_ELSEWHERE)
    if license_id.lower() not in known and (meant := suggest(license_id.lower(), known)):
        raise InvalidInputError(
            f"the Hub knows no license {license_id!r}{meant}",
            "write it as the Hub does, or give other: --license other",
        )


def roll_up(licenses: Mapping[str, str | None]) -> RollUp:
    """Return the common licence of parts: name of each → its licence, by the Hub's identifier, or None without one."""
    if missing := sorted(name for name, license_id in licenses.items() if license_id is None):
        return RollUp(None, f"no license was given for {', '.join(missing)}")
    # The Hub's identifiers; in SPDX they may end with `-only`.
    plain = {name: str(license_id).lower().removesuffix("-only") for name, license_id in licenses.items()}
    if closed := [name for name, own in plain.items() if own in _NO_DERIVATIVES]:
        return RollUp(None, f"{closed[0]} is under {plain[closed[0]]}, which allows no derivatives")
    different = sorted(set(plain.values()), key=lambda one: _ORDER.index(one) if one in _ORDER else len(_ORDER))
    if len(different) == 1 and different[0] not in ("other", "unknown"):
        return RollUp(different[0])
    if unknown := [name for name, own in plain.items() if own not in _ORDER]:
        return RollUp(None, f"{unknown[0]} is under {plain[unknown[0]]!r}, of which nothing is known here")
    for candidate in reversed(different):
        if all(candidate == own or candidate in _INTO.get(own, ()) for own in different):
            return RollUp(candidate)
    return RollUp(None, _conflict(plain, different))


def _conflict(licenses: Mapping[str, str], different: Sequence[str]) -> str:
    holder = {license_id: name for name, license_id in reversed([*licenses.items()])}
    for first, second in combinations(different, 2):
        if second not in _INTO.get(first, ()) and first not in _INTO.get(second, ()):
            pair = f"{holder[first]} is under {first} and {holder[second]} under {second}"
            return f"{pair}, and neither may go into the other"
    return f"none of {', '.join(different)} takes all the others"
