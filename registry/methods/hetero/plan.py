"""Plans of members of different architectures: whole bodies, one embedding, one head, a router of sequences."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from registry.composition.compatibility import common_dtype
from registry.composition.plan import OutputTensor, Plan, Source
from registry.composition.recipe.recipe import Recipe
from registry.composition.stored import Computed, Stored
from registry.member import Member
from registry.methods.hetero.fit import SOFTCAP, HeteroFit, Tables, make_tables
from registry.methods.hetero.host import HETERO, MODELLING_FILE
from registry.methods.whole_members import common_sizes, dense_settings, loading, own_config, weighing


@contextmanager
def opened(plan: Plan) -> Iterator[Source]:
    """Open the tensors, computed before stored (IncompatibleError: the lead's head has not full rank)."""
    fit: HeteroFit = plan.parts
    try:
        fit.check()
        yield Source([tensor.stream() for tensor in plan.tensors])
    finally:
        fit.close()


def config(plan: Plan) -> dict[str, Any]:
    """Return config.json: the shared sizes, the configuration of each member, and how members are weighed."""
    lead = plan.lead.architecture
    return {
        **loading(plan, MODELLING_FILE.stem, "HeteroConfig"),
        **common_sizes(plan),
        "vocab_size": lead.vocab_size,
        "initializer_range": dense_settings(plan.lead).get("initializer_range", 0.02),
        "tie_word_embeddings": lead.tie_word_embeddings,
        "logit_scale": lead.options.get("logit_scale"),
        "logits_scaling": lead.options.get("logits_scaling"),
        SOFTCAP: lead.options.get(SOFTCAP),
        "member_configs": [own_config(member) for member in plan.members],
        "input_projectors": [from_embedding for from_embedding, _ in plan.parts.projected],
        "output_projectors": [to_head for _, to_head in plan.parts.projected],
        "lead": plan.lead.name,
        "routing": "sequence",
        **weighing(plan),
    }


def make_hetero(members: Sequence[Member], recipe: Recipe) -> Plan:
    """Return the plan of members that share a tokenizer (arguments and errors as `Output.plan`)."""
    tables, lead = make_tables(members, recipe)
    ordered = tuple(each.member for each in tables)
    dtype = recipe.dtype or common_dtype(ordered)
    fit = HeteroFit(tables, lead, float(recipe.lam), recipe.routing_tokens)
    tensors = (*_fitted(fit, dtype), *_tensors(tables, lead, recipe.dtype))
    return Plan(recipe, ordered, None, lead.member, dtype, HETERO, "HeteroForCausalLM", tensors, fit)


def _fitted(fit: HeteroFit, dtype: str) -> Iterator[OutputTensor]:
    shared = fit.lead.width
    yield OutputTensor("router.weight", dtype, Computed((len(fit.tables), shared), fit.router))
    for index, (tables, (is_input, is_output)) in enumerate(zip(fit.tables, fit.projected, strict=True)):
        body, table = f"members.{index}", tables.embedding.removeprefix(tables.prefix).removesuffix(".weight")
        if is_input:
            made = Computed((tables.width, shared), partial(fit.input_projector, index))
            yield OutputTensor(f"{body}.{table}.projector.weight", dtype, made)
        if is_output:
            made = Computed((shared, tables.width), partial(fit.output_projector, index))
            yield OutputTensor(f"outputs.{index}.weight", dtype, made)


def _tensors(tables: Sequence[Tables], lead: Tables, dtype: str | None) -> Iterator[OutputTensor]:
    """Yield what is stored: the shared tables, then each member's body, by the names of its class."""
    shared = {lead.embedding: "embed_tokens.weight"} | (
        {lead.head: "lm_head.weight"} if lead.head != lead.embedding else {}
    )
    for name, own in shared.items():
        yield OutputTensor(own, dtype or lead.member.link("trunk", name).dtype, Stored(lead.member, "trunk", name))
    for index, each in enumerate(tables):
        member = each.member
        for name, role in member.roles.items():
            if name not in (each.embedding, each.head):
                own = f"members.{index}.{name.removeprefix(each.prefix)}"
                yield OutputTensor(own, dtype or member.link(role, name).dtype, Stored(member, role, name))
