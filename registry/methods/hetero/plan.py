"""Members of different architectures in one model: whole bodies, one embedding, one head, a router of sequences."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from jaxtyping import Float
from torch import Tensor

from registry.composition.cards.parts import licenses_of
from registry.composition.compatibility import common_dtype
from registry.composition.recipe.recipe_fields import SEQUENCE
from registry.composition.taken_files import special_tokens, taken_files
from registry.hosts.host import dense_config
from registry.hosts.remote_code import HETERO, HETERO_MODULE, hetero_code
from registry.io.model_folder import json_file
from registry.io.safetensors_writer import Stream
from registry.io.torch_blocks import to_block, torch_dtype
from registry.member import Member
from registry.methods.ensemble.plan import Ensemble, EnsembleTensor
from registry.methods.ensemble.several_families import own_config
from registry.methods.hetero.card import hetero_card
from registry.methods.hetero.fit import HeteroFit
from registry.methods.hetero.recipe import HeteroRecipe
from registry.methods.hetero.tables import SOFTCAP, Tables, make_tables
from registry.methods.moe.render import held
from registry.methods.moe.tensor_source import TensorSource
from store.arrays import CARRIERS, Block
from store.catalog.records import Role

CLASS_NAME = "HeteroForCausalLM"


@dataclass(frozen=True)
class FittedTensor:
    """One tensor of the folder that is computed: its name there, and how it is made."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    compute: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * CARRIERS[self.dtype][1]

    def stream(self) -> Stream:
        """Return it as it is written."""
        return Stream(self.name, self.dtype, self.shape, self._blocks)

    def _blocks(self) -> Iterator[Block]:
        yield from held([to_block(self.compute().to(torch_dtype(self.dtype)))], self.dtype, self.name)


@dataclass(frozen=True)
class Hetero(Ensemble):
    """Members of different architectures, before a byte of them is written; all share the lead's tables."""

    @property
    def hetero_recipe(self) -> HeteroRecipe:
        """The recipe, as what it is."""
        assert isinstance(self.recipe, HeteroRecipe)
        return self.recipe

    @cached_property
    def tables(self) -> tuple[Tables, ...]:
        """The embedding and head of each member."""
        return tuple(map(Tables, self.members))

    @cached_property
    def shared_tables(self) -> Tables:
        """Those of the lead."""
        return Tables(self.lead)

    @property
    def model_type(self) -> str:
        """The `model_type` written to config.json."""
        return HETERO

    @property
    def class_name(self) -> str:
        """The class in the modelling file."""
        return CLASS_NAME

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the result for its user."""
        own = [tables.member.name for tables in self.tables if tables.has_output_projector(self.shared_tables)]
        fitted = (f"the head of {self.lead.name} stands in for that of {', '.join(own)}, by least squares",)
        return (*super().notes, *(fitted if own else ()))

    @cached_property
    def fit(self) -> HeteroFit:
        """The projectors between the lead's tables and each member, and the router."""
        recipe = self.hetero_recipe
        return HeteroFit(self.tables, self.shared_tables, recipe.lam, recipe.routing_tokens)

    @cached_property
    def projected(self) -> tuple[list[bool], list[bool]]:
        """Tell of each member whether it has a projector from the embedding, and one to the head."""
        lead = self.shared_tables
        return (
            [tables.has_input_projector(lead) for tables in self.tables],
            [tables.has_output_projector(lead) for tables in self.tables],
        )

    def streams(self, trunk: TensorSource | None) -> list[Stream]:
        """Return every tensor as it is written: what is computed first, then what is stored."""
        return [tensor.stream() for tensor in self._stored]

    @property
    def _stored(self) -> Sequence[EnsembleTensor | FittedTensor]:
        """Every tensor of the folder."""
        return [*self._fitted(), *self.tensors]

    @property
    def active_parameters(self) -> int:
        """Weights that take part in one token: the shared tables, the router, and at most the largest bodies kept."""
        bodies = sorted(self._body_sizes(), reverse=True)
        return self.parameters - sum(bodies[self.hetero_recipe.document(self.names)["top_k"] :])

    @property
    def peak_bytes(self) -> int:
        """An upper estimate of the memory that writing takes: the matrices of one projector beside one block."""
        widths = [tables.width for tables in self.tables]
        matrices = 4 * 8 * self.shared_tables.width * max(widths)
        return super().peak_bytes + matrices

    @property
    def config(self) -> dict[str, Any]:
        """config.json: the shared sizes, the configuration of each member, and how members are weighed."""
        lead, recipe = self.lead.architecture, self.hetero_recipe.document(self.names)
        inputs, outputs = self.projected
        settings = dense_config(json.loads(self.lead.file("config.json")))
        return {
            "architectures": [CLASS_NAME],
            "auto_map": {
                "AutoConfig": f"{HETERO_MODULE}.HeteroConfig",
                "AutoModelForCausalLM": f"{HETERO_MODULE}.{CLASS_NAME}",
            },
            "model_type": HETERO,
            "dtype": self.dtype,
            "torch_dtype": self.dtype,
            **special_tokens(self.members, self.lead),
            "hidden_size": lead.hidden_size,
            "num_attention_heads": lead.num_attention_heads,
            "num_hidden_layers": lead.num_hidden_layers,
            "max_position_embeddings": min(m.architecture.max_position_embeddings for m in self.members),
            "vocab_size": lead.vocab_size,
            "initializer_range": settings.get("initializer_range", 0.02),
            "use_cache": True,
            "tie_word_embeddings": lead.tie_word_embeddings,
            "logit_scale": lead.options.get("logit_scale"),
            "logits_scaling": lead.options.get("logits_scaling"),
            SOFTCAP: lead.options.get(SOFTCAP),
            "members": self.names,
            "member_configs": [own_config(member) for member in self.members],
            "input_projectors": inputs,
            "output_projectors": outputs,
            "lead": self.lead.name,
            "routing": SEQUENCE,
            # `top_k` and `temperature` would be taken for settings of generation.
            "routing_temperature": recipe["temperature"],
            "routing_tokens": recipe["routing_tokens"],
            "routing_top_k": recipe["top_k"],
        }

    @property
    def files(self) -> dict[str, bytes]:
        """Every file of the folder except the weights and `composition.json`."""
        card = hetero_card(
            self.document | {"digest": self.digest},
            self.members,
            lead=self.lead,
            projected=self.projected,
            rolled=licenses_of(self.members, None),
            parameters=self.parameters,
            dtype=self.dtype,
        )
        made = {"config.json": json_file(self.config), "README.md": card}
        return taken_files(self.members, self.lead) | hetero_code() | made

    def _fitted(self) -> Iterator[FittedTensor]:
        shared = self.shared_tables.width
        inputs, outputs = self.projected
        yield FittedTensor("router.weight", self.dtype, (len(self.members), shared), lambda: self.fit.router())
        for index, tables in enumerate(self.tables):
            body, table = f"members.{index}", tables.embedding.removeprefix(tables.prefix).removesuffix(".weight")
            if inputs[index]:
                name = f"{body}.{table}.projector.weight"
                yield FittedTensor(name, self.dtype, (tables.width, shared), partial(self._input_projector, index))
            if outputs[index]:
                name = f"outputs.{index}.weight"
                yield FittedTensor(name, self.dtype, (shared, tables.width), partial(self._output_projector, index))

    def _input_projector(self, index: int) -> Float[Tensor, "D d"]:
        return self.fit.input_projector(index)

    def _output_projector(self, index: int) -> Float[Tensor, "d D"]:
        return self.fit.output_projector(index)

    def _body_sizes(self) -> list[int]:
        """Return the weights of each member's body, with its projectors."""
        sizes = []
        for index in range(len(self.members)):
            own = (f"members.{index}.", f"outputs.{index}.")
            sizes.append(sum(math.prod(tensor.shape) for tensor in self._stored if tensor.name.startswith(own)))
        return sizes


def make_hetero(members: Sequence[Member], recipe: HeteroRecipe) -> Hetero:
    """Return the plan of members of different architectures (in any order) by `recipe`.

    Args:
        members: active versions of different experts that share a tokenizer.
        recipe: how they share an embedding and a head, and are weighed.

    Raises:
        InvalidInputError: no member or one, a name twice, or a recipe that does not fit them.
        IncompatibleError: members differ in what must agree, or one lacks what the recipe needs; the message says who
            and what.
    """
    tables, lead = make_tables(members, recipe)
    ordered = tuple(each.member for each in tables)
    dtype = recipe.dtype or common_dtype(ordered)
    tensors = tuple(_tensors(tables, lead, recipe.dtype))
    return Hetero(ordered, None, recipe, dtype, lead.member, {}, tensors)


def _tensors(tables: Sequence[Tables], lead: Tables, dtype: str | None) -> Iterator[EnsembleTensor]:
    """Yield what is stored: the shared tables, then each member's body, by the names of its class."""
    shared = {lead.embedding: "embed_tokens.weight"} | (
        {lead.head: "lm_head.weight"} if lead.head != lead.embedding else {}
    )
    for name, own in shared.items():
        yield EnsembleTensor(own, lead.member, "trunk", name, dtype or lead.member.link("trunk", name).dtype)
    for index, each in enumerate(tables):
        member, family = each.member, each.member.family
        roles: dict[str, Role] = dict.fromkeys(family.trunk_shapes(member.architecture), "trunk")
        roles |= dict.fromkeys(family.mlp_shapes(member.architecture), "mlp")
        for name, role in roles.items():
            if name not in (each.embedding, each.head):
                own = f"members.{index}.{name.removeprefix(each.prefix)}"
                yield EnsembleTensor(own, member, role, name, dtype or member.link(role, name).dtype)
