"""Bills of materials (ML-BOM) of composed folders in CycloneDX 1.7: what the registry knows, and nothing else.

No time of making and no random number is in one: a folder and a state of the registry give the same bytes.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from importlib.metadata import version as installed
from math import prod
from pathlib import Path
from typing import Any

from registry.checkpoint.model_files import EXPERT_TRAINING
from registry.checkpoint.version_files import base_of_adapter, parse_training, training_file
from registry.composition.card import CARD, license_of
from registry.composition.manifest import ComposedFolder, VersionRef
from registry.errors import RegError
from registry.evaluation.stored import Score, widest
from registry.hub.card_additions import languages_of, source_of
from registry.hub.hub_errors import endpoint
from registry.io.model_folder import BOM, MARKER, check_file, check_outside, json_file
from registry.io.safetensors_file import read_header
from registry.io.untrusted import json_object, read_json
from registry.names.resolve import version_of_content
from registry.progress import remark
from registry.registration.lineage import relations_of, samples_of_version
from registry.report import cyclonedx
from registry.report.cyclonedx import Json, known, losses, metric, properties
from registry.report.files import write_page
from registry.workspace import PathLike, Workspace
from store.catalog import VersionRecord
from store.digest import is_digest

_HEAD = re.compile(r"^# (.+)\n\n((?:.+\n)+)", re.MULTILINE)
_LIMITS = re.compile(r"^## Limits\n\n((?:- .+\n)+)", re.MULTILINE)
_PUSHED = "as it was composed: a push adds lines to it"
_FIELDS = {
    "version": ("version",),
    "license": ("licenses",),
    "description": ("description",),
    "supplier": ("supplier",),
    "limits": ("modelCard", "considerations"),
    "metrics": ("modelCard", "quantitativeAnalysis"),
    "datasets": ("modelCard", "modelParameters", "datasets"),
    "base model": ("pedigree", "ancestors"),
}
"""Field that a complete model card has → where it stands; those that every bill has are left out."""
_OF_EXPERTS, _OF_BASES = ("version", "license", "datasets", "base model"), ("version", "license")


@dataclass(frozen=True)
class BillOfMaterials:
    """A bill of materials that was written."""

    file: Path  # the file
    serial_number: str  # its serial number, by the composition's digest
    sha256: str  # the SHA-256 of the file
    unknown: Mapping[str, tuple[str, ...]]  # field → models of which it is unknown


def write_bom(workspace: Workspace, folder: PathLike, out: PathLike | None, *, replace: bool) -> BillOfMaterials:
    """Write the bill of materials of a composed folder (arguments as `Registry.bom`).

    Raises:
        CheckpointError: the folder was not composed by this program, or was changed since.
        OutputError: `out` exists and `replace` is False, it has no folder, or it is another file of the folder.
        StorageError: the library is not installed, or the file cannot be written.
    """
    composed = ComposedFolder.read(Path(folder))
    own = composed.path / BOM
    file = own if out is None or Path(out).resolve() == own.resolve() else Path(out)
    if file != own:
        check_outside(file, composed.path)
    check_file(file, replace=replace or file == own)
    cyclonedx.require_library()
    composed.check(workspace.progress)
    bill = _Bill(workspace, composed)
    data = json_file(bill.document())
    cyclonedx.check(data.decode(), str(composed.path))
    write_page(file, data.decode(), replace=True)
    unknown = {name: tuple(models) for name, models in bill.missing.items()}
    return BillOfMaterials(file, composed.serial_number, hashlib.sha256(data).hexdigest(), unknown)


@dataclass
class _Bill:
    """Models and texts of a bill of materials by their reference in it, and what is unknown."""

    workspace: Workspace
    composed: ComposedFolder
    models: dict[str, Json] = field(default_factory=dict)
    texts: dict[str, Json] = field(default_factory=dict)
    needs: dict[str, list[str]] = field(default_factory=dict)  # reference → those of what it cannot do without
    missing: dict[str, list[str]] = field(default_factory=dict)  # field → names of models

    def document(self) -> Json:
        """Return the document."""
        catalog, composed = self.workspace.catalog, self.composed
        made = [one.created_at for one in catalog.compositions() if one.digest == composed.digest]
        parts = [self._add(ref) for ref in composed.manifest.versions]
        whole = self._composition(parts)
        self.needs[whole["bom-ref"]] = [part["bom-ref"] for part in parts]
        tool = {"type": "application", "name": cyclonedx.NAME, "version": installed(cyclonedx.NAME)}
        return {
            "$schema": "http://cyclonedx.org/schema/bom-1.7.schema.json",
            "bomFormat": "CycloneDX",
            "specVersion": "1.7",
            "serialNumber": composed.serial_number,
            "version": 1,
            "metadata": known(timestamp=next(iter(made), None), tools={"components": [tool]}, component=whole),
            "components": [one[ref] for one in (self.models, self.texts) for ref in sorted(one)],
            "dependencies": [{"ref": ref, "dependsOn": sorted(self.needs[ref])} for ref in sorted(self.needs)],
            "compositions": [{"aggregate": "complete", "assemblies": [whole["bom-ref"]]}],
        }

    def _composition(self, parts: Sequence[Json]) -> Json:
        composed, manifest = self.composed, self.composed.manifest
        card = composed.card if CARD in composed.files else b""
        page, config = card.decode(errors="replace"), read_json(composed.path / "config.json")
        head, limits = _HEAD.search(page), _LIMITS.search(page)
        names = [member.name for member in manifest.members]
        digests = composed.sha256(self.workspace.progress) | {MARKER: hashlib.sha256(composed.data).hexdigest()}
        headers = [read_header(composed.path / name) for name in digests if name.endswith(".safetensors")]
        parameters = sum(prod(tensor.shape) for header in headers for tensor in header.tensors.values())
        facts = {"parameters": parameters, "copies": manifest.from_base}
        training = composed.content.get("training", {})
        metrics, texts = self._measured(names)
        texts += self._trained_on(training, "the composition")
        texts += [one["ref"] for part in parts for one in _at(part, "datasets") or ()]
        parent = [] if manifest.parent is None else [cyclonedx.model("composition before training", manifest.parent)]
        whole = cyclonedx.model(head[1] if head else " + ".join(names), composed.digest, "composition")
        whole |= known(
            version=composed.digest,
            description=" ".join(head[2].split()) if head else None,
            licenses=cyclonedx.licenses(license_of(card), "concluded"),
            pedigree={"ancestors": [cyclonedx.ancestor(one) for one in (*parent, *parts)]},
            modelCard=cyclonedx.model_card(
                manifest.host,
                next(iter(config.get("architectures") or ()), None),
                texts,
                metrics + losses(training.get("held_out", {})),
                properties("", facts) + properties("recipe:", composed.content["recipe"]) + _settings(training),
                [line.removeprefix("- ") for line in limits[1].splitlines()] if limits else (),
            ),
            components=[
                cyclonedx.file(name, digests[name], _PUSHED if name == CARD else None) for name in sorted(digests)
            ],
        )
        self._note(whole, tuple(_FIELDS))
        return whole

    def _add(self, ref: VersionRef) -> Json:
        """Return a version as a component, which is added once; of one that was opted out no more than that."""
        part = cyclonedx.model(ref.name, ref.digest)
        if (found := self.models.get(part["bom-ref"])) is not None:
            return found
        self.models[part["bom-ref"]], self.needs[part["bom-ref"]] = part, []
        version = version_of_content(self.workspace.catalog, ref.name, ref.digest, self.composed.digest)
        if version is not None and version.state == "active":
            part |= self._version(version, self.needs[part["bom-ref"]])
        elif version is not None:
            part["properties"] = properties("", {"opted out": version.withdrawn_at})
        self._note(part, _OF_BASES if version is not None and version.kind == "base" else _OF_EXPERTS)
        return part

    def _version(self, version: VersionRecord, needs: list[str]) -> Json:
        content, (_, location) = version.content or {}, source_of(self.workspace.catalog, version)
        training, held_out = self._training(version)
        texts = [
            self._text(one.calibration_digest, one.calibration_label, {"calibrates": version.name})
            for one in version.statistics
        ]
        base, how = self._base(version, training) if version.kind == "expert" else (None, "")
        part = None if base is None else self._add(VersionRef(base.name, base.digest))
        if part is not None and base_of_adapter(version) is not None:
            needs.append(part["bom-ref"])
        facts = {"parameters": version.parameters, "languages": ",".join(languages_of([version])) or None}
        return known(
            version=str(version.number),
            licenses=cyclonedx.licenses(content.get("license"), "declared"),
            pedigree={} if part is None else {"ancestors": [cyclonedx.ancestor(part)], "notes": how},
            modelCard=cyclonedx.model_card(
                content["family"],
                None,
                texts + self._trained_on(training, version.name),
                losses(held_out),
                properties("", facts) + _settings(training),
            ),
            **cyclonedx.on_hub(location, endpoint()),
        )

    def _base(self, version: VersionRecord, training: Mapping[str, Any]) -> tuple[VersionRecord | None, str]:
        """Return the base model that a version names, else the nearest related one, and how that is known."""
        bases = self.workspace.versions(kind="base")
        stated = {base_of_adapter(version), training.get("base")} - {None}
        for base in bases:
            if (base.content or {}).get("weights") in stated:
                return base, "it names the digest of the weights of its base model"
        related = None
        try:
            related = next(iter(relations_of(self.workspace, samples_of_version(self.workspace, version), bases)), None)
        except RegError as error:
            remark(self.workspace.progress, f"the base model of {version.ref} is left out: {error.message}")
        if related is None or related.verdict == "unrelated":
            return None, ""
        return self.workspace.resolve(related.ref), "the nearest registered base model by the distance of weights"

    def _training(self, version: VersionRecord) -> tuple[Mapping[str, Any], Mapping[str, float]]:
        """Return the settings of a version's training and its losses; what cannot be read is remarked on."""
        where = f"{version.ref}/{EXPERT_TRAINING}"
        try:
            if (data := training_file(self.workspace, version)) is not None:
                record = parse_training(data, where)
                return json_object(data, where)["training"], {"before": record.before, "after": record.after}
        except RegError as error:
            remark(self.workspace.progress, f"the training of {version.ref} is left out: {error.message}")
        return {}, {}

    def _trained_on(self, training: Mapping[str, Any], of: str) -> list[str]:
        labels = {"data": f"training text of {of}", "public": f"public training text of {of}"}
        known_by = {training[key]: label for key, label in labels.items() if is_digest(training.get(key))}
        return [self._text(digest, label, {"trains": of}) for digest, label in known_by.items()]

    def _measured(self, names: Sequence[str]) -> tuple[list[Json], list[str]]:
        """Return the figures of the evaluation that pages show and of audits, and references of their texts."""
        catalog, digest = self.workspace.catalog, self.composed.digest
        metrics, texts = list[Json](), list[str]()
        if (shown := widest(catalog.evaluations(digest), names)) is not None:
            score = Score.of(shown, names)
            for domain, row in score.rows.items():
                texts.append(self._text(row.text.digest, row.label, {"evaluates": domain, "evaluated at": score.at}))
                metrics += metric("perplexity", row.perplexity, domain)
                metrics += metric("score (100: the domain's own expert)", row.score, domain, row.interval)
                metrics += metric("routing accuracy", row.accuracy, domain)
            metrics += metric("average score", score.average, ", ".join(score.rows), score.interval)
        for audit in catalog.audits(digest):
            data = audit.document["data"]
            texts.append(self._text(data["digest"], data["label"], {"audited at": audit.evaluated_at}))
            metrics += metric("extraction rate", audit.document["extraction"]["rate"], data["label"])
        return metrics, texts

    def _text(self, digest: str, label: str, use: Mapping[str, str]) -> str:
        """Return the reference of a text, which is added once, with each of its uses."""
        text = cyclonedx.dataset(label, digest)
        text = self.texts.setdefault(text["bom-ref"], text)
        text["properties"] += [one for one in properties("", use) if one not in text["properties"]]
        return str(text["bom-ref"])

    def _note(self, component: Json, fields: Sequence[str]) -> None:
        for name in fields:
            if not _at(component, name):
                self.missing.setdefault(name, []).append(component["name"])


def _at(component: Json, name: str) -> Any:
    return reduce(lambda at, key: at.get(key, {}), _FIELDS[name], component)


def _settings(training: Mapping[str, Any]) -> list[Json]:
    return properties("training:", {key: one for key, one in training.items() if not isinstance(one, dict | list)})
