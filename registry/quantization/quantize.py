"""Composed folders in few bits: compressed-tensors, as transformers and vLLM read it.

Matrices of layers become packed integers with a scale for each row and group of columns, or float8 with a scale for
each row. Integers are made by GPTQ, which takes the Gram of a matrix' inputs from the members' statistics: an expert's
matrices by its own text, the rest by that of all members, and no text is read. Down projections have no such
statistics; they, the experts of added layers, and all float8, are rounded to the nearest. Routers, embeddings, heads,
norms and the attention of added layers stay as they are.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from registry.composition.card import CARD
from registry.composition.manifest import ComposedFolder, registered_versions
from registry.composition.stored import known_members
from registry.errors import CheckpointError, IncompatibleError, InvalidInputError, StorageError
from registry.families.sites import ATTENTION_INPUT, ATTENTION_OUTPUT, MLP_INPUT
from registry.io.dtypes import NAMES, WEIGHT_DTYPES
from registry.io.model_folder import (
    MARKER,
    UNLISTED,
    check_apart,
    check_output,
    fresh_folder,
    json_file,
    write_files,
    write_weights,
)
from registry.io.safetensors_file import Entry, Stream, read_header
from registry.io.torch_blocks import to_block
from registry.io.untrusted import read_json
from registry.maths.gptq import Grid, Rounded, gptq, inverse_factor, nearest, output_size
from registry.member import Member
from registry.progress import Progress
from registry.quantization.schemes import GROUPS, SCHEMES, Scheme
from registry.runtime.folder_checks import added_layers
from registry.workspace import PathLike, Workspace
from store.arrays import Block

_NAME = re.compile(r"model\.layers\.(\d+)\.(?:self_attn|mlp|[\w.]*?experts\.(\d+))\.(\w+)\.weight")
_SITES = {
    "q_proj": ATTENTION_INPUT,
    "k_proj": ATTENTION_INPUT,
    "v_proj": ATTENTION_INPUT,
    "o_proj": ATTENTION_OUTPUT,
    **dict.fromkeys(("gate_proj", "up_proj", "w1", "w3"), MLP_INPUT),
    **dict.fromkeys(("down_proj", "w2"), ""),
}
"""Matrix of a layer → the site of its input; none of a down projection."""

_AGAIN = "compose it again: reg compose --experts … --out DIR"
_OTHER = ("model.safetensors.index.json", MARKER, "config.json", *UNLISTED)  # files that are made anew, or not


@dataclass(frozen=True)
class Quantized:
    """A folder in few bits.

    Attributes:
        folder: the folder.
        scheme: w4a16, w8a16 or fp8.
        group: columns that have a scale of their own; None if each row has one.
        matrices: those in few bits.
        by_statistics: those of them that GPTQ rounded.
        kept: linear layers that stay as they are.
        errors: kind of matrix → Σ|(W - Ŵ)x|² / Σ|Wx|² over the members' text, rounded to the nearest, and as written.
        nbytes: of its weights.
    """

    folder: Path
    scheme: str
    group: int | None
    matrices: int
    by_statistics: int
    kept: int
    errors: Mapping[str, tuple[float, float]]
    nbytes: int


@dataclass(frozen=True)
class Place:
    """The place of a matrix: its layer among the members' own, None of an added one; its expert; its input's site."""

    layer: int | None
    expert: int | None
    site: str


def quantize(
    workspace: Workspace, folder: PathLike, out: PathLike, scheme: str, *, statistics: bool = True
) -> Quantized:
    """Write a composed folder in few bits (arguments and errors as `Registry.quantize`)."""
    if scheme not in SCHEMES:
        raise InvalidInputError(f"scheme {scheme!r} is not one of {', '.join(SCHEMES)}", "such as --scheme w4a16")
    composed, out = ComposedFolder.read(Path(folder)), Path(out)
    check_apart(out, composed.path, "a composed folder holds no other file")
    check_output(out, replace=None)
    _require_library()
    registered_versions(workspace.catalog, composed)  # none was opted out
    composed.check(workspace.progress)
    source = Source.of(composed)
    by_gptq = statistics and not SCHEMES[scheme].is_float
    members = known_members(workspace, composed, "rounded to the nearest") if by_gptq else []
    with workspace.reading(*(member.version for member in members)):
        return write_quantized(source, out, scheme, StoredGrams(members), workspace.progress)


@dataclass(frozen=True)
class Source:
    """A composed folder's tensors, and which of them are matrices to quantize."""

    path: Path
    config: Mapping[str, Any]
    entries: Mapping[str, tuple[Path, Entry]]
    places: Mapping[str, Place]

    @classmethod
    def of(cls, composed: ComposedFolder) -> "Source":
        """Read the headers of a folder (IncompatibleError: its experts are not matrices of their own)."""
        config = read_json(composed.path / "config.json")
        if "auto_map" in config:
            raise IncompatibleError(
                f"{composed.path} brings a modelling file, which compressed-tensors does not reach into",
                "compose for a class of transformers: --to moe --host mixtral, or --to dense",
            )
        entries = {
            name: (path, entry)
            for path in sorted(composed.path.glob("*.safetensors"))
            for name, entry in read_header(path).tensors.items()
        }
        added = added_layers(config, str(composed.path / "config.json"))
        places = dict(_places(entries, added))
        experts = {name for name, (_, entry) in entries.items() if len(entry.shape) == 3}
        if experts or not places:
            model = config.get("model_type")
            raise IncompatibleError(
                f"{composed.path} is a {model}, whose layers have no matrix of its own for each projection and expert",
                "compose it for another host: --host mixtral",
            )
        for name in places:
            entry = entries[name][1]
            if len(entry.shape) != 2 or NAMES.get(entry.dtype) not in WEIGHT_DTYPES:
                raise CheckpointError(
                    f"{name} is {entry.dtype} {list(entry.shape)}, expected a matrix of weights", _AGAIN
                )
        return cls(composed.path, config, entries, places)

    def group(self, scheme: Scheme) -> int | None:
        """Return the columns of a scale, None of a whole row (IncompatibleError: no size divides every matrix)."""
        if scheme.is_float:
            return None
        widths = {self.entries[name][1].shape[1] for name in self.places}
        group = next((size for size in GROUPS if all(width % size == 0 for width in widths)), None)
        if group is None:
            raise IncompatibleError(
                f"{self.path} has matrices of {', '.join(map(str, sorted(widths)))} columns, which no group of "
                f"{', '.join(map(str, GROUPS))} divides",
                "give --scheme fp8, which has no groups, or compose it again: hidden sizes are then multiples of 64",
            )
        return group

    @property
    def ignored(self) -> list[str]:
        """Linear modules that stay as they are."""
        kept = (name for name, (_, entry) in self.entries.items() if len(entry.shape) == 2 and name not in self.places)
        names = [name.removesuffix(".weight") for name in kept if "embed_tokens" not in name]
        return sorted({*names, "lm_head"})

    def tensor(self, name: str) -> Tensor:
        """Return a tensor."""
        from safetensors import safe_open

        with safe_open(self.entries[name][0], "pt") as file:
            found: Tensor = file.get_tensor(name)
            return found

    def blocks(self, name: str) -> Iterator[Block]:
        """Yield a tensor that stays as it is."""
        yield to_block(self.tensor(name))


def _places(entries: Mapping[str, tuple[Path, Entry]], added: Sequence[int]) -> Iterator[tuple[str, Place]]:
    for name in entries:
        match = _NAME.fullmatch(name)
        if match is None or match[3] not in _SITES:
            continue
        number, expert = int(match[1]), None if match[2] is None else int(match[2])
        layer = None if number in added else number - sum(one < number for one in added)
        if layer is not None or expert is not None:  # transformers reads the experts of all layers alike
            yield name, Place(layer, expert, _SITES[match[3]])


@dataclass
class StoredGrams:
    """Grams of the inputs of matrices, out of the members' statistics."""

    members: Sequence[Member]

    def __call__(self, name: str, place: Place) -> Float64[Tensor, "C C"] | None:
        """Return the Gram of a matrix's input; None where no member has it."""
        if place.layer is None or not place.site or not self.members:
            return None
        if place.layer >= (depth := self.members[0].architecture.num_hidden_layers):
            raise CheckpointError(f"{name} is of layer {place.layer} of the members, which have {depth}", _AGAIN)
        own = self.members if place.expert is None else self.members[place.expert : place.expert + 1]
        known = tuple(member for member in own if member.has_statistics(place.site))
        return self._sum(place.site, place.layer, tuple(member.version.ref for member in known))

    @cached_property
    def _sum(self) -> Callable[[str, int, tuple[str, ...]], Tensor | None]:
        known = {member.version.ref: member for member in self.members}

        @lru_cache(maxsize=1)  # queries, keys and values have one input, as gates and ups have
        def read(site: str, layer: int, refs: tuple[str, ...]) -> Tensor | None:
            total = None
            for ref in refs:
                gram = known[ref].packed_statistics(site, layer).gram
                total = gram if total is None else total.add_(gram)
            return total

        return read


@dataclass
class _Rounding:
    """Rounds matrices, each once, and keeps what was not yet written."""

    source: Source
    scheme: Scheme
    group: int | None
    gram_of: Callable[[str, Place], Tensor | None]
    by_statistics: int = 0
    errors: dict[str, list[float]] = field(default_factory=dict)
    _kept: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    _input: tuple[Tensor, Tensor, Tensor] | None = None  # the last Gram, the same of all channels, and its factor

    @cached_property
    def grid(self) -> Grid:
        """The numbers that weights become."""
        return Grid.float8() if self.scheme.is_float else Grid.integers(self.scheme.bits)

    def part(self, name: str, part: str) -> Tensor:
        """Return a matrix' numbers, `weight` or `weight_packed`, or their `weight_scale`."""
        from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

        if (name, part) not in self._kept:
            rounded = self._rounded(name)
            if self.scheme.is_float:
                self._kept[name, "weight"] = rounded.numbers
            else:
                self._kept[name, "weight_packed"] = pack_to_int32(rounded.numbers, self.scheme.bits)
            self._kept[name, "weight_scale"] = rounded.scales
        return self._kept.pop((name, part))

    def _rounded(self, name: str) -> Rounded:
        weight, place = self.source.tensor(name), self.source.places[name]
        if not weight.isfinite().all():
            raise CheckpointError(f"{name} has weights that are no finite numbers", "reg doctor names the member")
        group = self.group or weight.shape[1]
        made = nearest(weight, self.grid, group, weight.dtype)
        if (gram := self.gram_of(name, place)) is None:
            return made
        if self._input is None or self._input[0] is not gram or len(self._input[1]) != weight.shape[1]:
            if len(gram) > weight.shape[1]:
                raise CheckpointError(f"{name} has {weight.shape[1]} columns, its statistics {len(gram)}", _AGAIN)
            whole = _widened(gram, weight.shape[1])
            self._input = gram, whole, inverse_factor(whole)
        _, gram, factor = self._input
        better = gptq(weight, factor, self.grid, group, weight.dtype)
        kind = "experts" if place.expert is not None else "attention" if place.site != MLP_INPUT else "MLPs"
        sums = self.errors.setdefault(kind, [0.0, 0.0, 0.0])
        for at, change in enumerate((weight - made.weights, weight - better.weights, weight)):
            sums[at] += output_size(change, gram)
        self.by_statistics += 1
        return better


def _widened(gram: Tensor, width: int) -> Tensor:
    """Return a Gram of a stream with more channels, whose weights are zero: of the size of the others, and apart."""
    if len(gram) == width:
        return gram
    whole = torch.eye(width, dtype=gram.dtype) * gram.diagonal().mean()
    whole[: len(gram), : len(gram)] = gram
    return whole


def _streams(source: Source, rounding: _Rounding) -> Iterator[Stream]:
    for name, (_, entry) in source.entries.items():
        dtype = NAMES[entry.dtype]
        if name not in source.places:
            yield Stream(name, dtype, entry.shape, partial(source.blocks, name))
            continue
        (rows, columns), module = entry.shape, name.removesuffix(".weight")
        scales = rows, columns // (rounding.group or columns)
        parts = {"weight_scale": (dtype, scales)}
        if rounding.scheme.is_float:
            parts["weight"] = "float8_e4m3fn", (rows, columns)
        else:
            parts["weight_packed"] = "int32", (rows, -(-columns * rounding.scheme.bits // 32))
            yield Stream.of(f"{module}.weight_shape", to_block(torch.tensor(entry.shape)), "int64")
        for part, (own, shape) in parts.items():
            yield Stream(f"{module}.{part}", own, shape, partial(_blocks, rounding, name, part))


def _blocks(rounding: _Rounding, name: str, part: str) -> Iterable[Block]:
    return [to_block(rounding.part(name, part))]


def write_quantized(
    source: Source, out: Path, name: str, gram_of: Callable[[str, Place], Tensor | None], progress: Progress
) -> Quantized:
    """Write a folder in few bits; `gram_of` gives the Gram of a matrix's input, or None to round it to the nearest."""
    scheme = SCHEMES[name]
    group = source.group(scheme)
    rounding = _Rounding(source, scheme, group, gram_of)
    streams = list(_streams(source, rounding))
    nbytes = sum(stream.nbytes for stream in streams)
    with fresh_folder(out, replace=None, nbytes=nbytes) as fresh:
        with progress(f"rounding to {name}", nbytes, "B") as advance:
            write_weights(fresh, streams, advance)
        copied = [path for path in source.path.iterdir() if path.is_file() and path.suffix != ".safetensors"]
        files = {path.name: path.read_bytes() for path in copied if path.name not in _OTHER}
        if CARD in files:
            files[CARD] += _said(name, rounding, len(source.places)).encode()
        config = {**source.config, "quantization_config": _config(scheme, group, source.ignored)}
        write_files(fresh, {**files, "config.json": json_file(config)})
        _check(fresh, source)
    errors = {kind: (plain / whole, own / whole) for kind, (plain, own, whole) in rounding.errors.items() if whole}
    kept, done = len(source.ignored), rounding.by_statistics
    return Quantized(out, name, group, len(source.places), done, kept, errors, nbytes)


def _config(scheme: Scheme, group: int | None, ignored: Sequence[str]) -> dict[str, Any]:
    from compressed_tensors.quantization import QuantizationConfig

    weights: dict[str, Any] = {"num_bits": scheme.bits, "symmetric": True}
    layers: dict[str, Any] = {"targets": ["Linear"], "weights": weights}
    if scheme.is_float:
        weights |= {"type": "float", "strategy": "channel"}
        layers["input_activations"] = {**weights, "strategy": "token", "dynamic": True}
    else:
        weights |= {"type": "int", "strategy": "group", "group_size": group}
    config = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized" if scheme.is_float else "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": layers},
        "ignore": [*ignored],
    }
    QuantizationConfig.model_validate(config)
    return config


def _check(folder: Path, source: Source) -> None:
    """Count what was written against the plan (CheckpointError: a matrix is missing, or another one is in few bits)."""
    written = {name for path in folder.glob("*.safetensors") for name in read_header(path).tensors}
    packed = {name.removesuffix("_scale") for name in written if name.endswith(".weight_scale")}
    kept = {name for name in written if not re.search(r"\.weight_(packed|scale|shape)$", name)} - packed
    if packed != {*source.places} or kept != {*source.entries} - packed:
        raise CheckpointError(
            f"{len(packed)} matrices are in few bits, and {len(source.places)} were to be", "report this"
        )


def _said(scheme: str, rounding: _Rounding, matrices: int) -> str:
    scales = f"in groups of {rounding.group} columns" if rounding.group else "with a scale for each row"
    by = rounding.by_statistics
    how = f"{by} of them by GPTQ with the members' statistics, the others " if by else ""
    return (
        f"\n## In few bits\n\n{matrices} matrices are rounded to {scheme}, {scales}: "
        f"{how}to the nearest. They load where compressed-tensors is installed. All above is of the composition that "
        "this was made from, which has the `composition.json`.\n"
    )


def _require_library() -> None:
    try:
        import_module("compressed_tensors")
    except ImportError as error:
        raise StorageError(
            f"weights in few bits need compressed-tensors: {error}", "run: pip install 'expert-registry[quantize]'"
        ) from error
