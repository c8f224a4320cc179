"""Proves: an ensemble's folder holds every member whole, loads in plain transformers, and mixes as its routing says.

References are computed here from the dense models alone, loaded on their own, with the formulas written out again. One
that cannot be is refused before anything is written.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from registry import Recipe, Registry
from registry.composition.plan import Plan
from registry.composition.recipe.fields import FIELDS
from registry.errors import IncompatibleError, InvalidInputError
from registry.io.model_folder import composed_of
from registry.methods.ensemble.output import ROUTINGS
from registry.methods.ensemble.plan import EnsembleParts, make_plan
from registry.runtime.loading import has_our_code, load_model, quiet_transformers
from tests.conftest import Zoo, files_of
from tests.digests import digests_of
from tests.models import make_model, save_checkpoint
from tests.registry.composition.composed import add_model, check_generated, json_of, tensors_of
from tests.registry.hosts.test_hosts import load as load

NAMES = ("code", "law", "math")
IDS = torch.randint(1, 320, (2, 20), generator=torch.Generator().manual_seed(1))
FIRST = 6
"""How many tokens the task vectors are compared on."""

Write = Callable[..., tuple[Plan, Path]]


@pytest.fixture
def write(filled: Registry, tmp_path: Path) -> Write:
    """Write an ensemble of the zoo's experts, and return what was planned and the folder."""

    def written(names: Sequence[str] = NAMES, **recipe: Any) -> tuple[Plan, Path]:
        return write_from(filled, names, tmp_path / "ensemble", **recipe)

    return written


def write_from(registry: Registry, names: Sequence[str], out: Path, **recipe: Any) -> tuple[Plan, Path]:
    ensemble = registry.compose(names, out, Recipe(to="ensemble", **recipe), force=True)
    assert isinstance(ensemble.parts, EnsembleParts)
    return ensemble, out


def by_first(routing: str, tokens: int = FIRST) -> dict[str, Any]:
    """Return the fields of a routing, with how many first tokens decide, if they do."""
    decide = routing in FIELDS["routing_tokens"].only_with["routing"]
    return {"routing": routing} | ({"routing_tokens": tokens} if decide else {})


@torch.no_grad()
def dense(folders: Sequence[Path], ids: torch.Tensor = IDS) -> torch.Tensor:
    """Return each model's log distributions (B, S, E, V)."""
    return torch.stack([load(folder)(input_ids=ids).logits.log_softmax(-1) for folder in folders], dim=2)


@torch.no_grad()
def mixed(model: Any, ids: torch.Tensor = IDS, **arguments: Any) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=ids, **arguments).logits
    return logits


def gained(own: torch.Tensor, ids: torch.Tensor = IDS) -> torch.Tensor:
    """Return each model's summed log likelihood of the prefix that ends at each place, (B, S, E), in float64."""
    gains = torch.zeros(own.shape[:3], dtype=torch.float64)
    for row in range(len(ids)):
        for place in range(1, ids.shape[1]):
            gains[row, place] = gains[row, place - 1] + own[row, place - 1, :, ids[row, place]].double()
    return gains


def mixture(own: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return (own.double().exp() * weights.unsqueeze(-1)).sum(2).log().float()


def cut(scores: torch.Tensor, top_k: int) -> torch.Tensor:
    """Return the softmax of the largest `top_k` scores (…, E)."""
    least = scores.sort(dim=-1, descending=True).values[..., top_k - 1 : top_k]
    kept = torch.where(scores >= least, scores.softmax(-1), 0.0)
    return kept / kept.sum(-1, keepdim=True)


def posterior_weights(own: torch.Tensor, top_k: int, temperature: float, prior: Sequence[float]) -> torch.Tensor:
    share = torch.tensor(prior, dtype=torch.float64)
    share /= share.sum()
    weights = cut(gained(own) / temperature + share.log(), top_k)
    weights[:, 0] = share
    return weights


def perplexity_weights(own: torch.Tensor, top_k: int, temperature: float) -> torch.Tensor:
    tokens = torch.arange(IDS.shape[1]).clamp(min=1)[:, None]
    weights = cut(-(-gained(own) / tokens).exp() / temperature, top_k)
    weights[:, 0] = 1 / own.shape[2]
    return weights


def task_vector_weights(zoo: Zoo, top_k: int, temperature: float) -> torch.Tensor:
    base = load(zoo.base)
    vectors = [
        torch.cat([(a - b).flatten() for a, b in zip(load(folder).parameters(), base.parameters(), strict=True)])
        for folder in (zoo.experts[name] for name in NAMES)
    ]
    weights = torch.full((*IDS.shape, len(NAMES)), 1 / len(NAMES), dtype=torch.float64)
    for row, ids in enumerate(IDS):
        loss = base(input_ids=ids[None, :FIRST], labels=ids[None, :FIRST]).loss
        gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(base.parameters()))])
        cosines = torch.stack([torch.cosine_similarity(-gradient, vector, dim=0) for vector in vectors]).detach()
        weights[row, FIRST - 1 :] = cut(cosines.double() / temperature, top_k)
    return weights


def test_one_member_is_its_dense_model_bit_for_bit(write: Write, zoo: Zoo) -> None:
    # A weight of exactly 1, whose logarithm is exactly 0, leaves the log softmax as it is.
    for routing in ("posterior", "perplexity"):
        _, folder = write(["math"], routing=routing)
        assert torch.equal(mixed(load(folder)), dense([zoo.experts["math"]])[:, :, 0])


@pytest.mark.parametrize(("top_k", "temperature", "weights"), [(3, 1.0, {}), (2, 20.0, {"law": 3.0}), (1, 1.0, {})])
def test_posterior_is_bayes_rule(
    write: Write, zoo: Zoo, top_k: int, temperature: float, weights: dict[str, float]
) -> None:
    _, folder = write(top_k=top_k, temperature=temperature, weights=weights)
    own = dense([zoo.experts[name] for name in NAMES])
    expected = posterior_weights(own, top_k, temperature, [weights.get(name, 1.0) for name in NAMES])
    found = mixed(load(folder))
    assert torch.allclose(found, mixture(own, expected), atol=2e-5)
    assert torch.allclose(found.exp().sum(-1), torch.ones(IDS.shape), atol=1e-5)
    assert not torch.allclose(found, mixture(own, torch.full_like(expected, 1 / 3)), atol=0.1)  # it can fail


@pytest.mark.parametrize(("top_k", "temperature"), [(1, 1.0), (2, 50.0)])
def test_perplexity_weighs_by_the_text_so_far(write: Write, zoo: Zoo, top_k: int, temperature: float) -> None:
    _, folder = write(routing="perplexity", top_k=top_k, temperature=temperature)
    own = dense([zoo.experts[name] for name in NAMES])
    expected = mixture(own, perplexity_weights(own, top_k, temperature))
    assert torch.allclose(mixed(load(folder)), expected, atol=2e-5)


@pytest.mark.check(after=1)
@pytest.mark.parametrize(("top_k", "temperature"), [(1, 1.0), (2, 0.01)])
def test_task_vectors_choose_by_the_first_tokens(write: Write, zoo: Zoo, top_k: int, temperature: float) -> None:
    _, folder = write(routing="task-vector", top_k=top_k, temperature=temperature, routing_tokens=FIRST)
    own = dense([zoo.experts[name] for name in NAMES])
    expected = mixture(own, task_vector_weights(zoo, top_k, temperature))
    model = load(folder)
    assert torch.allclose(mixed(model), expected, atol=2e-5)
    with torch.inference_mode():
        assert torch.equal(model(input_ids=IDS).logits, mixed(model))
    assert all(weight.grad is None for weight in model.parameters())


def test_task_vectors_run_only_whom_they_chose(write: Write) -> None:
    _, folder = write(routing="task-vector", top_k=1, routing_tokens=FIRST)
    model, calls = load(folder), []
    for index, member in enumerate(model.members):
        member.register_forward_hook(lambda *_, index=index: calls.append(index))
    whole = mixed(model, IDS[:1])
    calls.clear()
    assert torch.allclose(mixed(model, IDS[:1], logits_to_keep=1), whole[:, -1:], atol=1e-5)
    assert len(calls) == 1
    calls.clear()
    mixed(model, IDS[:1, : FIRST - 1])
    assert calls == [0, 1, 2]


@pytest.mark.check(after=1)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_cache_goes_on_where_it_stopped_and_padding_says_nothing(write: Write, routing: str) -> None:
    _, folder = write(top_k=2, temperature=0.1, **by_first(routing))
    model = load(folder)
    check_generated(model, IDS[:, :8], left=4, tokens=8)
    whole, cache, parts = mixed(model), DynamicCache(config=model.config), []
    for start, stop in ((0, 1), (1, 4), (4, 13), (13, 14), (14, 20)):
        name = "past_key_values" if start == 4 else "cache"  # as callers written before transformers 5.24 have it
        with torch.no_grad():
            output = model(input_ids=IDS[:, start:stop], **{name: cache}, use_cache=True)
        cache = output.cache
        assert cache.get_seq_length() == stop
        parts.append(output.logits)
    assert torch.allclose(torch.cat(parts, dim=1), whole, atol=2e-5)
    for keep in (1, 5, torch.tensor([7, 2])):
        expected = whole[:, keep] if isinstance(keep, torch.Tensor) else whole[:, -keep:]
        assert torch.allclose(mixed(model, logits_to_keep=keep), expected, atol=2e-5)
    alone = mixed(model, IDS[:1, :13])
    for left in (0, 7):
        ids, mask = IDS.clone(), torch.ones_like(IDS)
        ids[0], mask[0] = 5, 0
        ids[0, left : left + 13], mask[0, left : left + 13] = IDS[0, :13], 1
        found = mixed(model, ids, attention_mask=mask)
        assert torch.allclose(found[0, left : left + 13], alone[0], atol=5e-5)
        assert torch.allclose(found[1], whole[1], atol=5e-5)
    loss = torch.nn.functional.cross_entropy(whole[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())
    found = model(input_ids=IDS, labels=IDS).loss
    assert torch.allclose(found, loss)
    found.backward()
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in model.parameters())


@pytest.mark.check
def test_what_members_share_is_stored_once(registry: Registry, tokenizer: Any, tmp_path: Path) -> None:
    dense_folders = {"base": tmp_path / "base"}
    base = make_model("llama", 100, tie_word_embeddings=True)
    for number, name in enumerate(("code", "law", "math"), start=1):
        expert = make_model("llama", 100 + number, tie_word_embeddings=True)
        kept = {n: w for n, w in base.state_dict().items() if ".mlp." not in n and (name != "math" or "norm" in n)}
        expert.load_state_dict(expert.state_dict() | kept)
        dense_folders[name] = add_model(registry, tmp_path / name, expert)
    registry.add_base("base", save_checkpoint(base, tmp_path / "base", tokenizer))
    ensemble, folder = write_from(registry, ("law", "math", "code"), tmp_path / "out", routing="task-vector", top_k=3)
    stored, own = tensors_of(folder), {name: tensors_of(dense_folders[name]) for name in (*ensemble.names, "base")}
    size = sum(tensor.nbytes for tensors in own.values() for tensor in tensors.values())
    embedding = "model.embed_tokens.weight"
    trunk = sum(tensor.nbytes for name, tensor in own["base"].items() if ".mlp." not in name)
    norms = sum(tensor.nbytes for name, tensor in own["base"].items() if "norm" in name)
    written = sum(tensor.nbytes for tensor in stored.values())
    assert written == ensemble.nbytes == ensemble.parameters * 4 == size - 2 * trunk - norms
    assert ensemble.parts.shared[embedding] == [0, 0, 2, 0]
    assert {name for name in stored if name.endswith(embedding)} == {f"members.{n}.{embedding}" for n in (0, 2)}
    model = load(folder)
    everyone: list[Any] = [*model.members, model.base]
    first, second, third, last = everyone
    assert first.model.embed_tokens.weight is second.model.embed_tokens.weight is last.lm_head.weight
    assert third.model.embed_tokens.weight is third.lm_head.weight is not first.lm_head.weight
    assert third.model.norm.weight is last.model.norm.weight
    assert first.model.layers[0].mlp.up_proj.weight is not second.model.layers[0].mlp.up_proj.weight
    for place, name in zip(everyone, (*ensemble.names, "base"), strict=True):
        tensors = place.state_dict()
        assert all(torch.equal(tensors[key], tensor) for key, tensor in own[name].items())
    with quiet_transformers():
        model.save_pretrained(tmp_path / "again")
    again = tensors_of(tmp_path / "again")
    assert again.keys() == stored.keys()
    assert all(torch.equal(again[name], stored[name]) for name in stored)
    assert torch.equal(mixed(load(tmp_path / "again")), mixed(model))


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("gpt_neox", {}),
        ("gemma3_text", {"sliding_window": 8, "head_dim": 8, "layer_types": ["sliding_attention", "full_attention"]}),
    ],
)
def test_other_families(registry: Registry, tmp_path: Path, family: str, changes: dict[str, Any]) -> None:
    for number, name in enumerate(("code", "math"), start=1):
        add_model(registry, tmp_path / name, make_model(family, 100 + number, **changes))
    _, folder = write_from(registry, ("math", "code"), tmp_path / "out", temperature=30.0)
    own, model = dense([tmp_path / "code", tmp_path / "math"]), load(folder)
    assert torch.allclose(mixed(model), mixture(own, posterior_weights(own, 2, 30.0, [1.0, 1.0])), atol=2e-5)
    check_generated(model, IDS[:, :8], left=4)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_order_of_naming_changes_no_byte(filled: Registry, tmp_path: Path, routing: str) -> None:
    first, one = write_from(filled, NAMES, tmp_path / "one", routing=routing)
    second, other = write_from(filled, NAMES[::-1], tmp_path / "other", routing=routing)
    assert files_of(one) == files_of(other)
    assert first.digest == second.digest


def test_document_and_figures_are_those_of_the_plan(write: Write, filled: Registry) -> None:
    ensemble, folder = write(routing="task-vector", top_k=2)
    digests = digests_of(files_of(folder))
    assert json_of(folder) == ensemble.document | {"format": 2, "digest": ensemble.digest, "files": digests}
    assert composed_of(folder) == {name: filled.resolve(name).digest for name in NAMES}
    assert not {"top_k", "temperature"} & json_of(folder, "config.json").keys()  # settings of generation elsewhere
    page = (folder / "README.md").read_text()
    assert all(filled.resolve(name).digest in page for name in (*NAMES, "base"))
    posterior, _ = write(weights={"law": 2.0})
    assert posterior.base is None
    assert posterior.output.config(posterior)["routing_prior"] == [0.25, 0.5, 0.25]
    assert posterior.digest != ensemble.digest
    assert posterior.active_parameters == posterior.parameters == 3 * ensemble.active_parameters // 2


def test_another_dtype_is_written(write: Write, zoo: Zoo) -> None:
    _, folder = write(["code", "math"], dtype="bfloat16")
    stored, own = tensors_of(folder), tensors_of(zoo.experts["math"])
    assert all(torch.equal(stored[f"members.1.{name}"], own[name].bfloat16()) for name in own)
    assert json_of(folder, "config.json")["dtype"] == "bfloat16"


def test_our_own_code_is_run_and_no_other(write: Write) -> None:
    _, folder = write(["code"])
    assert has_our_code(folder)
    load_model(folder, "float32", "cpu")
    source = folder / "modeling_ensemble.py"
    source.write_text(source.read_text() + "\nraise SystemExit\n")
    assert not has_our_code(folder)
    source.unlink()
    assert not has_our_code(folder)


def test_what_a_model_cannot_take_is_told(write: Write) -> None:
    model = load(write(["code", "law"])[1])
    with pytest.raises(ValueError, match="takes input_ids"):
        model(inputs_embeds=torch.zeros(1, 2, 32))
    with pytest.raises(ValueError, match=r"attention mask of \(batch, tokens\)"):
        model(input_ids=IDS, attention_mask=torch.ones(2, 1, 20, 20))
    with torch.no_grad():
        foreign = model.members[0](input_ids=IDS, use_cache=True).cache
    with pytest.raises(ValueError, match="cache is of another model"):
        model(input_ids=IDS, cache=foreign)
    with torch.no_grad(), pytest.raises(NotImplementedError, match="cannot forget"):
        model(input_ids=IDS, use_cache=True).cache.crop(-1)


def test_what_does_not_fit_is_refused(filled: Registry, tmp_path: Path) -> None:
    first: dict[str, Any] = {"routing": "prompt-perplexity", "routing_tokens": 1}
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"routing_tokens": 2}, "routing_tokens has no part in routing method 'posterior'"),
        (first | {"routing": "task-vector"}, "routing-tokens is 1, it must be 2 or more"),
        (first, "routing-tokens is 1, it must be 2 or more"),
        ({"routing": "task-vector", "routing_tokens": 0}, "routing-tokens is 0, it must be 2 or more"),
        ({"weights": {"law": 2.0}, "routing": "perplexity"}, "weights has no part in routing method 'perplexity'"),
        ({"weights": {"german": 2.0}}, "weight for german, which is not a member"),
        ({"top_k": 4}, "top-k is 4, it must be from 1 to 3"),
    ]
    for recipe, message in refusals:
        with pytest.raises(InvalidInputError, match=message):
            filled.compose(NAMES, tmp_path / "out", Recipe(to="ensemble", **recipe))
    code = filled.member(filled.resolve("code"))
    with pytest.raises(InvalidInputError, match="needs the base model") as caught:
        make_plan([code], None, Recipe(to="ensemble", routing="task-vector"))
    assert caught.value.hint == "name it: --base NAME[@V]"
    add_model(filled, tmp_path / "wide", make_model("llama", 107, vocab_size=352), allow_unrelated=True)
    with pytest.raises(IncompatibleError, match="vocab_size 352 against 320"):
        filled.compose(["code", "wide"], tmp_path / "out", Recipe(to="ensemble"))
    add_model(filled, tmp_path / "half", make_model("llama", 101), dtype=torch.bfloat16)
    with pytest.raises(IncompatibleError, match=r"different dtypes \(code@1 float32, half@1 bfloat16\)"):
        filled.compose(["half", "code"], tmp_path / "out", Recipe(to="ensemble"))
    assert filled.plan(["half", "code"], Recipe(to="ensemble", dtype="float16")).dtype == "float16"
    assert not (tmp_path / "out").exists()
