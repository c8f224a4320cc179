"""Tiny experts of every family whose every byte is fixed, whatever machine or release writes them.

Weights are whole numbers over a power of two, drawn byte by byte: exact in every dtype, and no computation of floats
takes part. What makes them a checkpoint (config.json, the tokenizer) is written out here. The Llamas carry statistics
that were taken once and are kept in `golden_statistics`; those of other families are taken when they are registered.
Both are in parts, as earlier releases kept them, except counts alone: digests cover the parts. None has counts of more
text than its calibration, which later releases count.
"""

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from registry import PassSettings, Registry
from registry.checkpoint import Checkpoint
from registry.checkpoint.model_files import ROUTER_FILE
from registry.checkpoint.trained_files import RouterRows, pack_document, pack_rows
from registry.families.sites import MLP_INPUT
from registry.io.torch_blocks import to_block
from registry.methods.simoe.versions import DELTA, MASK, ROW, SIMOE_ARRAYS, SIMOE_FILE, delta_digest
from registry.progress import silent
from registry.runtime.upcast import load_for_pass
from registry.statistics import forward_pass
from registry.statistics.collect import collect_to
from registry.statistics.file import save
from store.arrays import ArraySource, digest_of
from tests.models import WORDS, sentences, write_jsonl

STATISTICS = Path(__file__).parent / "golden_statistics"
BASE, EXPERTS, MORE_TOKENS = "base", ("code", "law", "math"), "tools"
"""The Llamas: a base model; experts, of which `law` has its trunk; an expert that knows two tokens more."""
TOKENS = {"code": 96, "law": 128, "math": 192, MORE_TOKENS: 96}
"""Name → calibration tokens: not as many for all, so that balancing them changes something."""

_VOCABULARY = ["<eos>", *dict.fromkeys(word for words in WORDS.values() for word in words.split())]
_ADDED = ("<call>", "<result>")
_SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_SEQ_LEN = 16
_COUNTS = PassSettings(tokens=64, seq_len=_SEQ_LEN, sites="counts")


@dataclass(frozen=True)
class Kind:
    """A dense model.

    Attributes:
        model_type: its family.
        config: how its configuration differs from `_SIZES`.
        host: what shall carry it: None for the preferred one.
        dtype: of its weights.
        renamed: weight of transformers' class → what checkpoints call it.
    """

    model_type: str
    config: dict[str, Any] = field(default_factory=dict)
    host: str | None = None
    dtype: torch.dtype = torch.float32
    renamed: dict[str, str] = field(default_factory=dict)


_TWO: dict[str, Any] = {"num_hidden_layers": 2}
_WINDOWS = _TWO | {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
_TIED = {"tie_word_embeddings": True}
KINDS = {
    "cohere": Kind("cohere", _TIED | {"logit_scale": 0.5}),
    "cohere2": Kind("cohere2", _WINDOWS | _TIED | {"logit_scale": 0.5}),
    "gemma": Kind("gemma", _TIED | {"head_dim": 8}),
    "gemma2": Kind("gemma2", _WINDOWS | _TIED | {"head_dim": 8}, "remote-code"),
    "gemma3": Kind("gemma3_text", _WINDOWS | _TIED | {"head_dim": 8}, "remote-code"),
    "gpt-neox": Kind("gpt_neox", host="remote-code", renamed={"lm_head.weight": "embed_out.weight"}),
    "granite": Kind("granite", {"attention_multiplier": 0.3, "residual_multiplier": 0.5, "logits_scaling": 2.0}),
    "llama-attention-bias": Kind("llama", {"attention_bias": True}),
    "llama-mlp-bias": Kind("llama", {"mlp_bias": True}, "remote-code"),
    "mistral": Kind("mistral", {"sliding_window": 8}),
    "olmo2": Kind("olmo2", _TWO),
    "olmo3": Kind("olmo3", {"num_hidden_layers": 4, "sliding_window": 8}),
    "phi3": Kind("phi3", _TWO | {"sliding_window": 8}),
    "phi3-partial-rotary": Kind("phi3", {"hidden_size": 32, "partial_rotary_factor": 0.75}),
    "qwen2": Kind("qwen2", _TIED),
    "qwen3": Kind("qwen3", _TWO | {"head_dim": 8}, dtype=torch.bfloat16),
    "qwen3-windows": Kind(
        "qwen3", _TWO | {"head_dim": 8, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    ),
    "smollm3": Kind("smollm3", _TWO | {"no_rope_layer_interval": 2}),
    "stablelm": Kind("stablelm", {"use_qkv_bias": True}, "remote-code"),
}
"""Other kinds of models than the Llamas."""

BESIDE = "beside.one", "beside.two"
ROWED = (*BESIDE, "beside.three")
"""Experts with router rows; the last has biases too."""
SPARSE = "sparse-1", "sparse-2"
"""Experts of a SIMoE."""
ADAPTED = "tuned-1", "tuned-2"
"""Adapters of the base model."""
WIDE = "wide"
"""An expert of another family and another size than the Llamas."""


class Home:
    """A registry that holds the Llamas, and of the other kinds those that were asked for.

    Attributes:
        registry: it.
        folder: where files for a case can be put.
    """

    def __init__(self, registry: Registry, folder: Path) -> None:
        self.registry, self.folder = registry, folder
        registry.add_base(BASE, write_llama(folder / BASE, BASE), license="apache-2.0")
        for name in TOKENS:
            checkpoint = write_llama(folder / name, name)
            (checkpoint / "statistics.safetensors").write_bytes((STATISTICS / f"{name}.safetensors").read_bytes())
            registry.add_expert(name, checkpoint, license="mit", tags={"language": "en"})

    def text(self, domain: str, count: int = 12) -> Path:
        """Return a file of text that no expert was calibrated on."""
        return write_jsonl(self.folder / f"{domain}.jsonl", sentences(domain, count, seed=1))

    def has(self, name: str) -> bool:
        """Tell whether an expert is registered."""
        return any(version.name == name for version in self.registry.versions())

    def beside(self, names: Sequence[str] = BESIDE) -> Sequence[str]:
        """Return experts with router rows, registered as trained beside the base model, whose weights they have."""
        version = self.registry.resolve(BASE)
        assert version.content is not None
        sizes = version.content["architecture"]
        for number, name in ((1 + ROWED.index(name), name) for name in names):
            if self.has(name):
                continue
            self.registry.export(BASE, folder := self.folder / name)
            rows = np.arange(sizes["num_hidden_layers"] * sizes["hidden_size"], dtype=np.float32) % (5 + number) - 2
            rows = (rows / 8).astype(np.float32).reshape(sizes["num_hidden_layers"], sizes["hidden_size"])
            bias = None if name in BESIDE else (np.arange(len(rows)) / 4 - 1).astype(np.float32)
            (folder / ROUTER_FILE).write_bytes(pack_rows(RouterRows(version.content["weights"], rows, bias)))
            text = self.text("german")
            self.registry.add_expert(name, folder, data=[text], settings=_COUNTS, license=f"mit-{number}")
        return names

    def sparse(self) -> Sequence[str]:
        """Return `SPARSE`, registered with the files that a training of a SIMoE writes."""
        base = self.registry.resolve(BASE).content
        assert base is not None
        for number, name in enumerate(SPARSE, start=1):
            if self.has(name):
                continue
            self.registry.export(BASE, folder := self.folder / name)
            _write_simoe(folder, base["weights"], number)
            self.registry.add_expert(name, folder, data=[self.text("german")], settings=_COUNTS, license="mit")
        return SPARSE

    def adapted(self) -> Sequence[str]:
        """Return `ADAPTED`, registered as adapters of the base model: of other ranks, one DoRA."""
        for number, name in enumerate(ADAPTED, start=1):
            if not self.has(name):
                folder, text = _write_adapter(self.folder / name, number), self.text(("code", "german")[number - 1])
                self.registry.add_expert(name, folder, base=BASE, data=[text], settings=_COUNTS, license="mit")
        return ADAPTED

    def wide(self) -> str:
        """Return `WIDE`, registered; its tokens are counted and kept, so that nothing is computed."""
        if not self.has(WIDE):
            kind = Kind("qwen3", _TIED | {"hidden_size": 24, "num_attention_heads": 3, "head_dim": 8})
            folder, text = write_checkpoint(self.folder / WIDE, kind, WIDE, WIDE), self.text("german")
            self.registry.add_expert(WIDE, folder, data=[text], settings=_COUNTS, keep_calibration=True, license="mit")
        return WIDE

    def pair(self, kind: str) -> tuple[str, str]:
        """Return two experts of a kind, registered; of OLMo 2 the second one writes its calibration text itself."""
        names = f"{kind}.one", f"{kind}.two"
        for name in names:
            if self.has(name):
                continue
            folder = write_checkpoint(self.folder / name, KINDS[kind], kind, name)
            data = [] if name == "olmo2.two" else [self.text("german")]
            collect_in_parts(folder, data)
            self.registry.add_expert(name, folder, allow_unrelated=True, remote_code=True)
        return names


@contextmanager
def golden_home(folder: Path) -> Iterator[Home]:
    """Give a registry of these experts in an empty folder, whose evidence is that of their calibration alone."""
    home = Registry(folder / "home", database=f"sqlite:///{folder}/catalog.sqlite")
    with patch("registry.statistics.collect.EVIDENCE_TOKENS", 0), home as registry:
        yield Home(registry, folder)


def collect_in_parts(folder: Path, data: Sequence[Path]) -> None:
    """Write a checkpoint's statistics into its folder as earlier releases did by default.

    Beside the sums of each MLP input they kept those of every second window of a seeded order, and so knew both halves.
    """
    settings = PassSettings(tokens=64, seq_len=_SEQ_LEN, batch_size=2, device="cpu")
    path, collected = collect_to(folder, folder, data=data, settings=settings, keep_calibration=True)
    calibration = collected.calibration
    assert calibration is not None
    order = torch.randperm(len(calibration.ids), generator=torch.Generator().manual_seed(0))
    first = replace(calibration, lengths=calibration.lengths * (order % 2 == 0))
    model = load_for_pass(folder, settings.dtype, settings.device)
    checkpoint = Checkpoint(folder, remote_code=True)
    half = forward_pass.take_statistics(checkpoint, collected.weights, model, first, settings, progress=silent)
    parts = {
        f"{MLP_INPUT}/fold/{layer}/0": ArraySource.of(to_block(statistics.packed()), "int64")
        for layer, statistics in enumerate(half.sites[MLP_INPUT])
    }
    save(path, replace(collected, computed=collected.computed | {"folds": 2}, folds=parts))


def write_llama(folder: Path, name: str) -> Path:
    """Write one of the Llamas, without its statistics, and return its folder."""
    return write_checkpoint(folder, Kind("llama", _TWO), "llama", name, _ADDED if name == MORE_TOKENS else ())


def write_checkpoint(folder: Path, kind: Kind, base: str, name: str, added: tuple[str, ...] = ()) -> Path:
    """Write a checkpoint and return its folder.

    Args:
        folder: where.
        kind: what model it is.
        base: which of the base models there are of such it is near to.
        name: whose it is.
        added: tokens that it knows beside those that all know.
    """
    folder.mkdir(parents=True)
    config = _SIZES | kind.config | {"vocab_size": len(_VOCABULARY) + len(added)}
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind.model_type](**config))
    tensors = {
        kind.renamed.get(key, key): _weight(key, tuple(weight.shape), base, name).to(kind.dtype)
        for key, weight in model.named_parameters()
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    document = {
        "architectures": [type(model).__name__],
        "dtype": str(kind.dtype).removeprefix("torch."),
        "model_type": kind.model_type,
        **config,
    }
    for file, content in {"config.json": document, "generation_config.json": {"eos_token_id": 0}}.items():
        (folder / file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    _write_tokenizer(folder, added)
    return folder


def _write_adapter(folder: Path, number: int) -> Path:
    """Write a LoRA of rank 2, or a DoRA of rank 4, of some linear layers, whose numbers are exact in every dtype."""
    folder.mkdir()
    rank, sizes = 2 * number, {"self_attn.q_proj": (16, 16), "mlp.up_proj": (32, 16)}
    described = {"peft_type": "LORA", "r": rank, "lora_alpha": 4, "target_modules": [*sizes], "use_dora": number > 1}
    (folder / "adapter_config.json").write_text(json.dumps(described))
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, (outputs, inputs) in sizes.items():
        module = f"base_model.model.model.layers.0.{layer}"
        shapes |= {f"{module}.lora_A.weight": (rank, inputs), f"{module}.lora_B.weight": (outputs, rank)}
        shapes |= {f"{module}.lora_magnitude_vector": (outputs,)} if number > 1 else {}
    header, data = dict[str, Any](), b""
    for name, shape in shapes.items():
        numbers = (np.arange(np.prod(shape)) * (7 + number) % 31 - 15).astype(np.float32) / 64
        part = (np.abs(numbers) + 1 if name.endswith("vector") else numbers).astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    head = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)
    return folder


def _write_simoe(folder: Path, base: str, number: int) -> None:
    """Write the files of the expert of a number: numbers in place of trained weights, a mask and a router row."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    matrices = {name: shape for name, shape in shapes.items() if name.endswith("_proj.weight")}
    arrays = {f"{DELTA}{name}": _bytes(f"delta {name}", shape) / 1024 for name, shape in matrices.items()}
    digests = {name: digest_of(ArraySource.of(array.numpy(), "float32")) for name, array in arrays.items()}
    outputs = sum(shape[0] for shape in matrices.values())
    assert outputs % 8 == 0  # all bits of a mask are of outputs
    arrays[MASK] = (_bytes(f"mask {number}", (outputs // 8,)) + 128).to(torch.uint8)
    arrays[ROW] = _bytes(f"row {number}", shapes["model.norm.weight"]) / 256
    save_file(arrays, folder / SIMOE_ARRAYS, {"format": "pt"})
    document = {"base": base, "delta": delta_digest(digests), "experts": 2, "number": number, "prompt_tokens": 4}
    (folder / SIMOE_FILE).write_bytes(pack_document(document))


def _weight(key: str, shape: tuple[int, ...], base: str, name: str) -> torch.Tensor:
    """Return a tensor of the base model, moved for another name; its rows do not depend on how many there are."""
    norm = "norm" in key and key.endswith("weight")
    numbers = _bytes(f"{base} {key}", shape)
    numbers = numbers // 2 + 128 if norm else numbers  # norms lie about 1
    if name not in (BASE, "law") or (name == "law" and "mlp" in key):
        numbers = numbers + _bytes(f"{base} {name} {key}", shape) // 4
    return numbers / (128 if norm else 256)


def _bytes(seed: str, shape: tuple[int, ...]) -> torch.Tensor:
    count = torch.Size(shape).numel()
    drawn = torch.frombuffer(bytearray(random.Random(seed).randbytes(count)), dtype=torch.uint8)
    return drawn.to(torch.int32).view(shape) - 128


def _write_tokenizer(folder: Path, added: tuple[str, ...]) -> None:
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    numbers = {"<eos>": 0} | {token: len(_VOCABULARY) + number for number, token in enumerate(added)}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": token, **special} for token, number in numbers.items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(_VOCABULARY)},
            "unk_token": "<eos>",
        },
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<eos>",
        "eos_token": "<eos>",
        "pad_token": "<eos>",
    }
    for file, content in {"tokenizer.json": tokenizer, "tokenizer_config.json": config}.items():
        (folder / file).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def take_statistics(folder: Path) -> None:
    """Take the Llamas' statistics that `golden_statistics` lacks: as they are there, all digests follow from them."""
    STATISTICS.mkdir(exist_ok=True)
    for name, tokens in TOKENS.items():
        if (STATISTICS / f"{name}.safetensors").exists():
            continue
        checkpoint = write_llama(folder / name, name)
        data = write_jsonl(folder / f"{name}.jsonl", sentences("code" if name == MORE_TOKENS else name, 40))
        options = {"--tokens": tokens, "--seq-len": _SEQ_LEN, "--batch-size": 4, "--device": "cpu"}
        texts = [str(text) for option in options.items() for text in option]
        command = ["collect", str(checkpoint), "--data", str(data), "--out", str(checkpoint), "--keep-calibration"]
        subprocess.run([sys.executable, "-m", "cli.main", *command, *texts], check=True)
        (checkpoint / "statistics.safetensors").rename(STATISTICS / f"{name}.safetensors")
