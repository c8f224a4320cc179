"""Parts of CycloneDX 1.7 documents, and their check by the library's schema.

cyclonedx-python-lib has no classes for model cards, so the parts are plain JSON. It has the licences of SPDX.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from registry.errors import RegError, StorageError
from store.digest import canonical_json

Json = dict[str, Any]

NAME = "expert-registry"
"""This program, and the beginning of the names of its properties."""


def require_library() -> None:
    """Check that cyclonedx-python-lib is installed with what it validates by (StorageError: it is not)."""
    try:
        import cyclonedx.validation.json  # noqa: F401
        import jsonschema  # noqa: F401
    except ImportError as error:
        raise StorageError(
            f"bills of materials need cyclonedx-python-lib: {error}", "run: pip install 'expert-registry[bom]'"
        ) from error


def check(text: str, where: str) -> None:
    """Check a document against the schema of CycloneDX 1.7 (RegError: it is not valid)."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    if (error := JsonStrictValidator(SchemaVersion.V1_7).validate_str(text)) is not None:
        told = str(getattr(error.data, "message", error))[:200]
        raise RegError(f"the bill of materials of {where} is not valid: {told}", "report this: nothing was written")


def known(**values: Any) -> Json:
    """Return what is known: values that are neither None nor empty."""
    return {key: value for key, value in values.items() if value not in (None, "", [], {})}


def model(name: str, digest: str, ref: str | None = None) -> Json:
    """Return a model as a component; its reference has name and digest, as two names may have one content."""
    ref = f"{ref or name}:{digest}"
    return {"type": "machine-learning-model", "bom-ref": ref, "name": name, "hashes": hashes(digest)}


def ancestor(component: Json) -> Json:
    """Return what names a component elsewhere in the document, where it is not to be counted again."""
    return {key: component[key] for key in ("type", "name", "version", "hashes") if key in component}


def file(name: str, digest: str, description: str | None = None) -> Json:
    """Return a file as a component."""
    return {"type": "file", "name": name, "hashes": hashes(digest)} | known(description=description)


def dataset(label: str, digest: str) -> Json:
    """Return a text as a component; its digest is over its tokens, so that it is a property and no hash."""
    own, data = properties("", {"digest of tokens": digest}), [{"type": "dataset", "name": label}]
    return {"type": "data", "bom-ref": f"data:{digest}", "name": label, "data": data, "properties": own}


def model_card(
    family: str,
    architecture: str | None,
    datasets: Sequence[str],
    metrics: Sequence[Json],
    settings: Sequence[Json],
    limits: Sequence[str] = (),
) -> Json:
    """Return the card of a language model; `datasets` are references, `settings` are properties."""
    text = [{"format": "text"}]
    return known(
        modelParameters=known(
            task="text-generation",
            architectureFamily=family,
            modelArchitecture=architecture,
            datasets=[{"ref": ref} for ref in sorted(set(datasets))],
            inputs=text,
            outputs=text,
        ),
        quantitativeAnalysis=known(performanceMetrics=list(metrics)),
        considerations=known(technicalLimitations=list(limits)),
        properties=list(settings),
    )


def hashes(sha256: str) -> list[Json]:
    """Return a SHA-256 as a component has it."""
    return [{"alg": "SHA-256", "content": sha256}]


def properties(kind: str, values: Mapping[str, Any]) -> list[Json]:
    """Return values as properties, `expert-registry:KINDkey`, without those that are not known."""
    return [
        {"name": f"{NAME}:{kind}{key}", "value": value if isinstance(value, str) else canonical_json(value)}
        for key, value in sorted(values.items())
        if value is not None
    ]


def metric(kind: str, value: float | None, of: str, interval: Sequence[float] | None = None) -> Iterator[Json]:
    """Yield a figure, with its 95 % interval if there is one; nothing if it was not measured."""
    if value is not None:
        ends = () if interval is None else (str(round(end, 4)) for end in interval)
        between = known(confidenceInterval=dict(zip(("lowerBound", "upperBound"), ends, strict=False)))
        yield {"type": kind, "value": str(round(value, 4)), "slice": of, **between}


def losses(held_out: Mapping[str, float]) -> list[Json]:
    """Return the losses of a training, in nats per token."""
    return [
        one
        for when in ("before", "after")
        for one in metric("loss on held-out text, nats per token", held_out.get(when), f"{when} training")
    ]


def licenses(license_id: str | None, acknowledgement: str) -> list[Json]:
    """Return a licence by its identifier in SPDX, or by its name on the Hub where SPDX has none."""
    from cyclonedx.spdx import fixup_id

    if license_id is None:
        return []
    spdx = fixup_id(license_id)
    return [
        {"license": ({"name": license_id} if spdx is None else {"id": spdx}) | {"acknowledgement": acknowledgement}}
    ]


def on_hub(location: str | None, endpoint: str) -> Json:
    """Return the address of `ORG/NAME` or `ORG/NAME@COMMIT` on the Hub, as a component has it."""
    from packageurl import PackageURL

    if location is None:
        return {}
    repo_id, _, commit = location.partition("@")
    namespace, _, name = repo_id.partition("/")
    purl = PackageURL("huggingface", namespace, name, commit or None).to_string()
    return {"purl": purl, "externalReferences": [{"type": "distribution", "url": f"{endpoint}/{repo_id}"}]}
