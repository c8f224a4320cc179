"""Proves: each family's composition loads in plain transformers without a stray key and computes what the experts do.

One expert: the dense expert's logits and its greedy text. Several: each forced expert's logits are those of the dense
expert on the same trunk, and those that the router mixes are the softmax mixture of the dense MLPs. Bit for bit, except
where a case says by how much they may differ, and why.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from registry import PassSettings, Recipe, Registry
from registry.errors import CheckpointError
from registry.families import FAMILIES
from registry.hosts.remote_code import REMOTE_CODE
from registry.runtime.gates import force_expert
from registry.runtime.loading import has_our_code, load_model, quiet_transformers
from tests.conftest import Shared, copy_home
from tests.models import make_model, save_checkpoint, sentences, train_tokenizer, write_jsonl
from tests.transformers4 import Transformers4

LLAMA3: dict[str, Any] = {"rope_type": "llama3", "rope_theta": 500000.0, "original_max_position_embeddings": 32}
LLAMA3 |= {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LONG: dict[str, Any] = {"rope_type": "longrope", "rope_theta": 10000.0}
SHORT_LONG = LONG | {"short_factor": [1.0] * 4, "long_factor": [1.5, 2.0, 3.0, 4.0]}
PARTIAL_LONG = LONG | {"short_factor": [1.0] * 6, "long_factor": [1.5, 2.0, 3.0, 4.0, 5.0, 6.0]}
PARTIAL_LONG |= {"partial_rotary_factor": 0.75}
EAGER = {"attn_implementation": "eager"}


@dataclass(frozen=True)
class Case:
    """A dense configuration, the host that carries it, and by how much its logits may differ from the dense ones.

    `tolerance` is (float32, bfloat16): 0 is bit for bit. `old`: transformers 4.57 has the host too. `dense` is how the
    dense model is loaded for the comparison.
    """

    family: str
    host: str
    config: dict[str, Any] = field(default_factory=dict)
    tolerance: tuple[float, float] = (0.0, 0.0)
    old: bool = True
    dense: dict[str, Any] = field(default_factory=dict)


TIED, BIAS, WIDE = {"tie_word_embeddings": True}, {"attention_bias": True}, {"head_dim": 16}
WINDOWS = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
MULTIPLIERS = {f"{name}_multiplier": size for name, size in (("attention", 0.3), ("embedding", 3.0), ("residual", 0.5))}
PARALLEL = {"hidden_size": 64, "use_parallel_residual": True, "qk_layernorm": True}
CASES = {
    "llama": Case("llama", "mixtral"),
    "llama tied, llama3 rope, wide heads": Case("llama", "mixtral", TIED | WIDE | {"rope_parameters": LLAMA3}),
    "llama yarn rope": Case("llama", "mixtral", {"rope_parameters": YARN}),
    "llama attention bias": Case("llama", "granitemoe", BIAS),
    "llama attention bias, wide heads": Case("llama", "granitemoe", BIAS | WIDE, old=False),
    "mistral": Case("mistral", "mixtral", {"sliding_window": None}),
    "mistral window": Case("mistral", "mixtral", {"sliding_window": 8}),
    "phi3": Case("phi3", "mixtral", {"sliding_window": 8}),
    "phi3 longrope": Case("phi3", "mixtral", {"original_max_position_embeddings": 32, "rope_parameters": SHORT_LONG}),
    # The idle channels' frequencies stand in a table of float32 numbers, and their weights make up for a factor.
    "phi3 partial rotary": Case("phi3", "mixtral", {"hidden_size": 64, "partial_rotary_factor": 0.75}, (1e-4, 0.5)),
    "phi3 longrope, partial rotary": Case(
        "phi3",
        "mixtral",
        {"hidden_size": 64, "original_max_position_embeddings": 32, "rope_parameters": PARTIAL_LONG},
        (2e-4, 1.5),
    ),
    "qwen2": Case("qwen2", "qwen2_moe", TIED),
    "qwen2 window by layer": Case("qwen2", "qwen2_moe", WINDOWS, old=False),
    "qwen2 in granitemoe": Case("qwen2", "granitemoe"),
    "qwen3": Case("qwen3", "qwen3_moe", WIDE),
    "qwen3 tied, attention bias": Case("qwen3", "qwen3_moe", TIED | BIAS | {"head_dim": 8}),
    "qwen3 window by layer": Case("qwen3", "mellum", WIDE | WINDOWS, old=False),
    "olmo2": Case("olmo2", "flex_olmo"),
    "olmo3": Case("olmo3", "flex_olmo", {"num_hidden_layers": 4, "sliding_window": 64}),
    "granite": Case("granite", "granitemoe", TIED | MULTIPLIERS | {"logits_scaling": 2.0}),
    "cohere": Case("cohere", "cohere2_moe", {"logit_scale": 0.5}, old=False),
    "cohere2": Case(
        "cohere2", "cohere2_moe", {"logit_scale": 0.5, "num_hidden_layers": 4, "sliding_window": 8}, old=False
    ),
    "smollm3": Case("smollm3", "granitemoe_swa", {"num_hidden_layers": 4}, old=False, dense=EAGER),
    # In bfloat16 the 1 that Gemma adds to its norms' weights, and the root that multiplies its embeddings, are rounded.
    "gemma": Case("gemma", "granitemoe", {"head_dim": 8}, (0.0, 2.5)),
    "llama MLP bias": Case("llama", "routed_llama", {"mlp_bias": True}, old=False),
    "cohere norms of queries and keys": Case(
        "cohere", "routed_cohere", {"use_qk_norm": True, "logit_scale": 0.5}, old=False
    ),
    "gemma2": Case("gemma2", "routed_gemma2", {"head_dim": 8, "sliding_window": 8}, old=False),
    "gemma3": Case("gemma3_text", "routed_gemma3_text", {"head_dim": 8, "sliding_window": 8}, old=False),
    "gpt_neox": Case("gpt_neox", "routed_gpt_neox", old=False),
    "stablelm": Case("stablelm", "routed_stablelm", {"hidden_size": 64, "use_qkv_bias": True}, old=False),
    "stablelm parallel": Case("stablelm", "routed_stablelm", PARALLEL, old=False),
}
IDS = torch.randint(1, 320, (2, 48), generator=torch.Generator().manual_seed(0))
MIXED = ("llama", "qwen3", "granite", "cohere2", "gpt_neox")
"""Cases, one of each kind of router, on which mixing is tested."""


@dataclass(frozen=True)
class Variant:
    """A case's checkpoints of a base and two experts, and the registry that holds them."""

    case: Case
    dense: dict[str, Path]
    registry: Registry

    def recipe(self, **settings: Any) -> Recipe:
        """Return a recipe for the case's host, of ridge routers and one expert a token.

        Two are mixed in another order elsewhere, and a context layer rounds weights.
        """
        host = REMOTE_CODE if self.remote else self.case.host
        return Recipe(host=host, **{"top_k": 1, "router": "ridge", **settings})

    @property
    def remote(self) -> bool:
        """Its folder carries code."""
        return self.case.host.startswith("routed_")


@contextmanager
def variant_of(case: Case, root: Path, tokenizer: Any, experts: Sequence[str] = ("code", "math")) -> Iterator[Variant]:
    """Give a case's checkpoints, registered."""
    dense = {
        name: save_checkpoint(make_model(case.family, 100 + seed, **case.config), root / name, tokenizer)
        for seed, name in enumerate(("base", *experts))
    }
    settings = PassSettings(tokens=128, seq_len=32, batch_size=2)
    with Registry(root / "home") as registry, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_MODULES_CACHE", str(root / "modules"))
        registry.add_base("base", dense["base"], remote_code=True)
        for name in experts:
            data = write_jsonl(root / f"{name}.jsonl", sentences(name, 20))
            registry.add_expert(name, dense[name], data=[data], settings=settings, remote_code=True)
        yield Variant(case, dense, registry)


@contextmanager
def shared_variant(name: str, root: Path, shared: Shared) -> Iterator[Variant]:
    """Give the checkpoints of one of `CASES`, made once for all tests, and a registry of one's own that holds them."""

    def make(folder: Path) -> dict[str, Path]:
        with variant_of(CASES[name], folder, train_tokenizer()) as variant:
            return variant.dense

    dense = shared.get(f"variant {name}", make)
    home = copy_home(dense["base"].with_name("home"), root / "home")
    with Registry(home) as registry, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_MODULES_CACHE", str(root / "modules"))
        yield Variant(CASES[name], dense, registry)


@pytest.fixture(params=sorted(CASES))
def variant(request: pytest.FixtureRequest, tmp_path: Path, shared: Shared) -> Iterator[Variant]:
    with shared_variant(request.param, tmp_path, shared) as made:
        yield made


def load(folder: Path, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    """Load as a user would, and fail on any key that is missing, unexpected or mismatched."""
    remote = "auto_map" in (folder / "config.json").read_text()
    with quiet_transformers():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, output_loading_info=True, trust_remote_code=remote, **options
        )
    model, info = loaded
    assert not any(info.values()), info
    return model.eval()


def with_mlp_of(trunk: Any, expert: Any) -> Any:
    """Return the dense model that has the trunk of one model and the MLPs of another."""
    other = expert.state_dict()
    trunk.load_state_dict({n: other[n] if ".mlp." in n else w for n, w in trunk.state_dict().items()})
    return trunk


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: weight for path in sorted(folder.glob("*.safetensors")) for name, weight in load_file(path).items()}


def shapes(folder: Path) -> dict[str, torch.Size]:
    return {name: weight.shape for name, weight in tensors_of(folder).items()}


@torch.no_grad()
def run(model: Any, ids: torch.Tensor = IDS, **options: Any) -> torch.Tensor:
    """Return the logits of a loaded model."""
    logits: torch.Tensor = model(input_ids=ids, **options).logits
    return logits


def greedy(model: Any) -> torch.Tensor:
    """Return 16 tokens, chosen with a cache."""
    prompt = {"input_ids": IDS[:, :8], "attention_mask": torch.ones_like(IDS[:, :8])}
    text: torch.Tensor = model.generate(**prompt, max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0)
    return text


@pytest.mark.check(after=2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_experts_compute_what_they_do_alone(
    variant: Variant, tmp_path: Path, dtype: str, transformers4: Transformers4
) -> None:
    check_exactness(variant, tmp_path, dtype, transformers4)


def check_exactness(variant: Variant, tmp_path: Path, dtype: str, transformers4: Transformers4) -> None:
    """Check one expert, two forced ones, greedy text, and transformers 4."""
    kind, case = getattr(torch, dtype), variant.case
    tolerance = case.tolerance[dtype == "bfloat16"]

    def equal(left: torch.Tensor, right: torch.Tensor) -> bool:
        return torch.equal(left, right) if tolerance == 0 else bool((left - right).abs().max() <= tolerance)

    plan = variant.registry.compose(["math"], tmp_path / "one", variant.recipe(dtype=dtype))
    assert plan.parts.host.model_type == case.host
    one, own = load(tmp_path / "one", kind), load(variant.dense["math"], kind, **case.dense)
    assert equal(run(one), run(own))
    assert tolerance or torch.equal(greedy(one), greedy(own))
    variant.registry.compose(["math", "code"], tmp_path / "moe", variant.recipe(trunk="base", dtype=dtype))
    moe, trunk = load(tmp_path / "moe", kind), load(variant.dense["base"], kind, **case.dense)
    routed, forced = run(moe), []
    for index, name in enumerate(("code", "math")):
        with force_expert(moe, index):
            forced.append(run(moe))
        assert equal(forced[-1], run(with_mlp_of(trunk, load(variant.dense[name], kind, **case.dense))))
    assert (forced[0] - forced[1]).abs().max() > 0.05  # the test can fail: experts differ
    if case.old:
        assert torch.equal(transformers4.logits(tmp_path / "moe", IDS, dtype, tmp_path), routed)


def equation_4(x: torch.Tensor, gate: torch.Tensor, mlps: list[Any], k: int) -> torch.Tensor:
    """Return y = Σ_{e ∈ top-k} p_e MLP_e(x), p = softmax(W x) over all experts (DUME eq. 4), token by token."""
    rows = []
    for token in x.reshape(-1, x.shape[-1]):
        logits = [float(row.double() @ token.double()) for row in gate]
        largest = max(logits)
        exponentials = [torch.tensor(logit - largest, dtype=torch.float64).exp().item() for logit in logits]
        p = [one / sum(exponentials) for one in exponentials]
        kept = sorted(range(len(p)), key=lambda e: -p[e])[:k]
        y = torch.zeros_like(token)
        for e in kept:
            y = y + p[e] * mlps[e](token[None])[0]
        rows.append(y)
    return torch.stack(rows).view(x.shape)


def mixture(variant: Variant, plan: Any, moe: Any, k: int) -> Any:
    """Return the dense base model whose MLPs are mixtures of the experts', by the routers of a loaded composition."""
    family, reference = plan.lead.family, load(variant.dense["base"])
    rows = [weight for name, weight in moe.named_parameters() if name.endswith((".gate.weight", ".router.weight"))]
    mlps = [list(family.mlps(load(folder))) for name, folder in variant.dense.items() if name != "base"]
    for layer, module in enumerate(family.mlps(reference)):
        own = [of_expert[layer] for of_expert in mlps]
        module.register_forward_hook(lambda _m, x, _y, at=layer, own=own: equation_4(x[0], rows[at], own, k))
    return reference


@pytest.mark.check(after=4)
@pytest.mark.parametrize("variant", MIXED, indirect=True)
def test_two_experts_mix_by_softmax_of_the_router(variant: Variant, tmp_path: Path) -> None:
    recipe = variant.recipe(trunk="base", top_k=2, temperature=0.05)
    plan = variant.registry.compose(["code", "math"], tmp_path / "moe", recipe)
    moe = load(tmp_path / "moe")
    # Some hosts take softmax before top-k and renormalise, which is the same up to rounding in float32.
    assert torch.allclose(run(moe), run(mixture(variant, plan, moe, 2)), rtol=1e-4, atol=1e-4)


@pytest.mark.check(after=2)
@pytest.mark.trust(after=4)
def test_folder_is_what_other_tools_read_and_save_pretrained_writes(variant: Variant, tmp_path: Path) -> None:
    plan = variant.registry.compose(["code", "math"], tmp_path / "moe", variant.recipe(top_k=2))
    config = json.loads((tmp_path / "moe" / "config.json").read_text())
    own = json.loads((variant.dense["code"] / "config.json").read_text())
    assert config["architectures"] == [plan.parts.host.class_name]
    assert config["model_type"] == plan.parts.host.model_type
    kept = {"hidden_size", "num_hidden_layers", "vocab_size", "tie_word_embeddings", "eos_token_id", "rms_norm_eps"}
    for key in kept & own.keys():
        assert config[key] == own[key], key
    assert config.get("num_local_experts", config.get("num_experts")) == 2
    assert config["num_experts_per_tok"] == 2
    assert config["dtype"] == config["torch_dtype"] == "float32"
    assert "transformers_version" not in config
    if not variant.remote:
        assert config["router_aux_loss_coef"] == 0.0
        assert isinstance(config["head_dim"], int)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "moe")
    dense = AutoTokenizer.from_pretrained(variant.dense["code"])
    assert tokenizer("def return sum").input_ids == dense("def return sum").input_ids
    for name in ("generation_config.json", "tokenizer.json"):
        assert (tmp_path / "moe" / name).read_bytes() == (variant.dense["code"] / name).read_bytes()
    with quiet_transformers():
        load(tmp_path / "moe").save_pretrained(tmp_path / "again")
    assert shapes(tmp_path / "moe") == shapes(tmp_path / "again")


@pytest.mark.parametrize("variant", ["gpt_neox"], indirect=True)
def test_our_own_code_is_run_and_no_other(variant: Variant, tmp_path: Path) -> None:
    variant.registry.compose(["code", "math"], tmp_path / "moe", variant.recipe())
    load_model(tmp_path / "moe", "float32", "cpu")
    source = tmp_path / "moe" / "modeling_routed.py"
    for change in (
        lambda: (tmp_path / "moe" / "other.py").write_text("raise SystemExit"),
        lambda: source.write_text(source.read_text() + "\nraise SystemExit\n"),
        source.unlink,
    ):
        assert has_our_code(tmp_path / "moe")
        kept = source.read_bytes()
        change()
        assert not has_our_code(tmp_path / "moe")
        with pytest.raises(CheckpointError, match="cannot be loaded by transformers"):
            load_model(tmp_path / "moe", "float32", "cpu")
        source.write_bytes(kept)
        (tmp_path / "moe" / "other.py").unlink(missing_ok=True)


def test_every_family_is_tested() -> None:
    assert {case.family for case in CASES.values()} == set(FAMILIES)
