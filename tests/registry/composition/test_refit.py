"""Proves, for every kind of family: a refit leaves alone what is on target, brings a composition nearer to its experts,
and is a function of its members; and a model run layer by layer is the model."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import PassSettings, Recipe, Registry
from registry.calibration import Calibration
from registry.checkpoint import Checkpoint
from registry.composition.plan import Plan
from registry.hosts.remote_code import REMOTE_CODE
from registry.maths.refit import RIDGE
from registry.member import Member
from registry.methods.moe import passes
from registry.runtime.gates import force_expert
from registry.runtime.layerwise import Layers
from registry.runtime.loading import load_model
from tests.conftest import Zoo, files_of
from tests.models import make_model, save_checkpoint, sentences, write_jsonl
from tests.registry.composition.composed import PAIR, add_model, tensors_of
from tests.registry.composition.test_vocabulary import grown
from tests.registry.hosts.test_hosts import CASES, IDS

SETTINGS = PassSettings(tokens=256, seq_len=32, batch_size=4)
RUN = [name for name in CASES if name not in ("phi3 longrope, partial rotary", "qwen2 in granitemoe")]
"""All cases; two are other words for others."""

ROUTERS = ("gate.weight", "router.weight", "router.layer.weight")
"""Ends of the names of routers."""

REFITTED = (
    "llama",
    "qwen2",  # biases of queries, keys and values; tied
    "phi3",  # fused projections
    "gemma",
    "granite",  # residual multiplier
    "olmo2",  # norms after attention and MLP
    "cohere",  # attention and MLP side by side
    "gpt_neox",  # biases everywhere, no gate
    "stablelm",
)


@pytest.mark.check(after=9)
@pytest.mark.trust(after=20)
@pytest.mark.parametrize("name", RUN)
def test_layer_by_layer_is_the_model(name: str, tmp_path: Path, tokenizer: Any) -> None:
    model = make_model(CASES[name].family, 101, **CASES[name].config)
    with torch.no_grad():
        expected = model(input_ids=IDS, output_hidden_states=True).hidden_states
    checkpoint = Checkpoint(save_checkpoint(model, tmp_path / "model", tokenizer), remote_code=True)
    layers = Layers(checkpoint.family, checkpoint.config, torch.device("cpu"))
    found = [layers.embedded(checkpoint.tensor(checkpoint.family.embedding), IDS)]
    for number in range(checkpoint.architecture.num_hidden_layers):
        found.append(layers.run(number, layers.layer(number, checkpoint.tensor), found[-1]))
    found[-1] = layers.module(layers.norm, checkpoint.tensor)(found[-1])
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert torch.allclose(one, other, rtol=0, atol=1e-5), number


@dataclass(frozen=True)
class Pair:
    """Two experts of a family, registered with their calibration."""

    dense: dict[str, Path]
    registry: Registry
    host: str
    root: Path

    def compose(self, name: str, experts: tuple[str, ...] = PAIR, **settings: Any) -> Path:
        """Compose into a folder of a name, and return that."""
        self.registry.compose(
            experts, self.root / name, Recipe(host=self.host, **{"router": "ridge"} | settings), force=True
        )
        return self.root / name


@pytest.fixture(scope="module", params=REFITTED)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    case, root = CASES[request.param], tmp_path_factory.mktemp("pair")
    host = REMOTE_CODE if case.host.startswith("routed_") else case.host
    dense = {}
    with Registry(root / "home") as registry, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_MODULES_CACHE", str(root / "modules"))
        for seed, name in enumerate(PAIR, start=101):
            own: dict[str, Any] = {"data": [write_jsonl(root / f"{name}.jsonl", sentences(name, 30))]}
            model = make_model(case.family, seed, **case.config)
            dense[name] = add_model(registry, root / name, model, settings=SETTINGS, keep_calibration=True, **own)
        yield Pair(dense, registry, host, root)


@pytest.mark.check
@pytest.mark.trust(after=1)
def test_one_member_has_nothing_to_be_refitted_to(pair: Pair) -> None:
    """Its targets are met already: towards the old weight, ridge regression stays there."""
    plain = tensors_of(pair.compose("plain", ("code",)))
    refitted = pair.compose("refitted", ("code",), refine_mlp=True)
    for name, weight in tensors_of(refitted).items():
        limit = 1e-3 * float(plain[name].abs().max())
        assert name.endswith(ROUTERS) or torch.allclose(weight, plain[name], rtol=0, atol=limit), name
    with torch.no_grad():
        found = load_model(refitted, "float32", None)(input_ids=IDS).logits
        own = load_model(pair.dense["code"], "float32", None)(input_ids=IDS).logits
    assert float((found - own).norm() / own.norm()) < 1e-4


def distances(pair: Pair, folder: Path) -> list[float]:
    """Return, for each expert's kept tokens sent to it, how far the last hidden state is from the dense expert's.

    Mean squared, relative to the mean square.
    """
    model, found = load_model(folder, "float32", None), []
    for number, name in enumerate(PAIR):
        calibration = pair.registry.member(pair.registry.resolve(name)).calibration
        assert calibration is not None
        ids, keep = calibration.ids.long(), calibration.keep
        with torch.no_grad(), force_expert(model, number):
            state = model.base_model(input_ids=ids).last_hidden_state[keep]
            own = load_model(pair.dense[name], "float32", None).base_model(input_ids=ids).last_hidden_state[keep]
        found.append(float((state - own).square().mean() / own.square().mean()))
    return found


@pytest.mark.check
@pytest.mark.trust(after=1)
def test_each_text_is_nearer_to_its_expert(pair: Pair) -> None:
    before = distances(pair, pair.compose("plain"))
    after = distances(pair, pair.compose("refitted", refine_mlp=True))
    assert min(before) > 0.01  # the trunks differ
    for one, other in zip(before, after, strict=True):
        assert other < 0.8 * one


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize(
    "recipe",
    [
        {"router": "ridge", "refine_mlp": True, "refine": 1},
        {"refine_mlp": True, "dtype": "bfloat16", "trunk": "mean"},
    ],
)
def test_order_and_repetition_leave_no_trace(filled: Registry, tmp_path: Path, recipe: dict[str, Any]) -> None:
    """The second time no pass is in the cache either, and another number of threads computes."""
    filled.compose(PAIR, tmp_path / "first", Recipe(**recipe))
    shutil.rmtree(filled.home.cache, ignore_errors=True)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads % 2 + 1)
        filled.compose(PAIR[::-1], tmp_path / "second", Recipe(**recipe))
    finally:
        torch.set_num_threads(threads)
    assert files_of(tmp_path / "second") == files_of(tmp_path / "first")
    assert list(filled.home.work.iterdir()) == []


@pytest.mark.check
def test_queries_are_least_squares_over_what_both_members_show(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    """In the first layer nothing was refitted before: inputs are the normed composed embeddings, targets W_e x_e.

    Written in another dtype it is nearly the same.
    """
    filled.compose(PAIR, tmp_path / "plain", Recipe(router="ridge"))
    filled.compose(PAIR, tmp_path / "moe", Recipe(router="ridge", refine_mlp=True))
    filled.compose(PAIR, tmp_path / "narrow", Recipe(router="ridge", refine_mlp=True, dtype="bfloat16"))
    wide, narrow = tensors_of(tmp_path / "moe"), tensors_of(tmp_path / "narrow")
    for name, weight in wide.items():
        assert narrow[name].dtype == torch.bfloat16
        # What follows a rounded map is refitted to what that gives, and a token or two goes to another expert.
        assert float((narrow[name].float() - weight).norm() / weight.norm()) < 0.2, name
    name = "model.layers.0.self_attn.q_proj.weight"
    trunk = tensors_of(tmp_path / "plain")
    size = len(trunk["model.norm.weight"])
    gram, cross = torch.zeros(size, size, dtype=torch.float64), torch.zeros(size, size, dtype=torch.float64)
    for expert in PAIR:
        own = tensors_of(zoo.experts[expert])
        calibration = filled.member(filled.resolve(expert)).calibration
        assert calibration is not None
        ids = calibration.ids.long()[calibration.keep]
        x, wanted = (normed(part, ids) for part in (trunk, own))
        gram += x.T @ x
        cross += own[name].double() @ wanted.T @ x
    ridge = RIDGE * gram.diagonal().mean()
    expected = torch.linalg.solve(gram + ridge * torch.eye(size), (cross + ridge * trunk[name]).T).T
    assert torch.allclose(wide[name].double(), expected, rtol=0, atol=1e-4)
    assert not torch.allclose(trunk[name].double(), expected, rtol=0, atol=1e-2)


def normed(weights: dict[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    x = weights["model.embed_tokens.weight"][ids].double()
    x = x / (x.square().mean(dim=1, keepdim=True) + 1e-6).sqrt()
    return x * weights["model.layers.0.input_layernorm.weight"].double()


@pytest.mark.check
def test_members_with_tokens_and_windows_of_their_own_are_refitted(filled: Registry, tmp_path: Path) -> None:
    """Rows of the head that one member alone knows are fitted to what that one shows."""
    shorter = PassSettings(tokens=200, seq_len=24, batch_size=4)
    folder, texts = grown(tmp_path / "agent", 111, "<call>"), sentences("code", 30)
    data = write_jsonl(tmp_path / "agent.jsonl", [f"<call> {text}" for text in texts])
    filled.add_expert("agent", folder, data=[data], settings=shorter, keep_calibration=True)
    filled.compose(("agent", "code"), tmp_path / "moe", Recipe(router="ridge", refine_mlp=True, trunk="mean"))
    model = load_model(tmp_path / "moe", "float32", None)
    assert model(input_ids=torch.tensor([[5, 320]])).logits.shape == (1, 2, 321)
    made, own = tensors_of(tmp_path / "moe"), tensors_of(folder)["lm_head.weight"]
    head = made["lm_head.weight"]
    assert all(bool(torch.isfinite(weight).all()) for weight in made.values())
    assert not torch.allclose(head[320], own[320], atol=1e-3)
    assert torch.nn.functional.cosine_similarity(head[320], own[320], dim=0) > 0.5


@pytest.mark.check
def test_known_experts_need_no_statistics(filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each down projection is fitted to the tokens that go to its expert."""

    def unavailable(*_: Any) -> Any:
        raise AssertionError("statistics are not needed")

    def all_to_first(_plan: Plan, calibration: Calibration, _evidence: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(calibration.ids, dtype=torch.long)

    monkeypatch.setattr(Member, "statistics", unavailable)
    recipe = Recipe(trunk="mean", refine_mlp=True, vocabulary="shared")
    filled.compose(PAIR, tmp_path / "own", recipe)
    monkeypatch.setattr(passes, "choices_of", all_to_first)
    filled.compose(PAIR, tmp_path / "first", recipe)
    own, first = tensors_of(tmp_path / "own"), tensors_of(tmp_path / "first")
    different = {name for name in own if ".w2." in name and not torch.equal(own[name], first[name])}
    assert len(different) == 4  # of two layers and experts: what goes another way in one changes what the next one sees
