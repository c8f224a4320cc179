"""Proves: members of several architectures in one folder compute what the projectors, the router and each member say.

References are computed here from the checkpoints alone, loaded on their own, with the formulas written out again.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from registry import Registry
from registry.runtime.gates import record_routing
from registry.runtime.loading import has_our_code, load_model
from registry.runtime.upcast import upcast
from tests.conftest import Zoo, files_of
from tests.models import make_model
from tests.registry.composition.composed import add_model, check_generated, json_of, tensors_of
from tests.registry.hosts.test_hosts import load
from tests.registry.methods.hetero.hetero_world import (
    FIRST,
    LEAD,
    NAMES,
    SETTINGS,
    World,
    add_member,
    compose,
    forced,
    logits_of,
    tables,
)

IDS = torch.randint(1, 320, (2, 14), generator=torch.Generator().manual_seed(1))
INDEX = {name: number for number, name in enumerate(NAMES)}


@pytest.fixture(scope="module")
def model(world: World) -> Any:
    return load(world.folder)


def windows(registry: Registry, name: str) -> list[list[int]]:
    """Return the kept windows of an expert without padding."""
    calibration = registry.member(registry.resolve(name)).calibration
    assert calibration is not None
    return [ids[:length].tolist() for ids, length in zip(calibration.ids, calibration.lengths.tolist(), strict=True)]


def test_projectors_and_router_are_solved_from_the_tables(world: World, several: Registry) -> None:
    # Ours, for the projectors of MergeME §3.2: into the member P = (Eᵀ C E + r I)⁻¹ Eᵀ C E_i, out of it
    # R = s (Hᵀ K H)⁻¹ Hᵀ K H_i, with the counts of the kept tokens, r of 0.01 times the mean of the diagonal, K of the
    # counts and a tenth of their mean, and s = 1/4 for logits that are divided by 4. The router is DUME eq. 6 and 7 on
    # the mean embedding of the first tokens of each kept window.
    (shared, head), tensors = tables(world.experts[LEAD]), tensors_of(world.folder)
    grams, right = torch.zeros(48, 48, dtype=torch.float64), torch.zeros(48, 4, dtype=torch.float64)

    def solved(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        ridge = 0.01 * float(left.diagonal().mean()) * torch.eye(48, dtype=torch.float64)
        found: torch.Tensor = torch.linalg.solve(left + ridge, right)
        return found

    for index, name in enumerate(NAMES):
        kept = windows(several, name)
        for window in kept:
            mean = torch.zeros(48, dtype=torch.float64)
            for token in window[:FIRST]:
                mean += shared[token] / len(window[:FIRST])
            grams += torch.outer(mean, mean) / len(kept)
            right[:, index] += mean / len(kept)
        if name == LEAD:
            continue
        own, own_head = tables(world.experts[name])
        counts = torch.zeros(len(shared), dtype=torch.float64)
        for token in (token for window in kept for token in window):
            counts[token] += 1
        left = torch.zeros(48, 48, dtype=torch.float64)
        for v in range(len(shared)):
            left += counts[v] * torch.outer(shared[v], shared[v])
        found = tensors[f"members.{index}.embed_tokens.projector.weight"]
        assert torch.allclose(found.double().T, solved(left, shared.T @ (counts[:, None] * own)), atol=1e-6), name
        scale = 0.25 if name == "biomed" else 1.0
        root = (counts + 0.1 * counts.mean()).sqrt()[:, None]
        out = torch.linalg.lstsq(root * head, root * own_head * scale).solution
        assert torch.allclose(tensors[f"outputs.{index}.weight"].double(), out, atol=1e-6), name
    assert torch.allclose(tensors["router.weight"].double(), solved(grams, right).T, atol=1e-6)  # of float32


def test_the_lead_is_its_dense_model_and_others_stand_between_their_projectors(world: World, model: Any) -> None:
    # The lead's bit for bit. Another's with the table E P in the place of its own, whose last hidden states go through
    # R and H.
    tensors, (shared, head) = tensors_of(world.folder), tables(world.experts[LEAD])
    assert torch.equal(forced(model, INDEX[LEAD])(IDS), logits_of(load(world.experts[LEAD]), IDS))
    assert not any(f"{INDEX[LEAD]}." in name for name in tensors if "projector" in name or "outputs" in name)
    for name in NAMES[:-1]:
        member, projector = load(world.experts[name]), f"members.{INDEX[name]}.embed_tokens.projector.weight"
        with torch.no_grad():
            member.get_input_embeddings().weight.copy_(shared @ tensors[projector].double().T)
            hidden = member.base_model(input_ids=IDS).last_hidden_state.double()
        expected = hidden @ (head @ tensors[f"outputs.{INDEX[name]}.weight"].double()).T
        assert torch.allclose(forced(model, INDEX[name])(IDS).double(), expected, atol=1e-4)  # sums of float32


def test_logits_are_mixed_by_the_router(world: World, model: Any) -> None:
    # Σ_i w_i (H R_i h_i), w uniform before FIRST tokens, then the softmax of the two largest scores over T = 0.05.
    every = torch.stack([forced(model, index)(IDS).double() for index in range(4)])
    with record_routing(model) as (recorded,):
        whole = logits_of(model, IDS)
    assert recorded.weights[0].shape == (2 * 14, 4)
    assert torch.allclose(recorded.weights[0].sum(-1), torch.ones(28))
    router, (shared, _) = tensors_of(world.folder)["router.weight"].double(), tables(world.experts[LEAD])
    for row, ids in enumerate(IDS):
        mean = torch.zeros(48, dtype=torch.float64)
        for token in ids[:FIRST]:
            mean += shared[token] / FIRST
        scores = router @ mean
        kept = scores.topk(2).indices
        weights = torch.zeros(4, dtype=torch.float64)
        weights[kept] = (scores[kept] / 0.05).softmax(0)
        found = whole[row].double()
        early = every[:, row, : FIRST - 1].mean(0)
        late = torch.einsum("e,esv->sv", weights, every[:, row, FIRST - 1 :])
        assert torch.allclose(found[: FIRST - 1], early, atol=1e-4)
        assert torch.allclose(found[FIRST - 1 :], late, atol=1e-4)


def test_padding_has_no_part(model: Any) -> None:
    # Equal but for the order in which attention sums over more columns, some of them masked; for padding on the left:
    # check_generated.
    pad = torch.zeros(2, 4, dtype=torch.long)
    ids, mask = torch.cat([IDS, pad], dim=1), torch.cat([torch.ones_like(IDS), pad], dim=1)
    padded = logits_of(model, ids, attention_mask=mask)
    assert torch.allclose(padded[:, : IDS.shape[1]], logits_of(model, IDS), atol=1e-4)


def test_text_is_the_same_with_and_without_a_cache(model: Any) -> None:
    check_generated(model, IDS[:, :8], left=5)  # the second has too few tokens to decide yet


def test_a_cache_goes_on_where_it_stopped(model: Any) -> None:
    whole, parts = logits_of(model, IDS), []
    cache: Any = None
    with torch.no_grad():
        for start, stop in ((0, 2), (2, 7), (7, 8), (8, 14)):
            mask = torch.ones(2, stop, dtype=torch.long)
            output = model(input_ids=IDS[:, start:stop], attention_mask=mask, cache=cache, use_cache=True)
            cache = output.cache
            parts.append(output.logits)
    assert torch.allclose(torch.cat(parts, dim=1), whole, atol=1e-4)
    assert torch.allclose(logits_of(model, IDS, logits_to_keep=3), whole[:, -3:], atol=1e-4)
    with pytest.raises(NotImplementedError, match="cannot forget"):
        cache.crop(-1)


def test_members_that_are_not_chosen_do_not_run(model: Any) -> None:
    calls: list[tuple[int, int]] = []

    def note(index: int) -> Any:
        return lambda _module, _args, kwargs, _out: calls.append((index, kwargs["input_ids"].shape[1]))

    hooks = [body.register_forward_hook(note(index), with_kwargs=True) for index, body in enumerate(model.members)]
    logits_of(model, IDS[:1], logits_to_keep=1)
    assert len(calls) == 2
    calls.clear()
    logits_of(model, IDS[:1])
    assert sorted(width for _, width in calls) == [FIRST - 1, FIRST - 1, 14, 14]
    for hook in hooks:
        hook.remove()


def test_the_whole_prompt_decides_with_0_tokens(several: Registry, world: World, tmp_path: Path) -> None:
    compose(several, tmp_path / "out", routing_tokens=0, top_k=1)
    model = load(tmp_path / "out")
    router, (shared, _) = tensors_of(tmp_path / "out")["router.weight"].double(), tables(world.experts[LEAD])
    chosen = int((router @ shared[IDS[0, :9]].mean(0)).argmax())
    assert torch.equal(logits_of(model, IDS[:1, :9]), forced(model, chosen)(IDS[:1, :9]))
    mask = torch.ones(2, 9, dtype=torch.long)
    text = model.generate(IDS[:, :9], attention_mask=mask, max_new_tokens=1, do_sample=False, pad_token_id=0)
    assert torch.equal(text[:, 9], logits_of(model, IDS[:, :9])[:, -1].argmax(-1))


def test_another_lead_is_as_good(several: Registry, world: World, tmp_path: Path) -> None:
    plan = compose(several, tmp_path / "out", lead="law", top_k=1)
    assert plan.lead.name == "law"
    model = load(tmp_path / "out")
    assert torch.equal(forced(model, INDEX["law"])(IDS), logits_of(load(world.experts["law"]), IDS))
    assert model.config.hidden_size == 32
    assert tensors_of(tmp_path / "out")[f"outputs.{INDEX['math']}.weight"].shape == (32, 48)


FAMILIES: dict[str, dict[str, Any]] = {
    "gemma2": {"head_dim": 8},
    "gemma3_text": {"head_dim": 8, "num_hidden_layers": 2},
    "granite": {"logits_scaling": 2.0, "embedding_multiplier": 3.0},
    "cohere2": {"logit_scale": 0.25},
    "gpt_neox": {},
}


@pytest.mark.check
@pytest.mark.trust(after=2)
@pytest.mark.parametrize("family", FAMILIES)
def test_members_with_the_shared_tables_are_their_dense_models(family: str, tmp_path: Path) -> None:
    # Whatever a family multiplies its embeddings and logits by, or caps them at.
    first, second = (make_model(family, number, **FAMILIES[family]) for number in (101, 102))
    with torch.no_grad():
        second.get_input_embeddings().weight.copy_(first.get_input_embeddings().weight)
        second.get_output_embeddings().weight.copy_(first.get_output_embeddings().weight)
    with Registry(tmp_path / "home") as registry:
        for name, model in (("code", first), ("law", second)):
            add_model(registry, tmp_path / name, model, settings=SETTINGS, keep_calibration=True)
        plan = compose(registry, tmp_path / "out", ("code", "law"))
    assert plan.parts.projected == [(False, False), (False, False)]
    model = load(tmp_path / "out")
    for index, name in enumerate(("code", "law")):
        assert torch.equal(forced(model, index)(IDS), logits_of(load(tmp_path / name), IDS))


def test_the_folder_is_a_function_of_members_and_recipe(several: Registry, world: World, tmp_path: Path) -> None:
    assert has_our_code(world.folder)
    compose(several, tmp_path / "again", tuple(reversed(NAMES)))
    assert files_of(tmp_path / "again") == files_of(world.folder)
    assert several.reproduce(tmp_path / "again").is_same
    config = json_of(world.folder, "config.json")
    assert config["model_type"] == "ensemble_hetero"
    assert [own["model_type"] for own in config["member_configs"]] == ["granite", "llama", "gemma", "qwen3"]


@pytest.mark.check
def test_a_lead_that_opts_out_leaves_no_trace(several: Registry, zoo: Zoo, world: World, tmp_path: Path) -> None:
    rest = tuple(name for name in NAMES if name != LEAD)
    several.opt_out(LEAD, purge=True)
    compose(several, tmp_path / "out", rest)
    with Registry(tmp_path / "other") as never:
        for name in rest:
            add_member(never, name, world.experts[name], zoo)
        assert compose(never, tmp_path / "never", rest).lead.name == "biomed"
    assert files_of(tmp_path / "out") == files_of(tmp_path / "never")


def test_narrow_weights_are_cast_while_they_run(several: Registry, tmp_path: Path) -> None:
    compose(several, tmp_path / "half", dtype="bfloat16")
    whole = load_model(tmp_path / "half", "float32", None)
    cast = upcast(load_model(tmp_path / "half", "bfloat16", None))
    assert torch.allclose(logits_of(cast, IDS), logits_of(whole, IDS), atol=1e-4)


def test_a_saved_model_loads_again_and_has_gradients(world: World, model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert torch.equal(logits_of(again, IDS), logits_of(model, IDS))
    again(input_ids=IDS, labels=IDS).loss.backward()
    gradients = {name: weight.grad for name, weight in again.named_parameters() if weight.grad is not None}
    assert {"outputs.0.weight", "members.1.embed_tokens.projector.weight", "embed_tokens.weight"} <= gradients.keys()
    assert all(gradient.isfinite().all() for gradient in gradients.values())
