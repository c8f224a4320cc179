"""Proves: a step is that of algorithm 2 and Table 3 (Ablin et al. 2025); wrong input is refused.

And: a training that goes on ends in the same bytes.
"""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from registry import ExpertTraining, Registry, SoupTraining
from registry.checkpoint import Checkpoint
from registry.checkpoint.model_files import EXPERT_TRAINING
from registry.errors import CalibrationError, ConflictError, InvalidInputError, NotFoundError, RegError
from registry.io.torch_blocks import to_tensor
from registry.maths.soup_weights import draw_domain_weights
from registry.member import load_member
from registry.methods.soup.model import Soup
from registry.methods.soup.text import read_soup_windows
from registry.methods.soup.versions import SOUP_FILE, SOUP_ROUTER, unpack_router
from registry.progress import silent
from registry.runtime.loading import load_model, load_tokenizer
from tests.conftest import Zoo, files_of
from tests.models import make_model, save_checkpoint, write_jsonl
from tests.registry.methods.soup.conftest import DOMAINS, SETTINGS, corpora_of, settings_with, text_of
from tests.remarks import Remarks

BETAS, CLIP = (0.9, 0.999), 0.1
"""Table 3."""
EPSILON = 1e-8
"""ε of AdamW."""


def weights_of(registry: Registry, ref: str) -> dict[str, Tensor]:
    """Return the registered weights of a version."""
    member = load_member(registry._workspace, registry.resolve(ref))
    links = [link for link in member.arrays if link.role in ("trunk", "mlp")]
    return {link.name: to_tensor(member.store.read(link.digest), link.dtype).float().clone() for link in links}


def digests_of(registry: Registry) -> list[str]:
    """Return the digests of the versions of `soup`."""
    return [version.digest for version in registry.versions() if version.name.startswith("soup")]


class Reference:
    """Algorithm 2 with φ (§2.3) and eq. 2 in float64: gradients through plain sums over experts, AdamW as published."""

    def __init__(self, zoo: Zoo, settings: SoupTraining) -> None:
        self.settings, checkpoint = settings, Checkpoint(zoo.base)
        self.names = (*checkpoint.trunk, *checkpoint.mlp)
        self.model = load_model(zoo.base, "float32", "cpu").double()
        self.windows = read_soup_windows(corpora_of(zoo), checkpoint, load_tokenizer(zoo.base), settings, silent)
        begun = Soup(load_model(zoo.base, "float32", "cpu"), self.names, 3, settings.experts, settings.hidden, None, 0)
        own = dict(self.model.named_parameters())
        self.parts = {f"S {name}": own[name].detach().clone() for name in self.names}
        for j in range(settings.experts):
            self.parts |= {f"E{j} {name}": torch.zeros_like(own[name]) for name in self.names}
        for key, part in zip(
            ("w1", "b1", "w2", "b2"), (*begun.hidden.parameters(), *begun.output.parameters()), strict=True
        ):
            self.parts[key] = part.detach().double()
        self.moments: dict[str, tuple[Tensor, Tensor]] = {}

    def run(self) -> None:
        steps, batch = self.settings.steps, self.settings.batch_size
        for t in range(1, steps + 1):
            numbers = self.windows.training[(t - 1) * batch : t * batch]
            self.step(t, self.windows.domain_weights[t - 1].double(), *self.windows.take(numbers))

    def step(self, t: int, h: Tensor, ids: Tensor, keep: Tensor) -> None:
        parts = {key: part.detach().requires_grad_(True) for key, part in self.parts.items()}
        alpha = parts["w2"] @ torch.relu(parts["w1"] @ h + parts["b1"]) + parts["b2"]  # φ (§2.3)
        theta = {}
        for name in self.names:  # Θ = S + Σ_j α_j E_j (eq. 2)
            theta[name] = parts[f"S {name}"]
            for j in range(self.settings.experts):
                theta[name] = theta[name] + alpha[j] * parts[f"E{j} {name}"]
        logits = torch.func.functional_call(self.model, theta, (ids,), {"use_cache": False}).logits[:, :-1]
        targets = ids[:, 1:].masked_fill(~keep[:, 1:], -100)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        gradients = dict(zip(parts, torch.autograd.grad(loss, list(parts.values())), strict=True))
        norm = math.sqrt(sum(float(found.square().sum()) for found in gradients.values()))
        assert norm > CLIP
        rate = self.settings.lr * self.settings.rate(t - 1)
        for key, gradient in gradients.items():
            self.adamw(key, CLIP * gradient / norm, rate, t)

    def adamw(self, key: str, g: Tensor, rate: float, t: int) -> None:
        """Loshchilov & Hutter 2019, algorithm 2; matrices decay."""
        weight = self.parts[key].clone()
        m, v = self.moments.get(key, (torch.zeros_like(g), torch.zeros_like(g)))
        m, v = BETAS[0] * m + (1 - BETAS[0]) * g, BETAS[1] * v + (1 - BETAS[1]) * g * g
        self.moments[key] = m, v
        if weight.ndim > 1:
            weight -= rate * self.settings.weight_decay * weight
        m_hat, v_hat = m / (1 - BETAS[0] ** t), v / (1 - BETAS[1] ** t)
        self.parts[key] = weight - rate * m_hat / (v_hat.sqrt() + EPSILON)


@pytest.mark.check
def test_steps_are_those_of_algorithm_2(filled: Registry, zoo: Zoo) -> None:
    settings, norms = settings_with(tokens=3 * 2 * 32, hidden=4, warmup=0, weight_decay=0.1), list[float]()

    def norm(optimiser: torch.optim.Optimizer, *_: Any) -> None:
        groups = optimiser.param_groups
        assert {group["betas"] for group in groups} == {BETAS}
        norms.append(math.sqrt(sum(float(part.grad.square().sum()) for group in groups for part in group["params"])))

    hook = register_optimizer_step_pre_hook(norm)
    filled.train_soup("soup", "base", text_of(zoo), settings)
    hook.remove()
    assert norms == pytest.approx([CLIP] * 3, rel=1e-4)
    reference = Reference(zoo, settings)
    before = dict(reference.parts)
    reference.run()
    found = {f"S {name}": tensor for name, tensor in weights_of(filled, "soup").items()}
    for j in range(2):
        expert = weights_of(filled, f"soup-{j + 1}")
        found |= {f"E{j} {name}": tensor - found[f"S {name}"] for name, tensor in expert.items()}
    assert reference.parts.keys() - found.keys() == {"w1", "b1", "w2", "b2"}
    for key, tensor in found.items():
        expected = reference.parts[key]
        assert float((tensor.double() - expected).norm() / (expected - before[key]).norm()) < 0.02, key
    member = load_member(filled._workspace, filled.resolve("soup"))
    router = unpack_router(member.file(SOUP_ROUTER), member.content["soup"], 32, "soup")
    for key, part in (("w1", router.hidden), ("b1", router.hidden_bias), ("w2", router.output)):
        assert np.allclose(part, reference.parts[key].numpy(), atol=2e-3), key


def test_defaults_are_those_of_table_3_and_other_trainings_keep_theirs() -> None:
    """Of the warm-up its 2,000 steps are the most: it has 1,024,000 steps."""
    soup, other = SoupTraining(2), ExpertTraining()
    assert (soup.lr, soup.weight_decay, soup.betas, soup.clip) == (1e-4, 0.0, BETAS, CLIP)
    assert (other.lr, other.weight_decay, other.betas, other.clip) == (3e-4, 0.1, (0.9, 0.95), 1.0)
    assert [replace(soup, tokens=steps * 8 * 256).rising for steps in (200, 1_024_000)] == [10, 2000]
    assert replace(soup, tokens=1_024_000 * 8 * 256, warmup=5000).rising == 5000
    assert (soup.inputs(3, "cpu", "float32")["beta2"], soup.inputs(3, "cpu", "float32")["clip"]) == (0.999, 0.1)


def test_the_loss_falls_and_versions_say_what_they_are(soup: Registry) -> None:
    shared = soup.resolve("soup")
    assert (shared.kind, shared.content and shared.content["license"]) == ("base", "mit")
    training = soup.training_of(shared)
    assert training is not None
    assert training.after < training.before
    assert training.tokens == SETTINGS.tokens
    assert shared.content is not None
    document = shared.content["soup"]
    assert (document["domains"], document["experts"], document["support"]) == (list(DOMAINS), 2, 1)
    assert document["rank"] is None
    for number in (1, 2):
        expert = soup.resolve(f"soup-{number}")
        assert expert.content is not None
        assert (expert.kind, expert.content["soup"]) == ("expert", {"soup": shared.digest, "number": number})
        (counted,) = expert.statistics
        assert counted.site == "token_counts"
        assert counted.calibration_label == "windows of the domains code, german, math"
        assert counted.calibration_digest == document["data"]
    assert soup.verify().problems == ()


@pytest.mark.check
def test_an_interrupted_training_goes_on_to_the_same_bytes_in_any_order_of_domains(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of experts of a rank: what trains are the shared weights, two factors of each expert and the router."""
    settings = settings_with(rank=2, support=1, batch_size=1, accumulate=2)

    def train(home: str, domains: dict[str, list[Path]], heard: Remarks) -> tuple[Any, list[str]]:
        with Registry(tmp_path / home, progress=heard) as registry:
            losses = registry.train_soup("soup", zoo.base, domains, settings).losses
            check_ranks(registry)
            return losses, digests_of(registry)

    whole = train("whole", text_of(zoo), Remarks())
    assert len(whole[0].steps) == 6
    monkeypatch.setattr("registry.training.loop.SAVE_SECONDS", 0.0)
    backwards = dict(reversed(text_of(zoo).items()))
    with pytest.raises(KeyboardInterrupt):
        train("home", backwards, Remarks(until=4))
    heard = Remarks()
    assert train("home", backwards, heard) == whole
    assert "goes on: " in heard.text


def check_ranks(registry: Registry) -> None:
    """Check that the experts' matrices differ from the shared ones by rank 2."""
    shared = weights_of(registry, "soup")
    for number in (1, 2):
        for name, tensor in weights_of(registry, f"soup-{number}").items():
            change = (tensor - shared[name]).double()
            assert bool(change.abs().max() > 0), name
            if tensor.ndim > 1:
                values = torch.linalg.svdvals(change)
                assert float(values[2]) < 1e-3 * float(values[0]), name


def test_untrained_soup_is_the_base_model_for_any_domain_weights(zoo: Zoo) -> None:
    checkpoint = Checkpoint(zoo.base)
    ids = torch.arange(20)[None]
    for rank in (None, 2):
        soup = Soup(load_model(zoo.base, "float32", "cpu"), (*checkpoint.trunk, *checkpoint.mlp), 3, 2, 8, rank, 0)
        expected = load_model(zoo.base, "float32", "cpu")(input_ids=ids).logits
        for h in ((1.0, 0.0, 0.0), (0.2, 0.5, 0.3)):
            assert torch.equal(soup(ids, torch.tensor([h])).logits, expected)


@pytest.mark.check
def test_tied_weights_train_tied(zoo: Zoo, tokenizer: Any, tmp_path: Path) -> None:
    base = save_checkpoint(make_model("llama", 500, tie_word_embeddings=True), tmp_path / "tied", tokenizer)
    with Registry(tmp_path / "home") as registry:
        registry.train_soup("soup", base, text_of(zoo), settings_with(tokens=2 * 2 * 32))
        assert "lm_head.weight" not in weights_of(registry, "soup")
        found = registry.instantiate("soup", tmp_path / "out", weights={"code": 1})
    assert found.plan.parameters == Checkpoint(base).parameters


def test_what_a_model_begins_from_leaves_the_soup_behind(soup: Registry, zoo: Zoo, tmp_path: Path) -> None:
    soup.export("soup", tmp_path / "shared")
    assert {SOUP_FILE, SOUP_ROUTER, EXPERT_TRAINING} <= files_of(tmp_path / "shared").keys()
    settings = ExpertTraining(tokens=64, batch_size=2, seq_len=32, device="cpu", dtype="float32")
    soup.train_expert("further", "soup", [zoo.train["law"]], settings, out=tmp_path / "further")
    assert not {SOUP_FILE, SOUP_ROUTER} & files_of(tmp_path / "further").keys()
    again = soup.add_base("copy", tmp_path / "shared", license="mit").version
    assert again.digest == soup.resolve("soup").digest


def test_wrong_input_is_refused_before_anything_is_written(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    text, code = text_of(zoo), [zoo.train["code"]]
    empty, absent = [write_jsonl(tmp_path / "empty.jsonl", ["  "])], [tmp_path / "absent.jsonl"]
    filled.add_base("other-2", zoo.base)
    before = filled.versions()
    domains: dict[str, tuple[dict[str, list[Path]], type[RegError], str]] = {
        "reg train-expert": ({"code": code}, InvalidInputError, "two domains or more, and one was named"),
        "--domains FILE": ({}, InvalidInputError, "two domains or more, and none were named"),
        "--domains empty=FILE": (text | {"empty": empty}, CalibrationError, "domain empty: "),
        "existing file": (text | {"absent": absent}, CalibrationError, "absent.jsonl is not a file"),
        "--domains d=FILE": (text | {"d": []}, InvalidInputError, "domain d has no file"),
        "--domains NAME=FILE": (text | {"a,b": code}, InvalidInputError, "'a,b' is not a domain's name"),
    }
    for hint, (given, kind, message) in domains.items():
        with pytest.raises(kind, match=message) as caught:
            filled.train_soup("soup", "base", given, settings_with())
        assert hint in str(caught.value.hint)
    for changes, message in (
        ({"support": 4}, "support is 4, and there are 3 domains"),
        ({"rank": 33}, r"of shape \[320, 32\] has at most rank 32"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            filled.train_soup("soup", "base", text, settings_with(**changes))
    for name, base, kind, message in (
        ("code", "base", ConflictError, "code is registered as an expert"),
        ("other", "base", ConflictError, "other-2 is registered as a base model"),
        ("soup", "absent", NotFoundError, "absent"),
    ):
        with pytest.raises(kind, match=message):
            filled.train_soup(name, base, text, settings_with())
    assert filled.versions() == before
    assert not list(filled.home.path.glob("partial/*"))
    for field in ("experts", "support", "rank", "hidden"):
        with pytest.raises(InvalidInputError, match=f"{field} is 0, the least is 1"):
            settings_with(**{field: 0})
    assert [settings_with(support=None).support_of(count) for count in (2, 4, 9)] == [2, 4, 4]


def test_windows_of_a_step_are_of_its_mixture_and_another_seed_begins_elsewhere(zoo: Zoo) -> None:
    settings = settings_with(support=1, tokens=50 * 2 * 32)
    windows, other = (
        read_soup_windows(
            corpora_of(zoo), Checkpoint(zoo.base), load_tokenizer(zoo.base), replace(settings, seed=seed), silent
        )
        for seed in (0, 1)
    )
    expected = draw_domain_weights(3, 1, 50, torch.Generator().manual_seed(settings.seed))
    assert torch.equal(windows.domain_weights, expected)
    starts = torch.tensor(windows.starts)
    for step, weights in enumerate(windows.domain_weights):
        own = windows.training[2 * step : 2 * step + 2]
        domain = int(weights.argmax())
        assert bool(((starts[domain] <= own) & (own < starts[domain + 1])).all())
    assert not set(windows.training.tolist()) & set(windows.held_out.tolist())
    assert not torch.equal(windows.training, other.training)
    first, second = (Soup(load_model(zoo.base, "float32", "cpu"), (), 3, 2, 8, None, seed) for seed in (0, 1))
    assert not torch.equal(first.hidden.weight, second.hidden.weight)


def test_files_of_another_form_are_refused(soup: Registry, tmp_path: Path) -> None:
    soup.export("soup", tmp_path / "shared")
    document = json.loads((tmp_path / "shared" / SOUP_FILE).read_bytes())
    good = (tmp_path / "shared" / SOUP_ROUTER).read_bytes()
    for changed, message in (
        (document | {"format": 2}, "format 2"),
        (document | {"experts": 3}, "output is float32 of shape"),
        (document | {"more": 1}, "a key 'more'"),
        (document | {"domains": ["b", "a", "a"]}, "not in order"),
        ({"format": 1, "soup": "x", "number": 1}, "soup is 'x'"),
    ):
        (tmp_path / "shared" / SOUP_FILE).write_text(json.dumps(changed))
        with pytest.raises(RegError, match=message):
            soup.add_base("changed", tmp_path / "shared")
    (tmp_path / "shared" / SOUP_FILE).write_text(json.dumps(document))
    for data in (b"", good[:50], good.replace(b"soup router 1", b"soup router 2")):
        (tmp_path / "shared" / SOUP_ROUTER).write_bytes(data or b"x")
        with pytest.raises(RegError, match="holds no router of a soup"):
            soup.add_base("changed", tmp_path / "shared")
