"""PEFT adapters: low-rank changes of a base model, merged into it tensor by tensor.

The meaning of adapter_config.json, the names of tensors and the rounding of a merge are those of PEFT's LoRA
(peft.tuners.lora), so that a merged folder holds the bits of `merge_and_unload` and `save_pretrained` on a CPU. An
adapter that PEFT would merge into a model other than the trained one is refused.
"""

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from registry import maths  # loads torch when one of its functions is called
from registry.checkpoint.adapter_config import CONFIG, SAVE, Settings
from registry.checkpoint.model_files import (
    EXPERT_TRAINING,
    SINGLE,
    TOKENIZER_FILES,
    empty_tensors,
    own_files,
    read_files,
    read_headers,
    weight_source,
)
from registry.checkpoint.plain_folder import renamed_note, unwrapped
from registry.checkpoint.tokenizer import token_rows
from registry.errors import CheckpointError
from registry.io.display import few, some
from registry.io.dtypes import NAMES, WEIGHT_DTYPES
from registry.io.model_folder import INDEX, fresh_folder, json_file, write_files, write_weights
from registry.io.safetensors_file import Stream
from registry.io.torch_blocks import read_tensor, to_block, to_tensor, torch_dtype
from registry.io.untrusted import json_object, own_file, read_json
from registry.progress import Progress
from store.arrays import ArraySource, Block

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

WEIGHTS, PICKLE = "adapter_model.safetensors", "adapter_model.bin"
HEADER = "header"
"""Name of the array that has what precedes the tensors in an adapter's file."""

_PREFIX = "base_model.model."
_NAMED = re.compile(r"\.(?:lora_[AB]|lora_magnitude_vector|lora_embedding_[AB]|modules_to_save)\.([^.]+)(\.\w+)?$")
"""Where a tensor's name has the adapter's, which PEFT takes out when it saves one: `.lora_A.default.weight`."""

_ROWS = 4096  # of a table of tokens, which are compared at once

_COPIES = (".modules_to_save.", ".original_module.")
"""PEFT repeats modules_to_save under these names if the vocabulary was enlarged, and does not read them again."""

_PARTS = {  # end of an adapter tensor's name → its part in the change of its module's weight
    ".lora_A.weight": "A",
    ".lora_B.weight": "B",
    ".lora_embedding_A": "embedding_A",
    ".lora_embedding_B": "embedding_B",
    ".lora_magnitude_vector": "magnitude",
    ".lora_magnitude_vector.weight": "magnitude",
}

_EMBEDDINGS = ("model.embed_tokens.weight", "gpt_neox.embed_in.weight")
_HEADS = ("lm_head.weight", "embed_out.weight")
_VOCABULARIES = frozenset({"tokenizer.json", "tokenizer.model", "vocab.json"})
_CARRIED = ("calibration.*", "statistics.safetensors", EXPERT_TRAINING)

Parts = dict[str, str]
"""The change of one tensor: part → name of the adapter's tensor. `whole` replaces it; `head` must equal `whole`."""


class DenseWeights(Protocol):
    """A base model: a folder, or a registered version. Its linear layers are stored as (outputs, inputs)."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every weight, by name."""

    def source(self, name: str) -> ArraySource:
        """Return one weight as blocks of rows."""

    def files(self) -> dict[str, bytes]:
        """Return config.json and the tokenizer's files, by name."""


def is_adapter(folder: Path) -> bool:
    """Tell whether a folder holds an adapter: its configuration, and no whole model beside it."""
    weights = any((folder / name).is_file() for name in (SINGLE, INDEX)) or any(folder.glob("pytorch_model*.bin"))
    return (folder / CONFIG).is_file() and not (weights and (folder / "config.json").is_file())


class Adapter:
    """An adapter that is merged exactly as LoRA, rsLoRA or DoRA.

    Attributes:
        label: its name in messages.
        tensors: its tensors, by the names that they have in its file.
        names: name that PEFT's `save_pretrained` gives a tensor → its name in the file.
        files: returns the tokenizer's files and generation_config.json beside it, by name.
        notes: remarks on what of it is read otherwise than it stands there, and on what is not used.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        tensors: dict[str, ArraySource],
        files: Callable[[], dict[str, bytes]],
        label: str,
    ) -> None:
        """Read what adapter_config.json says of tensors (CheckpointError: no adapter that can be merged exactly)."""
        self.label, self.tensors, self.files = label, tensors, files
        self.settings = Settings(dict(config), label)
        self.notes: list[str] = []
        self.names = {plain: name for name, plain in self._plain_names().items()}
        self._stored = {plain: tensors[name] for plain, name in self.names.items()}
        if outside := [name for name in self._stored if not name.startswith(_PREFIX)]:
            raise CheckpointError(f"{label}: tensor {outside[0]} does not begin with {_PREFIX}", SAVE)
        self._parts = self._group()

    @classmethod
    def of_folder(cls, folder: Path, label: str | None = None) -> Self:
        """Open a folder, reading configuration and header (CheckpointError: no adapter that can be merged exactly)."""
        label = label or str(folder)
        if (config := own_file(folder, CONFIG)) is None:
            raise CheckpointError(f"{label} is not an adapter: it has no {CONFIG}", SAVE)
        document = read_json(config)
        Settings(document, label)  # what it says is refused before its weights are looked for
        return cls(document, _stored_tensors(folder, label), partial(read_files, folder), label)

    def kind(self, parts: Parts) -> tuple[int, float, bool]:
        """Return rank and scaling of a low-rank change, and whether it is DoRA."""
        module = _module(parts["A"] if "A" in parts else parts["embedding_A"])
        return self.settings.rank(module), self._scaling(module), "magnitude" in parts

    def _scaling(self, module: str) -> float:
        settings = self.settings
        return maths.lora_scaling(settings.alpha(module), settings.rank(module), stabilised=settings.rslora)

    def check(self, base: DenseWeights) -> dict[str, Parts]:
        """Return the change of each tensor of `base` that changes, by its name.

        (CheckpointError: a tensor does not fit or is missing, or the merged model would not be the trained one.)
        """
        shapes = base.shapes
        embedding, head = (next((name for name in names if name in shapes), None) for names in (_EMBEDDINGS, _HEADS))
        changes = self._changes(embedding, head)
        if unknown := [name for target, parts in changes.items() if target not in shapes for name in parts.values()]:
            raise self._misfit(f"{some(unknown)} for no tensor of the base")
        for target, parts in changes.items():
            self._check_shapes(target, parts, shapes[target], base if target in (embedding, head) else None)
        if absent := [name for name in self.settings.targets if not any(f".{name}." in f".{key}" for key in changes)]:
            self.notes.append(f"{some(absent)} in target_modules, and no tensor changes one: they stay the base's")
        whole = {name for name, parts in changes.items() if "whole" in parts}
        for module in self.settings.saved:
            if missing := [name for name in shapes if f".{module}." in f".{name}" and name not in whole]:
                raise CheckpointError(f"{self.label}: {some(missing)} in modules_to_save but not in {WEIGHTS}", SAVE)
        rows = {self.shape(changes.get(name, {}), shapes[name])[0]: name for name in (embedding, head) if name}
        if len(rows) > 1:
            raise CheckpointError(
                f"{self.label}: merged, {' and '.join(f'{name} has {count:,} rows' for count, name in rows.items())}",
                "save both with the adapter: PEFT's save_pretrained(..., save_embedding_layers=True)",
            )
        return changes

    def shape(self, parts: Parts, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that a tensor of the base has after merging."""
        own = self._stored[parts["whole"]].shape if "whole" in parts else shape
        return shape if own[1:] == shape[1:] and own[0] < shape[0] else own  # the rows after its own stay the base's

    def merged(self, target: str, parts: Parts, source: ArraySource) -> Iterator[Block]:
        """Yield a tensor of the base after merging, one block in the base's dtype; `source` is it before.

        (CheckpointError: a weight is NaN or infinite, or becomes so.)
        """
        import torch

        read = {part: read_tensor(self._stored[name]) for part, name in parts.items()}
        dtype = torch_dtype(source.dtype)
        weight = read["whole"].to(dtype) if "whole" in read else read_tensor(source)
        if len(weight) < source.shape[0]:  # the rows of a table of tokens after the adapter's own are the base's
            weight = torch.cat([weight, read_tensor(source)[len(weight) :]])
        if "head" in read and not torch.equal(read["head"].to(dtype), read["whole"].to(dtype)):
            raise self._untied()
        if "A" in read:
            weight = self._change(weight, read, parts["A"], "").to(dtype)
        elif "embedding_A" in read:
            weight = self._change(weight.T, read, parts["embedding_A"], "embedding_").T.to(dtype)
        if not bool(torch.isfinite(weight).all()):
            raise CheckpointError(
                f"{self.label}: merging makes weights of {target} NaN or infinite",
                "register an adapter from before the training diverged",
            )
        yield to_block(weight)

    def merged_rows(self, parts: Parts, weight: "torch.Tensor", rows: "npt.NDArray[np.int64]") -> "torch.Tensor":
        """Return some rows of a matrix after a low-rank change; `weight` has these rows before."""
        read = {part: read_tensor(self._stored[name]) for part, name in parts.items()}
        return self._change(weight, read | {"B": read["B"][rows]}, parts["A"], "").to(weight.dtype)

    def _change(self, weight: "torch.Tensor", read: dict[str, "torch.Tensor"], name: str, kind: str) -> "torch.Tensor":
        """Return W of shape (outputs, inputs) after its low-rank change, rounded in between where PEFT rounds."""
        delta = maths.lora_delta(read[f"{kind}A"], read[f"{kind}B"], self._scaling(_module(name)))
        if "magnitude" in read:
            return maths.dora_weight(weight, delta, read["magnitude"])
        return weight + (delta.to(weight.dtype) if kind else delta)

    def _plain_names(self) -> dict[str, str]:
        """Return the names that PEFT's `save_pretrained` gives the tensors, by those in the file.

        Training programs leave the adapter's own name in (`.lora_A.default.weight`), and wrappers of the model.
        """
        names = {key: unwrapped(key) for key in self.tensors}
        names = {key: name[max(name.find(_PREFIX), 0) :] for key, name in names.items()}
        found = {key: match for key, name in names.items() if (match := _NAMED.search(name))}
        found = {key: match for key, match in found.items() if match[2] or match[1] not in ("weight", "bias")}
        if len(adapters := sorted({match[1] for match in found.values()})) > 1:
            raise CheckpointError(
                f"{self.label}: {WEIGHTS} has several adapters: {few(adapters)}",
                f"save one of them: save_pretrained(DIR, selected_adapters=[{adapters[0]!r}])",
            )
        for key, match in found.items():
            name = names[key][: match.start(1) - 1] + names[key][match.end(1) :]
            names[key] = name.replace(_COPIES[0], ".")
        self.notes += renamed_note(names, self.label, SAVE)
        return names

    def _group(self) -> dict[str, Parts]:
        """Return the change of each tensor, by its name in the model class."""
        grouped: dict[str, Parts] = {}
        copies: list[str] = []
        for name in self._stored:
            if any(copy in name and name.replace(copy, ".") in self._stored for copy in _COPIES):
                copies.append(name)
                continue
            target, part = _target(name)
            if (other := grouped.setdefault(target, {}).setdefault(part, name)) != name:
                raise CheckpointError(f"{self.label}: tensors {other} and {name} are for the same of the base", SAVE)
        if copies:
            self.notes.append(f"{some(copies)} not used: copies that PEFT does not read again either")
        if not grouped:
            raise CheckpointError(f"{self.label}: {WEIGHTS} has no tensors", SAVE)
        for target, parts in grouped.items():
            kind = "embedding_" if "embedding_A" in parts else ""
            needed = {f"{kind}A", f"{kind}B"} | ({"magnitude"} if self.settings.dora else set())
            if (low_rank := parts.keys() - {"whole"}) and low_rank != needed:
                raise CheckpointError(
                    f"{self.label}: for {target} there are {', '.join(sorted(low_rank))}, "
                    f"{CONFIG} asks for {', '.join(sorted(needed))}",
                    SAVE,
                )
        return grouped

    def _changes(self, embedding: str | None, head: str | None) -> dict[str, Parts]:
        """Return the change of each tensor, by its name in a base with this embedding and head (None: tied)."""
        changes = {target: dict(parts) for target, parts in self._parts.items()}
        own = changes.pop(_HEADS[0], {})
        if head is None and embedding in changes and changes[embedding].keys() == own.keys() == {"whole"}:
            changes[embedding]["head"] = own["whole"]
        elif head is None and (own or embedding in changes):
            raise self._untied()
        elif own:
            changes[str(head)] = own
        return changes

    def _check_shapes(self, target: str, parts: Parts, shape: tuple[int, ...], base: DenseWeights | None) -> None:
        """Check a change against the shape of its tensor; `base` is given for a table of tokens."""
        own = self._stored[parts["whole"]].shape if "whole" in parts else shape
        if base is not None and len(own) == 2 and own[1:] == shape[1:] and own[0] != shape[0]:
            tokens = token_rows(self.files()) or token_rows(base.files())
            if own[0] < (shape[0] if tokens is None else tokens):
                used = "no tokenizer.json says how many are used" if tokens is None else f"{tokens:,} tokens need one"
                raise CheckpointError(
                    f"{self.label}: {parts['whole']} has {own[0]:,} rows, the base's table {shape[0]:,}, and {used}",
                    "save the adapter with a row for every token, or put the tokenizer that it has into its folder",
                )
            if own[0] < shape[0]:
                rest = f"the last {shape[0] - own[0]:,}, which no token has, stay the base's"
                self.notes.append(f"{parts['whole']} has {own[0]:,} rows, the base's table {shape[0]:,}: {rest}")
            shape = own  # tokens were added, or the base's table was padded
        expected = dict.fromkeys(("whole", "head"), shape)
        if low_rank := sorted(parts.keys() - expected.keys()):
            if len(shape) != 2:
                raise self._misfit(
                    f"{parts[low_rank[0]]} is for {target}, which is not a matrix but has shape {list(shape)}"
                )
            rank = self.settings.rank(_module(parts[low_rank[0]]))
            for kind, (rows, columns) in (("", shape), ("embedding_", shape[::-1])):
                expected |= {f"{kind}A": (rank, columns), f"{kind}B": (rows, rank)}
            expected["magnitude"] = (shape["embedding_A" in parts],)
        for part, name in parts.items():
            if (stored := self._stored[name].shape) != expected[part]:
                turned = f", or {target} is of a Conv1D, (inputs, outputs), which is not read" if low_rank else ""
                raise self._misfit(
                    f"tensor {name} has shape {list(stored)}, {CONFIG} and the base ask for {list(expected[part])}"
                    + (turned if self.settings.turned else "")
                )

    def _misfit(self, problem: str) -> CheckpointError:
        base = f", {self.settings.base_name}" if self.settings.base_name else ""
        return CheckpointError(f"{self.label}: {problem}", f"give the base model that the adapter was trained on{base}")

    def _untied(self) -> CheckpointError:
        return CheckpointError(
            f"{self.label}: the base's output head is its embedding, and the adapter changes the two apart",
            "untie the base as PEFT's merge_and_unload() explains, merge there, and register the result",
        )


class Merged:
    """The dense model that an adapter makes of its base; no weight is read before it is asked for.

    Attributes:
        changes: the change of each tensor that changes, by its name.
        shapes: shape of every tensor.
    """

    def __init__(self, adapter: Adapter, base: DenseWeights) -> None:
        """Check an adapter against its base (CheckpointError: it does not fit; see `Adapter.check`)."""
        self.adapter, self.base, self.changes = adapter, base, adapter.check(base)
        self.shapes = {name: adapter.shape(self.changes.get(name, {}), shape) for name, shape in base.shapes.items()}

    def is_low_rank(self, name: str) -> bool:
        """Tell whether the change of a tensor is a low-rank one alone.

        Beside that of an embedding or a head PEFT saves the base's own weight, which is read and compared.
        """
        parts, adapter = self.changes[name], self.adapter
        if "whole" not in parts or parts.keys() <= {"whole", "head"}:
            return "whole" not in parts
        own, base = read_tensor(adapter.tensors[adapter.names[parts["whole"]]]), read_tensor(self.base.source(name))
        if own.shape != base.shape:
            return False
        pairs = zip(own.split(_ROWS), base.split(_ROWS), strict=True)
        return all(bool((a.float() == b.float()).all()) for a, b in pairs)

    def source(self, name: str) -> ArraySource:
        """Return one tensor as blocks of rows (errors as `Adapter.merged`, while it is read)."""
        source = self.base.source(name)
        if name not in self.changes:
            return source
        blocks = partial(self.adapter.merged, name, self.changes[name], source)
        return ArraySource(source.dtype, self.shapes[name], blocks)

    def sample(self, name: str, rows: "npt.NDArray[np.int64]", of_base: Callable[[str, Any], Block]) -> Block:
        """Return some rows of one tensor, in its carrier dtype; `of_base` returns those of a tensor of the base.

        Of a low-rank change of a matrix nothing else is read.
        """
        if name not in self.changes:
            return of_base(name, rows)
        source, parts = self.base.source(name), self.changes[name]
        if parts.keys() != {"A", "B"}:
            return to_block(read_tensor(self.source(name))[rows])
        return to_block(self.adapter.merged_rows(parts, to_tensor(of_base(name, rows), source.dtype), rows))

    def files(self) -> dict[str, bytes]:
        """Return the small files by name: of the adapter's tokenizer and generation_config.json, else of the base's."""
        return _files(self.adapter, self.base, self.shapes)

    def write(self, out: Path, progress: Progress) -> None:
        """Write it to `out`, an absent or empty folder, atomically, one tensor in memory at a time.

        (CheckpointError: weights become NaN or infinite; others as `fresh_folder`.)
        """
        sources = {name: self.source(name) for name in self.shapes}
        streams = [Stream(name, one.dtype, one.shape, one.blocks) for name, one in sources.items()]
        nbytes = sum(stream.nbytes for stream in streams)
        with fresh_folder(out, replace=False, nbytes=nbytes) as folder, progress("merging", nbytes, "B") as advance:
            write_weights(folder, streams, advance)
            write_files(folder, self.files())


def copy_carried(adapter: Path, folder: Path) -> None:
    """Copy the calibration text, the statistics and the record of the training in an adapter's folder."""
    for name in (path.name for pattern in _CARRIED for path in sorted(adapter.glob(pattern))):
        if (carried := own_file(adapter, name)) is not None:
            shutil.copyfile(carried, folder / name)


def _stored_tensors(folder: Path, label: str) -> dict[str, ArraySource]:
    """Return the tensors of an adapter's folder, before any is read (CheckpointError: no file, or an unknown dtype)."""
    if (weights := own_file(folder, WEIGHTS)) is None:
        if (folder / PICKLE).is_file():
            raise CheckpointError(
                f"{label} has its weights in a pickle file, which runs code when opened and so is never read",
                "convert it where you trust it: PeftModel.from_pretrained(...).save_pretrained(...)",
            )
        raise CheckpointError(f"{label} has no weights: no {WEIGHTS}", SAVE)
    stored = read_headers([weights])
    if empty := [name for name, tensor in stored.items() if 0 in tensor.shape]:
        raise empty_tensors(label, empty)
    for name, tensor in stored.items():
        if NAMES.get(tensor.dtype) not in WEIGHT_DTYPES:
            raise CheckpointError(
                f"{label}: tensor {name} has dtype {tensor.dtype}, supported are {', '.join(WEIGHT_DTYPES)}", SAVE
            )
    return {name: weight_source(name, tensor, label) for name, tensor in stored.items()}


def _files(adapter: Adapter, base: DenseWeights, shapes: dict[str, tuple[int, ...]]) -> dict[str, bytes]:
    """Return the small files of the merged model, whose tensors have `shapes`; tokenizer files are all from one."""
    files = {name: data for name, data in base.files().items() if name not in own_files()}
    own = {name: data for name, data in adapter.files().items() if name != "config.json"}
    if own.keys() & _VOCABULARIES:
        files = {name: data for name, data in files.items() if name not in TOKENIZER_FILES}
    for name in _EMBEDDINGS:
        if name in shapes and shapes[name] != base.shapes[name]:
            config = json_object(files["config.json"], "config.json")
            files["config.json"] = json_file(config | {"vocab_size": shapes[name][0]})
    return files | own


def _target(name: str) -> tuple[str, str]:
    """Return the base tensor that an adapter's tensor changes, a head as `lm_head.weight`, and its part in that."""
    part = next((part for ending, part in _PARTS.items() if name.endswith(ending)), "whole")
    plain = name.removeprefix(_PREFIX).replace(".base_layer.", ".")
    target = plain if part == "whole" else f"{_module(name)}.weight"
    return _HEADS[0] if target in _HEADS else target, part


def _module(name: str) -> str:
    """Return the module that a low-rank tensor of the adapter changes."""
    return name.removeprefix(_PREFIX).rsplit(".lora_", 1)[0]
