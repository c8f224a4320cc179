"""Members of a composition: registered versions with their architecture, arrays and statistics."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from registry.calibration import Calibration
from registry.checkpoint.joint_training import parts_in
from registry.checkpoint.model_files import ROUTER_FILE
from registry.checkpoint.trained_files import RouterRows, unpack_rows
from registry.checkpoint.version_files import VersionArrays
from registry.errors import ConflictError, DamagedError, IncompatibleError, RegError
from registry.families import Family, Translation, family_of
from registry.families.sites import CONTENT_COUNTS, CONTENTS, MLP_INPUT, PAIR_COUNTS, TOKEN_COUNTS
from registry.hosts.architecture import Architecture
from registry.io.torch_blocks import to_tensor
from registry.maths.statistics import PackedStatistics, Statistics
from registry.names.reference import copy_name
from registry.workspace import Workspace
from store.catalog import VersionRecord
from store.catalog.records import Role

POSITIONS = "max_position_embeddings"
"""The size that members of one composition may differ in where their ropes are the same."""

AS_EXPERT = "register its checkpoint as an expert too, with text: reg add-expert NAME CKPT --data FILE"
"""Hint where a base model is a member and its statistics are needed."""


@dataclass(frozen=True)
class Member(VersionArrays):
    """A version and its arrays as a member of a composition.

    Attributes:
        copy: where several copies of the version are members of one composition: the number of this one, from 1, and
            how many there are; None otherwise.
        longest: where others of a composition take shorter texts, the tokens of the longest text that all take; None
            otherwise.
    """

    copy: tuple[int, int] | None = None
    longest: int | None = None

    @cached_property
    def content(self) -> dict[str, Any]:
        """The version's content document."""
        if self.version.content is None:
            raise RegError(f"{self.version.ref} was purged", "reg list --all")
        return self.version.content

    @property
    def name(self) -> str:
        """The expert's name; that of a copy ends with its number: `base-1`, or `base-01` of ten or more."""
        return self.version.name if self.copy is None else copy_name(self.version.name, *self.copy)

    @property
    def ref(self) -> str:
        """The version's reference, or the name of a copy."""
        return self.version.ref if self.copy is None else self.name

    @property
    def row_key(self) -> str:
        """The text that its random router rows are drawn from: the version's digest, with the number of a copy."""
        return self.version.digest if self.copy is None else f"{self.version.digest} copy {self.copy[0]}"

    @cached_property
    def family(self) -> Family:
        """The dense family."""
        return family_of(self.content["family"])

    @cached_property
    def architecture(self) -> Architecture:
        """The sizes and switches, as they are in a composition."""
        own = Architecture(**self.content["architecture"])
        return own if self.longest is None else replace(own, max_position_embeddings=self.longest)

    @property
    def known_tokens(self) -> int:
        """Tokens of its tokenizer; 0 if it has none."""
        return int(self.content["tokens"] or 0)

    @cached_property
    def hosts(self) -> dict[str, Translation]:
        """Every host that carries this version, by its name in recipes, the default one first."""
        return self.family.hosts(self.architecture)

    @property
    def roles(self) -> dict[str, Role]:
        """Tensor → role, in the order of its family."""
        roles: dict[str, Role] = dict.fromkeys(self.family.trunk_shapes(self.architecture), "trunk")
        return roles | dict.fromkeys(self.family.mlp_shapes(self.architecture), "mlp")

    def statistics(self, site: str, layer: int) -> Statistics:
        """Return one site and layer (IncompatibleError: it was registered without; DamagedError: arrays do not fit)."""
        return self.packed_statistics(site, layer).unpacked()

    def packed_statistics(self, site: str, layer: int) -> PackedStatistics:
        """Return the statistics of one site and layer as they are stored (errors as `statistics`)."""
        self.require_statistics([site], "this", "needs")
        exponents, saturated = self._scales(site)
        packed = self._tensor("statistics", f"{site}/gram/{layer}")
        try:
            return PackedStatistics(packed, exponents[layer], int(saturated[layer]))
        except ValueError as error:
            raise DamagedError(f"{self.version.ref}, {site}, layer {layer}: {error}", "reg verify") from error

    def has_statistics(self, site: str) -> bool:
        """Tell whether the version has statistics of a site, or `TOKEN_COUNTS`, `CONTENT_COUNTS` or `PAIR_COUNTS`."""
        is_counts = site in (TOKEN_COUNTS, CONTENT_COUNTS, PAIR_COUNTS)
        return ("statistics", site if is_counts else f"{site}/exponents") in self._links

    def require_statistics(self, sites: Sequence[str], user: str, verb: str, alternative: str = "") -> None:
        """Check that the version has statistics of sites, or `TOKEN_COUNTS` (IncompatibleError: one is missing).

        The message says that the `user` "needs" or "need" them, and how to collect them, or else the `alternative`.
        """
        missing = next((site for site in sites if not self.has_statistics(site)), None)
        if missing is None:
            return
        kind = "token counts" if missing == TOKEN_COUNTS else f"statistics of {missing}"
        if self.version.kind == "base":
            raise IncompatibleError(
                f"{self.version.ref} is a base model, which has no {kind}, and {user} {verb} them",
                f"{AS_EXPERT}{alternative}",
            )
        for training, _ in parts_in(self.version.content):
            if training.lacks_statistics:
                raise IncompatibleError(
                    f"{self.version.ref} has no {kind}, which {user} {verb}: it is an expert of {training.called}",
                    f"{training.lacks_statistics}{alternative}",
                )
        again = f"register it again with all sites: reg add-expert {self.name} CKPT"
        if self.is_adapter:
            again = f"{again} --base BASE --data FILE"
        else:
            collect = "reg collect CKPT --data FILE --out CKPT"
            again = f"{again} --data FILE, and where CKPT carries statistics, collect them again first: {collect}"
        raise IncompatibleError(f"{self.version.ref} has no {kind}, which {user} {verb}", f"{again}{alternative}")

    def require_calibration(self, use: str, of_base: str, alternative: str = "") -> None:
        """Check that the version kept its calibration tokens (IncompatibleError: it did not).

        The message ends with `use`, what needs them; of a base model with `of_base`, and an `alternative` without them.
        """
        if "ids" in self.names("calibration"):
            return
        if self.version.kind == "base":
            raise IncompatibleError(
                f"{self.version.ref} is a base model, which has no calibration tokens, and {of_base}",
                f"{AS_EXPERT} --keep-calibration{alternative}",
            )
        raise IncompatibleError(
            f"{self.version.ref} kept no calibration tokens, {use}",
            f"register it again with them: reg add-expert {self.name} CKPT --data FILE --keep-calibration; a "
            "checkpoint that carries neither text nor statistics writes its own, which is kept",
        )

    @cached_property
    def token_counts(self) -> torch.Tensor:
        """Occurrences of each token in the calibration, int64 of shape (V,), read once: many tensors depend on them."""
        return self._tensor("statistics", TOKEN_COUNTS)

    @cached_property
    def evidence_counts(self) -> torch.Tensor:
        """Occurrences of each token that are evidence of this expert, int64 of shape (V,): what people wrote.

        Of conversations they are the contents of messages, and of other text all of it, in more tokens than those of
        the calibration. Versions that were registered before have the tokens of the calibration alone.
        """
        return self._tensor("statistics", CONTENT_COUNTS if self.has_statistics(CONTENT_COUNTS) else TOKEN_COUNTS)

    @cached_property
    def pair_counts(self) -> torch.Tensor | None:
        """Pairs of tokens that are evidence of this expert, and their occurrences, int32 of shape (P, 3), in order.

        None for versions that were registered before pairs were counted (DamagedError: no such pairs).
        """
        if self.has_statistics(PAIR_COUNTS):
            pairs = self._tensor("statistics", PAIR_COUNTS)
            if pairs.ndim != 2 or pairs.shape[1] != 3 or int(pairs.min()) < 0:
                raise DamagedError(f"{self.version.ref}: {PAIR_COUNTS} are no pairs of tokens and counts", "reg verify")
            return pairs
        return torch.zeros((0, 3), dtype=torch.int32) if "evidence_pairs" in (self.content["computed"] or {}) else None

    @property
    def is_of_contents(self) -> bool:
        """True if its evidence is of the contents of messages alone, without the words of a chat template."""
        return (self.content.get("computed") or {}).get("evidence") == CONTENTS

    @property
    def document_share(self) -> float:
        """The share of its text that is of no conversation, from 0 to 1."""
        computed = self.content.get("computed") or {}
        return min(computed.get("evidence_documents", 0) / 1000, 1.0) if self.is_of_contents else 1.0

    @cached_property
    def router_rows(self) -> RouterRows | None:
        """The router rows that it was trained with next to a public expert, or None (CheckpointError: damaged)."""
        if ROUTER_FILE not in self.names("file"):
            return None
        shape = self.architecture.num_hidden_layers, self.architecture.hidden_size
        return unpack_rows(self.file(ROUTER_FILE), shape, self.version.ref)

    def router_row(self, layer: int) -> torch.Tensor:
        """Return its row of one layer, float32 of shape (H,); zeros for a base model, which is the public expert.

        Raises IncompatibleError if it is an expert that was trained without a row.
        """
        if self.version.kind == "base":
            return torch.zeros(self.architecture.hidden_size)
        if self.router_rows is None:
            raise IncompatibleError(
                f"{self.version.ref} has no router row: it was not trained beside a public expert",
                f"train it so: reg train-expert {self.name} --base B --data FILE --coordinate; "
                "or choose --router ridge",
            )
        return torch.from_numpy(self.router_rows.rows[layer].copy())

    def router_bias(self, layer: int) -> float:
        """Return the bias that was trained beside its row of one layer; 0 where none was."""
        trained = None if self.version.kind == "base" or self.router_rows is None else self.router_rows.bias
        return 0.0 if trained is None else float(trained[layer])

    @property
    def tokens(self) -> int:
        """Calibration tokens that the statistics count, or the token counts alone."""
        tokens = {record.site: record.tokens for record in self.version.statistics}
        return tokens.get(MLP_INPUT, tokens.get(TOKEN_COUNTS, 0))

    @property
    def calibration(self) -> Calibration | None:
        """The stored calibration tokens, if there are any."""
        return self.kept_tokens if ("calibration", "ids") in self._links else None

    @property
    def kept_tokens(self) -> Calibration:
        """The stored calibration tokens of a version that has some (errors as `link`)."""
        label = next((record.calibration_label for record in self.version.statistics), "")
        return Calibration(self._tensor("calibration", "ids"), self._tensor("calibration", "lengths"), label)

    def _scales(self, site: str) -> tuple[torch.Tensor, torch.Tensor]:
        if site not in self._read_scales:  # small, and read once a layer
            exponents = self._tensor("statistics", f"{site}/exponents")
            self._read_scales[site] = exponents, self._tensor("statistics", f"{site}/saturated")
        return self._read_scales[site]

    @cached_property
    def _read_scales(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        return {}

    def _tensor(self, role: Role, name: str) -> torch.Tensor:
        link = self.link(role, name)
        return to_tensor(self._read(link), link.dtype)


def load_member(workspace: Workspace, version: VersionRecord) -> Member:
    """Return a version with its arrays (ConflictError: it was purged meanwhile; DamagedError: rows were changed)."""
    return Member.load(workspace, version)


def copies_of(member: Member, count: int) -> list[Member]:
    """Return `count` members that are copies of one, in order; they share its arrays."""
    return [replace(member, copy=(number, count)) for number in range(1, count + 1)]


def load_members(workspace: Workspace, versions: Iterable[VersionRecord]) -> list[Member]:
    """Return `versions` with their arrays, without those purged meanwhile."""
    members = []
    for version in versions:
        with suppress(ConflictError):
            members.append(load_member(workspace, version))
    return members
