"""GGUF files of composed folders: llama.cpp converts and quantizes, and its tokens are compared with the tokenizer's.

A mixture or a dense model becomes one file. Experts that stay adapters become a folder: their base model, and each of
them as a LoRA that llama.cpp loads beside it.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from registry.composition.low_rank import Change, write_changes
from registry.composition.manifest import ComposedFolder, registered_versions
from registry.composition.stored import known_members, write_dense
from registry.errors import CheckpointError, IncompatibleError, InvalidInputError, StorageError
from registry.gguf.importance import Importance, write_importance
from registry.gguf.llama_cpp import TOKENIZE, LlamaCpp
from registry.gguf.types import BITS, EXACT, FEW_BITS, TYPES
from registry.hosts import Host, native
from registry.hosts.context import CONTEXT_LAYERS
from registry.io.disk import atomic_file
from registry.io.model_folder import check_apart, check_file, check_output, check_outside, fresh_folder
from registry.io.safetensors_file import read_header
from registry.io.untrusted import read_json
from registry.io.work_dirs import temporary_folder
from registry.member import Member, load_member
from registry.names.reference import check_name
from registry.names.resolve import by_digest
from registry.progress import Progress, remark
from registry.runtime.folder_checks import added_layers, check_members
from registry.runtime.loading import load_tokenizer
from registry.workspace import PathLike, Workspace

_BITS = BITS | FEW_BITS
_SAMPLE = Path(__file__).with_name("sample.txt")
_ADAPTED = "adapted_layers"
_PRE = {
    ("ByteLevel",): "gpt-2",
    ("Digits", "ByteLevel"): "smollm",
}
"""Kinds of a pre-tokenizer's steps, whose settings are the usual ones → llama.cpp's name of its rules."""

_EOT = "tokenizer.ggml.eot_token_id"
_ADDS_BOS = "tokenizer.ggml.add_bos_token"


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file: of a model, or of an expert that llama.cpp loads beside its base model."""

    file: Path  # the file
    type: str  # its type
    nbytes: int  # its bytes


@dataclass(frozen=True)
class GgufExport:
    """The files that were written, the model first.

    Attributes:
        files: every file.
        importance: the extent of the importance matrix; None without one.
        tokens: tokens of sample text that llama.cpp was seen to cut as the tokenizer does; None if it was not asked.
    """

    files: tuple[GgufFile, ...]
    importance: Importance | None
    tokens: int | None


@dataclass(frozen=True)
class _Export:
    """Writes the files of an export: with a copy of llama.cpp, of a type, with the rules of an unknown tokenizer."""

    workspace: Workspace
    llama: LlamaCpp
    kind: str | None
    pre: str

    @property
    def progress(self) -> Progress:
        """The progress of the workspace."""
        return self.workspace.progress

    def model(
        self, folder: Path, out: Path, members: Sequence[Member], added: Sequence[int]
    ) -> tuple[GgufFile, Importance | None, int | None]:
        """Write the file of a folder of transformers; `members` give the importance, if there are any."""
        _require_no_code(folder)
        own, nbytes = _weights(folder)
        kind = self.kind or own
        first = kind if kind in BITS else own
        sizes = [nbytes * _BITS[one] / _BITS[own] for one in dict.fromkeys((first, kind))]
        _require_room(out, int(sum(sizes)))
        with temporary_folder(out.parent) as work:
            made = work / "model.gguf"
            self.llama.convert(folder, made, first, self.pre or _pre_tokenizer(folder), int(sizes[0]), self.progress)
            _mend(made, folder)
            tokens = self._compare_tokens(made, folder)
            importance = None
            if kind != first:
                weights, last = work / "imatrix.gguf", work / "quantized.gguf"
                importance = write_importance(made, weights, members, added) if members else None
                self.llama.quantize(made, last, kind, weights if importance else None, int(sizes[-1]), self.progress)
                made = last
            with atomic_file(out, f".{out.name}.{os.getpid()}.partial") as fresh:
                made.replace(fresh)
        return GgufFile(out, kind, out.stat().st_size), importance, tokens

    def _compare_tokens(self, made: Path, folder: Path) -> int | None:
        text = _SAMPLE.read_text(encoding="utf-8")
        if (found := self.llama.tokens(made, text)) is None:
            remark(self.progress, f"tokens are not compared: there is no {TOKENIZE}, neither built nor on PATH")
            return None
        tokenizer = load_tokenizer(folder)
        expected = tokenizer(text, verbose=False)["input_ids"]
        if found != expected:
            at = next((n for n, pair in enumerate(zip(found, expected, strict=False)) if len({*pair}) > 1), len(found))
            near = tokenizer.decode(expected[max(at - 3, 0) : at + 3])
            raise IncompatibleError(
                f"llama.cpp cuts text into other tokens than {folder.name}'s tokenizer, at token {at}, near {near!r}",
                "name the rules that cut text alike: --pre-tokenizer NAME, one of llama.cpp's in src/llama-vocab.cpp",
            )
        return len(found)


def export_gguf(
    workspace: Workspace,
    folder: PathLike,
    out: PathLike,
    kind: str | None,
    *,
    llama_cpp: PathLike | None,
    importance: bool,
    pre_tokenizer: str | None,
    replace: bool,
) -> GgufExport:
    """Write GGUF of a composed folder (arguments and errors as `Registry.export_gguf`)."""
    if kind not in (None, *TYPES):
        raise InvalidInputError(f"type {kind!r} is not one of {', '.join(TYPES)}", "such as --type q4_K_M")
    composed, out = ComposedFolder.read(Path(folder)), Path(out).absolute()
    config = read_json(composed.path / "config.json")
    if _ADAPTED in config:
        check_apart(out, composed.path, "a composed folder holds no other file")
        check_output(out, replace=None)
        check_members(composed.path, config)
        _require_plain(config)
        _say_left_out(config, workspace.progress)
    else:
        _require_heads(config)
        check_outside(out, composed.path)
        check_file(out, replace=replace)
    llama = LlamaCpp.find(None if llama_cpp is None else Path(llama_cpp))
    if kind in FEW_BITS:
        llama.require_quantize(kind)
    _require_gguf()
    registered_versions(workspace.catalog, composed)  # none was opted out
    composed.check(workspace.progress)
    export = _Export(workspace, llama, kind, pre_tokenizer or "")
    members = known_members(workspace, composed, "no importance matrix") if importance and kind in FEW_BITS else []
    with workspace.reading(*(member.version for member in members)):
        if _ADAPTED in config:
            return _write_adapters(export, composed, config, out, members)
        made = export.model(composed.path, out, members, added_layers(config, str(composed.path / "config.json")))
        return GgufExport((made[0],), *made[1:])


def _write_adapters(
    export: _Export, composed: ComposedFolder, config: Mapping[str, Any], out: Path, members: Sequence[Member]
) -> GgufExport:
    workspace, ref = export.workspace, composed.manifest.base
    assert ref is not None
    version = by_digest(workspace.catalog, ref.name, ref.digest, str(composed.path), composed.digest)
    with workspace.reading(version), temporary_folder(workspace.home.work) as work:
        base = load_member(workspace, version)
        model = work / base.name
        _require_own_head(base, config)
        write_dense([base], model, workspace.progress)
        with fresh_folder(out, replace=None, nbytes=_weights(model)[1] // 8) as fresh:
            file, importance, tokens = export.model(model, fresh / "base.gguf", members, ())
            files, plain = [file], file.type if file.type in EXACT.values() else "f16"
            for number, name in enumerate(map(check_name, config["members"])):
                if not (changes := _changes(composed.path, config, number)):
                    continue  # the base model itself
                adapter = work / f"{name}-lora"
                write_changes(base, changes, adapter, workspace.progress)
                made = fresh / f"{name}-lora.gguf"
                export.llama.convert_lora(adapter, model, made, plain, workspace.progress)
                files.append(GgufFile(made, plain, made.stat().st_size))
                shutil.rmtree(adapter)
    return GgufExport(tuple(replace(one, file=out / one.file.name) for one in files), importance, tokens)


def _changes(folder: Path, config: Mapping[str, Any], number: int) -> dict[str, Change]:
    """Return module → the change that a member makes of it, in float32, of the scaling 1 and one rank everywhere.

    llama.cpp scales every matrix by one alpha over the matrix's own rank, so a lesser rank gets rows of zeros.
    """
    kinds = {layer: config["adapted_kinds"][index][number] for layer, index in config[_ADAPTED].items()}
    most = max((rank for rank, _, _ in kinds.values()), default=0)
    found = {}
    for layer, (rank, scaling, _) in kinds.items():
        if rank:
            start = sum(kind[0] for kind in config["adapted_kinds"][config[_ADAPTED][layer]][:number])
            found[layer] = Change((most, 1.0, False), "float32", _Factor(folder, layer, start, rank, scaling, most))
    return found


@dataclass(frozen=True)
class _Factor:
    """Reads a factor of a change out of a composed folder, where those of all members are stacked."""

    folder: Path
    layer: str
    start: int
    rank: int
    scaling: float
    most: int

    def __call__(self, part: str) -> torch.Tensor:
        down, up = (_tensor(self.folder, f"{self.layer}.lora_{one}").float() for one in "AB")
        rows = slice(self.start, self.start + self.rank)
        if part == "A":
            return torch.nn.functional.pad(down[rows], (0, 0, 0, self.most - self.rank))
        outputs = len(up) // len(down)
        own = up[self.start * outputs : (self.start + self.rank) * outputs].view(outputs, self.rank)
        return torch.nn.functional.pad(own * self.scaling, (0, self.most - self.rank))


def _tensor(folder: Path, name: str) -> torch.Tensor:
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            if name in file.keys():  # noqa: SIM118 - it is no mapping
                found: torch.Tensor = file.get_tensor(name)
                return found
    raise CheckpointError(f"{folder} has no tensor {name}", "compose it again: reg compose --experts … --out DIR")


def _require_plain(config: Mapping[str, Any]) -> None:
    """Check that llama.cpp has the adapters' kind of change (IncompatibleError: it has no DoRA)."""
    for number, name in enumerate(config["members"]):
        if any(kinds[number][2] for kinds in config["adapted_kinds"]):
            raise IncompatibleError(
                f"{name} is a DoRA adapter, which llama.cpp does not have", "compose whole experts: --to moe"
            )


def _say_left_out(config: Mapping[str, Any], progress: Progress) -> None:
    for number, name in enumerate(config["members"]):
        if count := sum(number in own for own in config["adapted_vectors"].values()):
            remark(progress, f"{name}: {count:,} norms and biases of its own are left out, as a LoRA has none")


def _require_own_head(base: Member, config: Mapping[str, Any]) -> None:
    """Check that no change of an embedding is one of the head too, to which llama.cpp would apply it transposed."""
    table = base.family.embedding
    if table == base.family.own_head(base.architecture) and table.removesuffix(".weight") in config[_ADAPTED]:
        raise IncompatibleError(
            f"an adapter changes {table}, which is the head of {base.version.ref} too, and llama.cpp cannot apply that",
            "compose whole experts: --to moe",
        )


def _require_heads(config: Mapping[str, Any]) -> None:
    """Check that llama.cpp has the heads of a folder (IncompatibleError: it derives their size from a wider stream)."""
    kind = config.get("model_type")
    hosts = [one for one in vars(native).values() if isinstance(one, Host) and one.model_type == kind]
    if CONTEXT_LAYERS in config and any(one.context and one.context.fixed_heads for one in hosts):
        raise IncompatibleError(
            f"llama.cpp derives the size of {kind}'s heads from its hidden size, which context routing makes larger",
            "compose it for another host, such as --host mixtral, or without a context layer: --router ridge",
        )


def _require_no_code(folder: Path) -> None:
    """Check that a folder brings no code, which llama.cpp's converter might run (IncompatibleError: it does)."""
    settings = [folder / name for name in ("config.json", "tokenizer_config.json")]
    if [*folder.glob("*.py")] or any("auto_map" in read_json(path) for path in settings if path.is_file()):
        raise IncompatibleError(
            f"{folder.name} brings code of its own, which llama.cpp does not have",
            "compose for a class of transformers: --to moe --host mixtral, --to dense or --to adapters",
        )


def _require_gguf() -> None:
    try:
        import_module("gguf")
    except ImportError as error:
        raise StorageError(f"GGUF files need gguf: {error}", "run: pip install 'expert-registry[gguf]'") from error


def _require_room(out: Path, nbytes: int) -> None:
    if (free := shutil.disk_usage(out.parent).free) < nbytes:
        raise StorageError(
            f"{out} takes about {nbytes:,} bytes while it is made, its disk has {free:,} free",
            "free some space, or choose another --out",
        )


def _weights(folder: Path) -> tuple[str, int]:
    """Return the type of file that holds a folder's weights exactly, and their bytes."""
    dtypes, nbytes = set(), 0
    for path in folder.glob("*.safetensors"):
        for entry in read_header(path).tensors.values():
            dtypes |= {entry.dtype} if len(entry.shape) > 1 else set()
            nbytes += entry.end - entry.begin
    return EXACT.get(dtypes.pop(), "f32") if len(dtypes) == 1 else "f32", nbytes


def _pre_tokenizer(folder: Path) -> str:
    """Return llama.cpp's name of a tokenizer's rules where its steps tell it; else an empty text."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return ""
    given = read_json(path).get("pre_tokenizer")
    steps = given.get("pretokenizers", [given]) if isinstance(given, dict) else []
    if not all(isinstance(step, dict) for step in steps):
        return ""
    usual = {"use_regex": True, "add_prefix_space": False, "individual_digits": True}
    plain = all(step.get(key, value) is value for step in steps for key, value in usual.items())
    return _PRE.get(tuple(step.get("type") for step in steps), "") if plain else ""


def _mend(file: Path, folder: Path) -> None:
    """Set what the converter takes from the size of a vocabulary as if it told the model.

    With 49,152 tokens texts get no start token, and with 32,016 the token 32,010 ends a turn, whichever it is.
    """
    from gguf import GGUFReader

    tokenizer, reader = load_tokenizer(folder), GGUFReader(file, "r+")
    if (field := reader.get_field(_ADDS_BOS)) is not None:
        begins = tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
        field.parts[field.data[0]][0] = begins
    field = reader.get_field(_EOT)
    if field is not None and len(tokenizer) == 32_016 and "EOT" not in tokenizer.convert_ids_to_tokens(32_010):
        field.parts[field.data[0]][0] = tokenizer.eos_token_id
    reader.data.flush()
