"""Proves: a step is that of algorithm 2; a training that goes on ends in the same bytes; wrong input is refused."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from registry import ExpertTraining, Registry, SoupTraining
from registry.checkpoint import Checkpoint
from registry.checkpoint.model_files import EXPERT_TRAINING
from registry.checkpoint.soup_files import SOUP_FILE, SOUP_ROUTER, unpack_router
from registry.errors import CalibrationError, ConflictError, InvalidInputError, NotFoundError, RegError
from registry.io.torch_blocks import to_tensor
from registry.maths.soup_weights import draw_domain_weights
from registry.member import load_member
from registry.progress import Advance, silent
from registry.runtime.loading import load_model, load_tokenizer
from registry.soup.soup_model import Soup
from registry.soup.soup_text import read_soup_windows
from registry.training.weight_trainer import BETAS, Losses
from tests.conftest import Shared, Zoo, files_of
from tests.models import make_model, save_checkpoint, write_jsonl
from tests.registry.soup.conftest import DOMAINS, SETTINGS, corpora_of, settings_with, text_of

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
    """Algorithm 2 in plain loops over domains, experts, units and tensors, in float64, with AdamW as in its paper."""

    def __init__(self, zoo: Zoo, settings: SoupTraining) -> None:
        self.settings, checkpoint = settings, Checkpoint(zoo.base)
        self.model = load_model(zoo.base, "float32", "cpu").double()
        names = (*checkpoint.trunk, *checkpoint.mlp)
        self.windows = read_soup_windows(corpora_of(zoo), checkpoint, load_tokenizer(zoo.base), settings, silent)
        begun = Soup(load_model(zoo.base, "float32", "cpu"), names, 3, settings.experts, settings.hidden, None, 0)
        own = dict(self.model.named_parameters())
        self.shared = {name: own[name].detach().clone() for name in names}
        self.experts = [{name: torch.zeros_like(own[name]) for name in names} for _ in range(settings.experts)]
        self.router = {
            "w1": begun.hidden.weight.detach().double(),
            "b1": begun.hidden.bias.detach().double(),
            "w2": begun.output.weight.detach().double(),
            "b2": begun.output.bias.detach().double(),
        }
        self.moments: dict[str, tuple[Tensor, Tensor]] = {}

    def run(self) -> None:
        steps, batch = self.settings.weights.steps, self.settings.batch_size
        for t in range(1, steps + 1):
            numbers = self.windows.training[(t - 1) * batch : t * batch]
            self.step(t, self.windows.domain_weights[t - 1].tolist(), *self.windows.take(numbers))

    def step(self, t: int, h: list[float], ids: Tensor, keep: Tensor) -> None:
        units, n = self.settings.hidden, self.settings.experts
        w1, b1, w2, b2 = (self.router[name] for name in ("w1", "b1", "w2", "b2"))
        # eq. 2–3
        z = [float(b1[f]) + sum(float(w1[f, d]) * h[d] for d in range(len(h))) for f in range(units)]
        a = [max(0.0, value) for value in z]
        alpha = [float(b2[j]) + sum(float(w2[j, f]) * a[f] for f in range(units)) for j in range(n)]
        # eq. 2–3, and the loss of the batch at Θ
        own = dict(self.model.named_parameters())
        for name, shared in self.shared.items():
            theta = shared.clone()
            for j in range(n):
                theta += alpha[j] * self.experts[j][name]
            own[name].data.copy_(theta)
            own[name].grad = None
            own[name].requires_grad_(True)
        logits = self.model(input_ids=ids, use_cache=False).logits[:, :-1]
        targets = ids[:, 1:].masked_fill(~keep[:, 1:], -100)
        F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        # the chain rule, from ∂L/∂Θ to S, E_j and φ
        theta_gradient: dict[str, Tensor] = {}
        for name in self.shared:
            found = own[name].grad
            assert found is not None
            theta_gradient[name] = found.clone()
        gradients = {f"S {name}": found for name, found in theta_gradient.items()}
        alpha_gradient = [0.0] * n
        for j in range(n):
            for name, found in theta_gradient.items():
                gradients[f"E {j} {name}"] = alpha[j] * found
                alpha_gradient[j] += float((self.experts[j][name] * found).sum())
        gradients["w2"] = torch.tensor([[alpha_gradient[j] * a[f] for f in range(units)] for j in range(n)]).double()
        gradients["b2"] = torch.tensor(alpha_gradient).double()
        z_gradient = [
            sum(alpha_gradient[j] * float(w2[j, f]) for j in range(n)) if z[f] > 0 else 0.0 for f in range(units)
        ]
        gradients["w1"] = torch.tensor([[z_gradient[f] * weight for weight in h] for f in range(units)]).double()
        gradients["b1"] = torch.tensor(z_gradient).double()
        norm = math.sqrt(sum(float(found.square().sum()) for found in gradients.values()))
        assert norm > 1.0  # so that clipping takes the scale of the loss out
        rate = self.settings.lr * self.settings.weights.rate(t - 1)
        for key, gradient in gradients.items():
            self.adamw(key, gradient / norm, rate, t)

    def adamw(self, key: str, g: Tensor, rate: float, t: int) -> None:
        """Loshchilov & Hutter 2019, algorithm 2; matrices decay."""
        kind, _, rest = key.partition(" ")
        if kind == "S":
            weight = self.shared[rest]
        elif kind == "E":
            number, _, name = rest.partition(" ")
            weight = self.experts[int(number)][name]
        else:
            weight = self.router[key]
        m, v = self.moments.get(key, (torch.zeros_like(g), torch.zeros_like(g)))
        m, v = BETAS[0] * m + (1 - BETAS[0]) * g, BETAS[1] * v + (1 - BETAS[1]) * g * g
        self.moments[key] = m, v
        if weight.ndim > 1:
            weight -= rate * self.settings.weight_decay * weight
        m_hat, v_hat = m / (1 - BETAS[0] ** t), v / (1 - BETAS[1] ** t)
        weight -= rate * m_hat / (v_hat.sqrt() + EPSILON)


@pytest.mark.check
def test_steps_are_those_of_algorithm_2(filled: Registry, zoo: Zoo) -> None:
    settings = settings_with(tokens=3 * 2 * 32, hidden=4, warmup=0)
    filled.train_soup("soup", "base", text_of(zoo), settings)
    reference = Reference(zoo, settings)
    before = {name: tensor.clone() for name, tensor in reference.shared.items()}
    reference.run()
    shared, experts = weights_of(filled, "soup"), [weights_of(filled, f"soup-{j}") for j in (1, 2)]

    def far(found: Tensor, expected: Tensor, start: Tensor) -> float:
        return float((found.double() - expected).norm() / (expected - start).norm())

    for name, expected in reference.shared.items():
        assert far(shared[name], expected, before[name]) < 0.02, name
        for expert, own in zip(experts, reference.experts, strict=True):
            assert far(expert[name] - shared[name], own[name], torch.zeros_like(expected)) < 0.02, name
    member = load_member(filled._workspace, filled.resolve("soup"))
    router = unpack_router(member.file(SOUP_ROUTER), member.content["soup"], 32, "soup")
    for name, found in (("w1", router.hidden), ("b1", router.hidden_bias), ("w2", router.output)):
        assert np.allclose(found, reference.router[name].numpy(), atol=2e-3), name


def test_the_loss_falls_and_versions_say_what_they_are(soup: Registry) -> None:
    shared = soup.resolve("soup")
    assert (shared.kind, shared.content and shared.content["license"]) == ("base", "mit")
    training = soup.training_of(shared)
    assert training is not None
    assert training.after < training.before
    assert training.tokens == SETTINGS.tokens
    assert shared.content is not None
    document = shared.content["soup"]
    assert {key: document[key] for key in ("domains", "experts", "support", "rank")} == {
        "domains": list(DOMAINS),
        "experts": 2,
        "support": 1,
        "rank": None,
    }
    for number in (1, 2):
        expert = soup.resolve(f"soup-{number}")
        assert expert.content is not None
        assert (expert.kind, expert.content["soup"]) == ("expert", {"soup": shared.digest, "number": number})
        (counted,) = expert.statistics
        assert (counted.site, counted.calibration_label) == (
            "token_counts",
            "windows of the domains code, german, math",
        )
        assert counted.calibration_digest == document["data"]
    assert soup.verify().problems == ()


Whole = tuple[Losses, list[str]]
"""The losses of a training that nothing interrupted, and the digests of what it registered."""


def whole_training(root: Path, zoo: Zoo, **changes: Any) -> Whole:
    with Registry(root / "whole") as registry:
        losses = registry.train_soup("soup", zoo.base, text_of(zoo), settings_with(**changes)).losses
        assert len(losses.steps) == 6
        return losses, digests_of(registry)


@pytest.fixture(scope="session")
def whole(shared: Shared, zoo: Zoo) -> Whole:
    """The whole training of six steps."""
    return shared.get("six steps of a soup", lambda root: whole_training(root, zoo))


@pytest.mark.check
def test_same_seed_gives_the_same_bytes_and_another_does_not(zoo: Zoo, whole: Whole, tmp_path: Path) -> None:
    backwards = dict(reversed(text_of(zoo).items()))
    found = []
    for home, domains, changes in (("b", backwards, {}), ("c", text_of(zoo), {"seed": 1})):
        with Registry(tmp_path / home) as registry:
            registry.train_soup("soup", zoo.base, domains, settings_with(**changes))
            found.append(digests_of(registry))
    assert found[0] == whole[1]
    assert not set(whole[1]) & set(found[1])


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize(
    ("at", "changes"),
    [(1, {}), (4, {}), (6, {"rank": 2, "accumulate": 2, "tokens": 6 * 4 * 32})],
)
def test_an_interrupted_training_goes_on_to_the_same_bytes(
    zoo: Zoo, whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, changes: dict[str, Any]
) -> None:
    settings = settings_with(**changes)
    losses, expected = whole_training(tmp_path, zoo, **changes) if changes else whole
    monkeypatch.setattr("registry.training.weight_trainer.SAVE_SECONDS", 0.0)
    told: list[str] = []
    with Registry(tmp_path / "home") as registry:
        registry.progress = interrupting(at, told)
        with pytest.raises(KeyboardInterrupt):
            registry.train_soup("soup", zoo.base, text_of(zoo), settings)
        assert registry.versions() == []
        assert len(list(registry.home.partial.iterdir())) == (at > 1)
        registry.progress = interrupting(None, told)
        assert registry.train_soup("soup", zoo.base, text_of(zoo), settings).losses == losses
        assert any("goes on: " in line for line in told) == (at > 1)
        assert digests_of(registry) == expected
        assert not list(registry.home.partial.iterdir())


def interrupting(at: int | None, told: list[str]) -> Callable[..., Any]:
    """Return a progress that interrupts when step `at` is done."""

    @contextmanager
    def progress(label: str, total: int, unit: str) -> Iterator[Advance]:
        told.append(label)
        steps = 0

        def advance(amount: int) -> None:
            nonlocal steps
            steps += amount
            if unit == "step" and amount and steps == at:
                raise KeyboardInterrupt

        yield advance

    return progress


@pytest.mark.check
def test_a_registration_that_was_interrupted_is_completed(
    zoo: Zoo, whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Registry(tmp_path / "home") as registry:
        with monkeypatch.context() as patch:
            patch.setattr(import_module("registry.training.trained_together"), "register_expert", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                registry.train_soup("soup", zoo.base, text_of(zoo), settings_with())
        assert [version.ref for version in registry.versions()] == ["soup@1"]
        registry.train_soup("soup", zoo.base, text_of(zoo), settings_with())
        assert digests_of(registry) == whole[1]


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.check
def test_experts_of_a_rank_have_it(filled: Registry, zoo: Zoo) -> None:
    filled.train_soup("soup", "base", text_of(zoo), settings_with(rank=2, support=1))
    shared = weights_of(filled, "soup")
    for number in (1, 2):
        expert = weights_of(filled, f"soup-{number}")
        for name, tensor in expert.items():
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
        registry.train_soup("soup", base, text_of(zoo), settings_with())
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


EMPTY, ABSENT = "empty.jsonl", "absent.jsonl"
REFUSED: dict[str, tuple[dict[str, Any], list[str] | None, type[RegError], str, str]] = {
    "support above": ({"support": 4}, None, InvalidInputError, "support is 4, and there are 3 domains", "--support 3"),
    "rank above": ({"rank": 33}, None, InvalidInputError, "of shape [320, 32] has at most rank 32", "--rank 32"),
    "one domain": ({}, ["code"], InvalidInputError, "two domains or more, and one was named", "reg train-expert"),
    "no domain": ({}, [], InvalidInputError, "two domains or more, and none were named", "--domains FILE"),
    "empty domain": ({}, ["code", EMPTY], CalibrationError, "domain empty: ", "--domains empty=FILE"),
    "absent file": ({}, ["code", ABSENT], CalibrationError, "absent.jsonl is not a file", "existing file"),
}  # fmt: skip
"""Case → changes of the settings, domains, the error, and what its message and its hint say."""


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_input_is_refused_before_anything_is_written(
    registry: Registry, zoo: Zoo, tmp_path: Path, case: str
) -> None:
    changes, names, kind, message, hint = REFUSED[case]
    write_jsonl(tmp_path / EMPTY, ["  "])
    domains = text_of(zoo)
    if names is not None:
        domains = {name.split(".")[0]: [zoo.train.get(name, tmp_path / name)] for name in names}
    with pytest.raises(kind) as caught:
        registry.train_soup("soup", zoo.base, domains, settings_with(**changes))
    assert message in caught.value.message
    assert hint in str(caught.value.hint)
    assert registry.versions() == []
    assert not list(registry.home.path.glob("partial/*"))


@pytest.mark.parametrize("name", ["experts", "support", "rank", "hidden"])
def test_settings_below_1_are_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match=f"{name} is 0, the least is 1"):
        settings_with(**{name: 0})


def test_names_and_bases_that_cannot_be_are_refused(filled: Registry, zoo: Zoo) -> None:
    with pytest.raises(ConflictError, match="code is registered as an expert"):
        filled.train_soup("code", "base", text_of(zoo), settings_with())
    filled.add_base("other-2", zoo.base)
    with pytest.raises(ConflictError, match="other-2 is registered as a base model"):
        filled.train_soup("other", "base", text_of(zoo), settings_with())
    with pytest.raises(NotFoundError):
        filled.train_soup("soup", "absent", text_of(zoo), settings_with())
    with pytest.raises(InvalidInputError, match="'a,b' is not a domain's name"):
        filled.train_soup("soup", "base", {"a,b": [zoo.train["code"]], "c": [zoo.train["math"]]}, settings_with())
    with pytest.raises(InvalidInputError, match="domain d has no file"):
        filled.train_soup("soup", "base", text_of(zoo) | {"d": []}, settings_with())


def test_default_support_is_four_or_all_of_fewer() -> None:
    assert [settings_with(support=None).support_of(domains) for domains in (2, 4, 9)] == [2, 4, 4]


def test_windows_of_a_step_are_of_its_mixture(zoo: Zoo) -> None:
    settings = settings_with(support=1, tokens=50 * 2 * 32)
    windows = read_soup_windows(corpora_of(zoo), Checkpoint(zoo.base), load_tokenizer(zoo.base), settings, silent)
    expected = draw_domain_weights(3, 1, 50, torch.Generator().manual_seed(settings.seed))
    assert torch.equal(windows.domain_weights, expected)
    starts = torch.tensor(windows.starts)
    for step, weights in enumerate(windows.domain_weights):
        own = windows.training[2 * step : 2 * step + 2]
        domain = int(weights.argmax())
        assert bool(((starts[domain] <= own) & (own < starts[domain + 1])).all())
    assert not set(windows.training.tolist()) & set(windows.held_out.tolist())


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
