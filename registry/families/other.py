"""Model types of transformers that have no table here: base models of adapters, whose layers nobody here reads."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

from registry.errors import UnsupportedFamilyError, first_line
from registry.families.family import Family, Shapes, Translation
from registry.hosts.architecture import SIZES, Architecture

_APART = ("_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "use_cache")
"""Keys of config.json that say nothing of a model's function."""

_UNBOUNDED = 2**20
"""The longest text of a model whose configuration names none, such as a recurrent one."""


class Other(Family):
    """A causal language model of transformers: its tensors are those of its files, and no layer of it is known."""

    has_table: ClassVar[bool] = False

    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """Read a config.json as its class in transformers does (ValueError: that refuses it, or a size is none).

        A size that the class does not have, such as the heads of a recurrent model, or has several of, is 1. All keys
        that determine the function are options.
        """
        from transformers import AutoConfig

        options = {key: value for key, value in config.items() if key not in _APART}
        try:
            own: Any = AutoConfig.for_model(**{**_with_floats(options), "model_type": self.model_type})
        except Exception as error:  # transformers raises many kinds
            raise ValueError(f"transformers refuses it ({first_line(error)})") from error
        found = {name: getattr(own, name, None) for name in SIZES}
        found = {name: size if isinstance(size, int) else None for name, size in found.items()}
        found["max_position_embeddings"] = found["max_position_embeddings"] or _UNBOUNDED
        sizes = {name: 1 if found[name] is None else found[name] for name in SIZES}
        if missing := [name for name in ("hidden_size", "num_hidden_layers", "vocab_size") if found[name] is None]:
            raise ValueError(f"{', '.join(missing)} missing")
        tied = bool(getattr(own, "tie_word_embeddings", False))
        plain = {"hidden_act": "", "rope_parameters": {}, "tie_word_embeddings": tied, "num_key_value_heads": 1}
        return Architecture.checked(sizes | plain, options)

    def shapes(self, architecture: Architecture, stored: Shapes) -> Shapes:
        return dict(stored)

    def check_table(self) -> None:
        raise self._unknown()

    def trunk_shapes(self, architecture: Architecture) -> Shapes:
        """Raise UnsupportedFamilyError: whoever composes whole models asks for them, or for `hosts`."""
        raise self._unknown()

    def hosts(self, architecture: Architecture) -> dict[str, Translation]:
        """Raise UnsupportedFamilyError, as `trunk_shapes`."""
        raise self._unknown()

    def _unknown(self) -> UnsupportedFamilyError:
        return UnsupportedFamilyError(
            f"the layers of {self.model_type!r} models are not in the table of families: adapters of them can be "
            "composed, and nothing else",
            "reg compose --to adapters; docs/adding-a-family.md adds to the table",
        )

    def mlp_layer(self, architecture: Architecture) -> Shapes:
        return {}

    def layer_matrices(self, architecture: Architecture) -> tuple[str, ...]:
        return ()


def _with_floats(value: Any) -> Any:
    """Return a value of config.json with the numbers that JSON lacks, which transformers writes as objects."""
    if isinstance(value, dict):
        spelled = value.get("__float__") if value.keys() == {"__float__"} else None
        return float(spelled) if isinstance(spelled, str) else {key: _with_floats(one) for key, one in value.items()}
    return [_with_floats(one) for one in value] if isinstance(value, list) else value


@lru_cache
def other_family(model_type: str) -> Other | None:
    """Return the family of a causal language model of transformers; None of another `model_type`."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type)
    if not isinstance(name, str) or name.endswith("ForConditionalGeneration"):  # which reads more than text
        return None
    family: type[Other] = type(Other.__name__, (Other,), {"model_type": model_type, "class_name": name})
    return family()
