"""adapter_config.json: the settings of an adapter, and a check that a plain merge is exact."""

import re
from typing import Any

from registry.errors import CheckpointError

CONFIG = "adapter_config.json"

MERGE = "merge it where it was trained (PEFT: merge_and_unload(), then save_pretrained()) and register the result"
SAVE = "save the adapter again, whole, with PEFT's save_pretrained()"

_KNOWN = frozenset(
    (
        *("peft_type", "task_type", "peft_version", "auto_mapping", "base_model_name_or_path", "revision"),
        *("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "modules_to_save", "bias"),
        *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "ensure_weight_tying"),
        *("init_lora_weights", "eva_config", "loftq_config", "corda_config", "lora_ga_config", "lora_dropout"),
        *("inference_mode", "runtime_config", "fan_in_fan_out", "megatron_core", "qalora_group_size"),
    )
)
"""Keys of adapter_config.json that are read here, or that do not affect the merged weights.

PEFT applies `fan_in_fan_out` only for Conv1D layers, which no dense family has."""

_STARTS = ("true", "false", "none", "gaussian", "orthogonal", "eva")
"""Values of `init_lora_weights` that leave the base unchanged. PiSSA, OLoRA, CorDA, LoRA-GA and LoftQ change it before
training; an adapter saved without conversion belongs to the changed weights."""


class Settings:
    """Settings of an adapter of LoRA, rsLoRA or DoRA.

    Attributes:
        base_name: `base_model_name_or_path`: a Hub repository, or a path on the machine where it was trained.
        saved: the modules that were trained in full.
        turned: it was trained for Conv1D layers.
        targets: the modules that low-rank changes were trained for, where the configuration lists them.
    """

    def __init__(self, config: dict[str, Any], label: str) -> None:
        """Read a configuration; `label` is the adapter's name in messages.

        (CheckpointError: a value is missing or not one that PEFT writes, or a plain merge would not be exact.)
        """
        self._config, self._label = config, label
        self._check_variant()
        self.base_name, self.revision = (
            self._value(key, str, "a name") or None for key in ("base_model_name_or_path", "revision")
        )
        self.rslora, self.dora = (bool(self._value(key, bool, "a boolean")) for key in ("use_rslora", "use_dora"))
        self.turned = bool(config.get("fan_in_fan_out"))
        self.saved = [str(name) for name in self._value("modules_to_save", list, "a list") or ()]
        targets = config.get("target_modules")
        self.targets = [str(name) for name in targets] if isinstance(targets, list) else []
        self._rank = self._number("r", config.get("r"), whole=True)
        self._alpha = self._number("lora_alpha", config.get("lora_alpha"))
        self._ranks = self._patterns("rank_pattern", whole=True)
        self._alphas = self._patterns("alpha_pattern")

    def rank(self, module: str) -> int:
        """Return r of a module, such as `model.layers.0.mlp.up_proj`."""
        return int(next((value for pattern, value in self._ranks if pattern.match(module)), self._rank))

    def alpha(self, module: str) -> float:
        """Return α of a module."""
        return next((value for pattern, value in self._alphas if pattern.match(module)), self._alpha)

    def _check_variant(self) -> None:
        if (kind := self._config.get("peft_type")) != "LORA":
            raise CheckpointError(f"{self._label} is a PEFT adapter of type {kind}, only LORA can be merged", MERGE)
        if others := sorted(key for key, value in self._config.items() if value and key not in _KNOWN):
            raise CheckpointError(
                f"{self._label}/{CONFIG} sets {', '.join(others)}; only LoRA, rsLoRA and DoRA can be merged exactly",
                MERGE,
            )
        if str(start := self._config.get("init_lora_weights", True)).lower() not in _STARTS:
            raise CheckpointError(
                f"{self._label}/{CONFIG}: init_lora_weights is {start!r}; only with {', '.join(_STARTS)} does an "
                "adapter go with the base's weights as they are",
                "save it with path_initial_model_for_weight_conversion, which makes it such an adapter",
            )

    def _value(self, key: str, kind: type, expected: str) -> Any:
        value = self._config.get(key)
        if value is not None and not isinstance(value, kind):
            raise self._wrong(key, value, expected)
        return value

    def _number(self, key: str, value: object, *, whole: bool = False) -> float:
        kind, low, expected = (int, 1, "a positive integer") if whole else ((int, float), -(2**64), "a finite number")
        if not isinstance(value, kind) or isinstance(value, bool) or not low <= value < 2**64:
            raise self._wrong(key, value, expected)
        return float(value)

    def _patterns(self, key: str, *, whole: bool = False) -> list[tuple[re.Pattern[str], float]]:
        """Return (pattern, value) pairs; the first pattern that matches to the end of a module's name decides."""
        patterns = []
        for text, value in (self._value(key, dict, "an object") or {}).items():
            try:
                if re.search(r"\)[*+?{]", text) or len(re.findall(r"[*+?{]", text)) > 3:
                    raise ValueError("it repeats too much and could take for ever to match")
                pattern = re.compile(rf"(.*\.)?({text})$")
            except (re.error, ValueError, OverflowError, RecursionError) as error:
                raise self._wrong(key, text[:80], f"a pattern of module names: {error}") from error
            patterns.append((pattern, self._number(key, value, whole=whole)))
        return patterns

    def _wrong(self, key: str, value: object, expected: str) -> CheckpointError:
        return CheckpointError(f"{self._label}/{CONFIG}: {key} is {value!r}, not {expected}", f"mend {CONFIG}")
