"""Keys of config.json in folders that hold whole members, each of its own class."""

import json
from typing import Any

from registry.composition.plan import Plan
from registry.composition.taken_files import special_tokens
from registry.hosts.host import dense_config
from registry.member import Member


def loading(plan: Plan, module: str, config: str) -> dict[str, Any]:
    """Return what config.json says of the class that loads the folder, of its dtype, special tokens and members.

    `module` is the modelling file, and `config` the class of the configuration in it.
    """
    return {
        "architectures": [plan.class_name],
        "auto_map": {"AutoConfig": f"{module}.{config}", "AutoModelForCausalLM": f"{module}.{plan.class_name}"},
        "model_type": plan.model_type,
        "dtype": plan.dtype,
        "torch_dtype": plan.dtype,
        **special_tokens(plan.output.file_members(plan), plan.lead),
        "members": plan.names,
    }


def weighing(plan: Plan) -> dict[str, Any]:
    """Return what config.json says of how many members are kept, and of what their weights follow from."""
    recipe = plan.recipe.document(plan.names)
    return {  # `top_k` and `temperature` would be taken for settings of generation
        "routing_temperature": recipe["temperature"],
        "routing_tokens": recipe["routing_tokens"],
        "routing_top_k": recipe["top_k"],
    }


def common_sizes(plan: Plan) -> dict[str, Any]:
    """Return sizes of config.json that transformers asks for, where members differ: those of the lead."""
    lead = plan.lead.architecture
    return {
        "hidden_size": lead.hidden_size,
        "num_attention_heads": lead.num_attention_heads,
        "num_hidden_layers": lead.num_hidden_layers,
        "max_position_embeddings": min(m.architecture.max_position_embeddings for m in plan.members),
        "use_cache": True,
    }


def dense_settings(member: Member) -> dict[str, Any]:
    """Return what config.json takes over from that of a member."""
    return dense_config(json.loads(member.file("config.json")))


def own_config(member: Member) -> dict[str, Any]:
    """Return the configuration of a member in a folder of several architectures."""
    given = dense_settings(member)
    kept = {key: value for key, value in given.items() if key not in ("architectures", "dtype", "torch_dtype")}
    own = member.architecture
    return kept | {
        "model_type": member.family.model_type,
        "tie_word_embeddings": own.tie_word_embeddings,
        "vocab_size": own.vocab_size,
    }
