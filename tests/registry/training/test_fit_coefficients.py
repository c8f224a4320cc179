"""Proves: coefficients are fitted by the gradient of eq. 2, find the experts of a text, and take no expert's room."""

import json
import shutil
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from registry import ExpertTraining, FitSettings, PassSettings, Recipe, Registry, errors
from registry.composition.compose import write_plan
from registry.composition.recipe.recipe import fitted_members
from registry.composition.stored import pass_over
from registry.io.model_folder import MARKER
from registry.runtime.loading import load_model
from registry.training import coefficients as combined_weights
from registry.training.coefficients import CombinedWeights
from registry.training.training_windows import next_token_loss
from tests.conftest import Zoo, files_of
from tests.models import make_model, save_checkpoint, sentences, write_jsonl

DOMAINS = ("code", "law", "math")
SHORT = FitSettings(tokens=2048, steps=4, seq_len=32, device="cpu")
MODEL = Recipe(to="dense", trunk="task-arithmetic")

pytestmark = pytest.mark.check


@pytest.fixture(scope="module")
def trained_home(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """A home with a base model and experts that were trained on their domains."""
    root = tmp_path_factory.mktemp("fit")
    settings = ExpertTraining(tokens=12_000, batch_size=8, seq_len=32, lr=3e-3, trunk="free", device="cpu")
    with Registry(root / "home") as registry:
        registry.add_base("base", save_checkpoint(make_model("llama", 100), root / "base", tokenizer))
        for name in DOMAINS:
            registry.train_expert(name, "base", [write_jsonl(root / f"{name}.jsonl", sentences(name, 200))], settings)
    return root / "home"


@pytest.fixture
def trained(trained_home: Path, tmp_path: Path) -> Iterator[Registry]:
    with Registry(shutil.copytree(trained_home, tmp_path / "home")) as registry:
        yield registry


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Text of `math` that no expert has seen."""
    return write_jsonl(tmp_path / "text.jsonl", sentences("math", 200, seed=3))


def registered(root: Path, tokenizer: Any, family: str, sizes: tuple[int, ...], **config: Any) -> Registry:
    """Return a registry of a base model and experts near to it, with vocabularies of these sizes, the base's first."""
    registry = Registry(root / "home")
    settings = PassSettings(tokens=64, seq_len=32, batch_size=2, sites="counts")
    for number, size in enumerate(sizes):
        model = make_model(family, 100 + number, distance=0.05, **config)
        if size != model.config.vocab_size:
            model.resize_token_embeddings(size)
        folder = save_checkpoint(model, root / str(number), tokenizer)
        if number == 0:
            registry.add_base("base", folder, remote_code=True)
        else:
            data = write_jsonl(root / f"{number}.jsonl", sentences("law", 20))
            registry.add_expert(f"e{number}", folder, data=[data], settings=settings, remote_code=True)
    return registry


def loaded(registry: Registry, coefficients: dict[str, float], folder: Path) -> tuple[CombinedWeights, Any]:
    """Return the weights by coefficients of a model that was composed with these."""
    plan = registry.plan([*coefficients], MODEL.replace(coefficients=coefficients))
    write_plan(registry._workspace, plan, folder)
    model = load_model(folder, "float32", "cpu")
    return CombinedWeights(plan, model), model


def a_batch() -> tuple[Tensor, Tensor]:
    ids = torch.randint(1, 300, (3, 20), generator=torch.Generator().manual_seed(0))
    return ids, torch.arange(20)[None] < torch.tensor([20, 20, 11])[:, None]


@pytest.mark.trust(after=1)
@pytest.mark.parametrize(
    ("family", "config"),
    [("llama", {"tie_word_embeddings": False}), ("llama", {"tie_word_embeddings": True}), ("gpt_neox", {})],
    ids=["llama", "tied", "gpt_neox"],
)
def test_gradient_equals_autograd_through_the_sum(
    tmp_path: Path, tokenizer: Any, family: str, config: dict[str, Any]
) -> None:
    """Soup-of-Experts, §2.7 (ψ) and eq. 2: L(θ_0 + Σ_e α_e (θ_e − θ_0)), differentiated by α in float64."""
    with registered(tmp_path, tokenizer, family, (320, 320, 320), **config) as registry:
        weights, model = loaded(registry, {"e1": 0.1, "e2": 0.2}, tmp_path / "model")
        weights.set([0.6, -0.3])
        ids, keep = a_batch()
        loss, gradient = weights.gradient(ids, keep)
    start, *ends = ({k: v.double() for k, v in load_file(f).items()} for f in sorted(tmp_path.glob("?/*.safetensors")))
    alpha = torch.tensor([0.6, -0.3], dtype=torch.float64, requires_grad=True)
    soup = {}
    for name, base in start.items():
        total = base
        for number, end in enumerate(ends):
            total = total + alpha[number] * (end[name] - base)
        soup["lm_head.weight" if name == "embed_out.weight" else name] = total
    logits = torch.func.functional_call(model.double(), soup, (ids,), {"use_cache": False}).logits
    losses = []
    for window in range(len(ids)):
        for position in range(1, int(keep[window].sum())):
            losses.append(-logits[window, position - 1].log_softmax(-1)[ids[window, position]])
    expected = torch.stack(losses).mean()
    (reference,) = torch.autograd.grad(expected, alpha)
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    torch.testing.assert_close(gradient, reference, rtol=1e-4, atol=1e-5)
    assert all(part.grad is None for part in model.parameters())


def test_weights_are_those_of_the_composition_after_any_others(tmp_path: Path, tokenizer: Any) -> None:
    """Up to rounding in float32; rows that the base model lacks too, and an expert that lacks rows."""
    with registered(tmp_path, tokenizer, "llama", (320, 328, 324, 320)) as registry:
        numbers = {"e1": 0.7, "e2": -0.2, "e3": 0.4}
        weights, model = loaded(registry, dict.fromkeys(numbers, 1 / 3), tmp_path / "equal")
        fresh, other = loaded(registry, numbers, tmp_path / "model")
        expected = {name: part.detach().clone() for name, part in other.named_parameters()}
        weights.set([9.0, 9.0, 9.0])
        weights.set([*numbers.values()])
        fresh.set([*numbers.values()])
    for name, part in model.named_parameters():
        torch.testing.assert_close(part.detach(), expected[name], rtol=1e-5, atol=1e-6)
        assert torch.equal(part, dict(other.named_parameters())[name])  # not of what was set before


def test_text_of_a_domain_finds_its_expert(trained: Registry, text: Path, tmp_path: Path) -> None:
    fitted = trained.fit(DOMAINS, [text], settings=replace(SHORT, tokens=4096, steps=20))
    assert max(fitted.coefficients, key=fitted.coefficients.__getitem__) == "math"
    assert fitted.coefficients["math"] > 0.7 > 0.3 > max(fitted.coefficients["code"], fitted.coefficients["law"])
    record = fitted.record
    assert record.after < record.before - 0.5
    assert (len(fitted.losses), fitted.losses[-1] < fitted.losses[0]) == (20, True)
    assert 2048 < record.tokens <= 4096
    assert fitted.recipe == MODEL.replace(coefficients=fitted.coefficients, fit=record)
    plan = trained.compose(DOMAINS, tmp_path / "out", fitted.recipe)
    assert plan.document["recipe"]["fit"] == asdict(record)
    text.unlink()  # reproducing reads no text
    assert trained.reproduce(tmp_path / "out").is_same
    members = [(name, trained.resolve(name).digest) for name in reversed(DOMAINS)]
    assert record.members == fitted_members(members, trained.resolve("base").digest)
    assert list(trained.home.work.iterdir()) == []
    assert list(trained.home.partial.iterdir()) == []


def test_one_expert_and_a_base_model_can_be_fitted(trained: Registry, text: Path) -> None:
    assert trained.fit(["math"], [text], settings=SHORT).coefficients["math"] > 0.8
    assert trained.fit(["math", "base"], [text], settings=SHORT).coefficients["base"] == 0.5  # its task vector is 0


def test_an_interrupted_fit_goes_on_and_ends_the_same_in_any_order(
    trained: Registry, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained.fit(DOMAINS, [text], settings=SHORT)
    assert trained.fit(DOMAINS, [text], settings=replace(SHORT, seed=1)).coefficients != whole.coefficients
    gradient, calls = CombinedWeights.gradient, list[int]()

    def dying(weights: CombinedWeights, *batch: Any) -> Any:
        calls.append(len(calls))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return gradient(weights, *batch)

    monkeypatch.setattr(CombinedWeights, "gradient", dying)
    with pytest.raises(KeyboardInterrupt):
        trained.fit(DOMAINS, [text], settings=SHORT)
    assert len(list(trained.home.partial.iterdir())) == 1
    assert trained.fit(DOMAINS[::-1], [text], settings=SHORT) == whole
    assert len(calls) == 3 + 2  # two steps were done before
    assert list(trained.home.partial.iterdir()) == []


def test_a_loss_that_is_not_finite_ends_the_fit_with_the_last_coefficients(
    trained: Registry, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, loss = list[list[float]](), next_token_loss

    def failing(*arguments: Any) -> Tensor:
        found = loss(*arguments)
        return found * float("nan") if len(kept) == 3 else found

    set_ = CombinedWeights.set

    def setting(weights: CombinedWeights, coefficients: list[float]) -> None:
        if coefficients not in kept:
            kept.append(coefficients)
        set_(weights, coefficients)

    monkeypatch.setattr(combined_weights, "next_token_loss", failing)
    monkeypatch.setattr(CombinedWeights, "set", setting)
    with pytest.raises(errors.InvalidInputError, match="the loss is nan in step 3, and the fit has stopped") as caught:
        trained.fit(DOMAINS, [text], settings=SHORT)
    values = ",".join(f"{name}={value!r}" for name, value in zip(DOMAINS, kept[1], strict=True))
    assert caught.value.message.endswith(f"the last coefficients of a finite loss are {values}")
    assert f"--coefficients {values}" in str(caught.value.hint)
    kept[:] = [[], [], kept[0]]
    with pytest.raises(errors.InvalidInputError, match="the loss is nan in step 1, with equal coefficients"):
        trained.fit(DOMAINS, [text], settings=replace(SHORT, seed=5))


def test_opt_out_refuses_what_was_fitted_with_the_member(trained: Registry, text: Path, tmp_path: Path) -> None:
    fitted = trained.fit(DOMAINS, [text], settings=SHORT)
    trained.compose(DOMAINS, tmp_path / "out", fitted.recipe)
    trained.opt_out("law", purge=True, receipt=tmp_path / "receipt.json")
    (one,) = json.loads((tmp_path / "receipt.json").read_text())["compositions"]
    assert (one["folders"], one["recomposed"]) == ([str(tmp_path / "out")], None)
    assert one["why"].startswith("its coefficients were fitted for all members together")
    assert trained.verify_receipt(tmp_path / "receipt.json").problems == []
    uses: list[Callable[[], object]] = [
        lambda: trained.reproduce(tmp_path / "out"),
        lambda: trained.push(tmp_path / "out", "org/out", license="mit"),
    ]
    for use in uses:
        with pytest.raises(errors.ConflictError, match="holds law@1, which was opted out"):
            use()
    rest = {name: fitted.coefficients[name] for name in ("code", "math")}
    with pytest.raises(errors.InvalidInputError, match="the coefficients were fitted for other members"):
        trained.compose(["code", "math"], tmp_path / "rest", fitted.recipe.replace(coefficients=rest))
    again = trained.fit(["code", "math"], [text], settings=SHORT)
    assert again.coefficients["code"] != rest["code"]
    trained.compose(["code", "math"], tmp_path / "rest", again.recipe)
    assert MARKER in files_of(tmp_path / "rest")


@pytest.mark.parametrize("count", [1, 4])
def test_memory_does_not_grow_with_the_members(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """At any time some rows of one member are alive, at most two of its blocks, and the gradient of one tensor."""
    monkeypatch.setattr(combined_weights, "tile_rows", lambda width: 64)
    blocks, peak, gradients = list[weakref.ref[Tensor]](), 0, 0

    def alive() -> int:
        return sum(block.numel() for each in blocks if (block := each()) is not None)

    def watched(member: Any, name: str, rows: int) -> Callable[[], Iterator[Tensor]]:
        start = pass_over(member, name, rows)

        def passing() -> Iterator[Tensor]:
            nonlocal peak, gradients
            for block in start():
                blocks.append(weakref.ref(block))
                peak = max(peak, alive())
                gradients = max(gradients, sum(part.grad is not None for part in model.parameters()))
                yield block

        return passing

    monkeypatch.setattr(combined_weights, "pass_over", watched)
    with registered(tmp_path, tokenizer, "llama", (320,) * (count + 1)) as registry:
        numbers = {f"e{number}": 0.1 for number in range(1, count + 1)}
        weights, model = loaded(registry, numbers, tmp_path / "model")
        weights.set([0.2] * count)
        weights.gradient(*a_batch())
    assert (alive(), gradients) == (0, 0)  # the gradient is taken from its tensor before anything is read
    assert 0 < peak <= 2 * 64 * 64


def test_recipes_text_and_members_that_will_not_do_are_refused(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    text = [zoo.test["code"]]
    for recipe, message in (
        (Recipe(trunk="task-arithmetic"), "the recipe makes --to moe --trunk task-arithmetic"),
        (Recipe(to="dense", trunk="mean"), "the recipe makes --to dense --trunk mean"),
        (MODEL.replace(coefficients={"code": 1.0}), "there are coefficients already"),
        (MODEL.replace(trunk_options={"scale": 0.5}), "scale multiplies all task vectors"),
        (MODEL.replace(weights={"code": 2.0}), "weights multiply task vectors"),
    ):
        with pytest.raises(errors.InvalidInputError, match=message) as caught:
            filled.fit(["code", "math"], text, recipe)
        assert caught.value.hint
    empty, short = write_jsonl(tmp_path / "empty.jsonl", [""]), write_jsonl(tmp_path / "short.jsonl", ["def return"])
    cases: list[tuple[list[str], list[Path], type[errors.RegError], str]] = [
        (["code"], [], errors.InvalidInputError, "there is no text to fit the coefficients to"),
        (["code"], [tmp_path / "absent.jsonl"], errors.CalibrationError, "absent.jsonl is not a file"),
        (["code"], [*text, empty], errors.CalibrationError, "empty.jsonl holds no text to fit coefficients to"),
        (
            ["code"],
            [short],
            errors.CalibrationError,
            "10 tokens of short.jsonl are read, and a fit needs 10 windows",
        ),
        (["nobody"], text, errors.NotFoundError, "nobody"),
        (["code", "code"], text, errors.InvalidInputError, "named more than once"),
    ]
    for names, files, kind, message in cases:
        with pytest.raises(kind, match=message) as refused:
            filled.fit(names, files, settings=SHORT)
        assert refused.value.hint
    with Registry(tmp_path / "other") as other:
        other.add_expert("code", zoo.experts["code"])
        with pytest.raises(errors.IncompatibleError, match="none is registered"):
            other.fit(["code"], text)
    for wrong in ({"steps": 0}, {"tokens": 0}, {"lr": 0.0}, {"lr": float("inf")}, {"seq_len": 1}, {"seed": -1}):
        with pytest.raises(errors.InvalidInputError):
            FitSettings(**wrong)
