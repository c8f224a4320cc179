"""Models and tokenizers loaded with transformers: safetensors only, no code but our own, nothing printed."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils.hooks import RemovableHandle

from registry.errors import CheckpointError, InvalidInputError, first_line, is_foreign
from registry.families import FAMILIES
from registry.hosts.remote_code import CLASSES, ROUTED, routed_host
from registry.io.display import few
from registry.io.torch_blocks import torch_dtype
from registry.io.untrusted import read_json, read_small
from registry.maths.products import linear
from registry.runtime.folder_checks import check_members
from registry.runtime.sequence_hosts import sequence_host

_CODE_BYTES = 2**20

Module = TypeVar("Module", bound=nn.Module)


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a checkpoint folder (CheckpointError: none, or one that needs its author's own code)."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder", "name a model's folder, such as one that reg compose wrote")
    from transformers import AutoTokenizer

    try:
        with quiet_transformers():
            return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except BaseException as error:  # transformers and tokenizers raise many kinds
        if not is_foreign(error):
            raise
        if (problem := _config_problem(folder)) is not None:  # which transformers reads first
            raise CheckpointError(
                f"{folder}/config.json is refused by transformers: {problem}", "mend config.json"
            ) from error
        raise CheckpointError(
            f"{folder} has no tokenizer that can be loaded: {first_line(error)}",
            "put the tokenizer's files into the folder",
        ) from error


def _config_problem(folder: Path) -> str | None:
    """Return what transformers says of a config.json that it refuses; None if it takes it, or code goes with it."""
    from transformers import AutoConfig

    try:
        if "auto_map" in read_json(folder / "config.json"):
            return None
        with quiet_transformers():
            AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except CheckpointError:
        return None
    except Exception as error:  # transformers raises many kinds
        return first_line(error)
    return None


def load_model(folder: Path, dtype: str, device: str | None) -> Any:
    """Return a causal language model in evaluation mode, with every key of its folder matched.

    (CheckpointError: keys are missing, unexpected or mismatched; InvalidInputError: the device cannot be used.)
    """
    from transformers import AutoModelForCausalLM

    if is_ours := has_our_code(folder):
        config = read_json(folder / "config.json")
        if sequence_host(config.get("model_type")) is not None:
            check_members(folder, config)
    try:
        with quiet_transformers():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch_dtype(dtype),
                local_files_only=True,
                trust_remote_code=is_ours,
                use_safetensors=True,
                output_loading_info=True,
            )
    except Exception as error:  # transformers raises many kinds
        raise _not_loaded(folder, error) from error
    model, info = loaded
    if wrong := [f"{kind.replace('_', ' ')} {few(sorted(map(str, keys)))}" for kind, keys in info.items() if keys]:
        raise CheckpointError(
            f"{folder}: its keys do not match its architecture: {'; '.join(wrong)}", "save the checkpoint again"
        )
    try:
        return with_fast_products(model.to(device_name(device)).eval())
    except (RuntimeError, AssertionError) as error:
        raise unusable(device, error) from error


def unusable(device: str | None, error: Exception) -> InvalidInputError:
    """Return the error of a device that this machine, or its torch, does not have."""
    return InvalidInputError(f"device {device!r} cannot be used: {first_line(error)}", "name another --device")


def check_device(device: str | None) -> None:
    """Raise InvalidInputError if a named device cannot be used."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise unusable(device, error) from error


def _not_loaded(folder: Path, error: Exception) -> CheckpointError:
    problem = f"{folder} cannot be loaded by transformers: {first_line(error)}"
    return CheckpointError(problem, "save or compose the folder again")


def unloaded_model(folder: Path) -> Any:
    """Return the float32 model that `load_model` returns on the CPU, with weights of any value.

    Its weights take address space alone, and no memory until they are written (CheckpointError: it cannot be loaded).
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    options: Any = {"trust_remote_code": has_our_code(folder)}
    try:
        with quiet_transformers(), without_weights():
            config = AutoConfig.from_pretrained(folder, local_files_only=True, **options)
            model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **options)
    except Exception as error:  # transformers raises many kinds
        raise _not_loaded(folder, error) from error
    room = {part: nn.Parameter(torch.empty(part.shape, dtype=part.dtype)) for part in model.parameters()}
    for module in model.modules():
        module._parameters.update({name: room[part] for name, part in module._parameters.items() if part is not None})
    model.tie_weights()  # which creating them without storage has undone
    return with_fast_products(model.eval())


def bare_model(folder: Path) -> Any:
    """Return the model that a folder's config.json describes, without weights (CheckpointError: it cannot be made)."""
    from transformers import AutoConfig, AutoModelForCausalLM

    options: Any = {"trust_remote_code": has_our_code(folder)}
    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(folder, local_files_only=True, **options)
            with torch.device("meta"):
                return AutoModelForCausalLM.from_config(config, **options)
    except Exception as error:  # transformers raises many kinds
        raise _not_loaded(folder, error) from error


def unfilled_model(folder: Path, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """Return how the keys of a folder match its architecture, as transformers reports it; no weight is read.

    `tensors` are those of the folder by name, on the meta device. The result has `missing_keys`, `unexpected_keys` and
    `mismatched_keys`; it is None without accelerate, which transformers needs (CheckpointError: it cannot be made).
    """
    from transformers.utils.import_utils import is_accelerate_available

    if not is_accelerate_available():
        return None
    model = bare_model(folder)
    with quiet_transformers():
        _, info = type(model).from_pretrained(
            None,
            config=model.config,
            state_dict=dict(tensors),
            device_map="meta",
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    return dict(info)


def has_our_code(folder: Path) -> bool:
    """Tell whether a folder's code is all modelling files of ours, and is used: `auto_map` may name other code."""
    try:
        config = read_json(folder / "config.json")
        code = {path.name: read_small(path, _CODE_BYTES) for path in folder.rglob("*.py")}
        named = {str(name).partition(".")[0] + ".py" for name in config["auto_map"].values()}
        return bool(code) and named <= code.keys() and code in _our_code(str(config.get("model_type")))
    except (OSError, ValueError, KeyError, AttributeError, CheckpointError):
        return False


def _our_code(model_type: str) -> list[Mapping[str, bytes]]:
    """Return the modelling files, by their names, of each kind of folder of a `model_type`."""
    if (host := sequence_host(model_type)) is not None:
        return host.code(model_type)
    if model_type.startswith(ROUTED):
        family = FAMILIES[model_type.removeprefix(ROUTED)]
        return [routed_host(family, module).files for module in CLASSES]
    return []


class FastLinear(nn.Linear):
    """A linear layer by the faster product."""

    def forward(self, x: Float[Tensor, "*T I"]) -> Float[Tensor, "*T O"]:
        """Return x Wᵀ + b."""
        return linear(x, self.weight, self.bias)


def with_fast_products(module: Module) -> Module:
    """Let the linear layers of a module use the faster product, and return the module.

    The layers of a mixture's experts are left out: the number of their rows changes with every call, and the library
    compiles a kernel for each.
    """
    for name, part in module.named_modules():
        if type(part) is nn.Linear and "experts" not in name.split("."):
            part.__class__ = FastLinear
    return module


def device_name(name: str | None) -> str:
    """Return the named device, else the GPU if there is one, else the CPU."""
    return name or ("cuda" if torch.cuda.is_available() else "cpu")


def device_kind(name: str | None) -> str:
    """Return the kind of device that `device_name` returns, such as `cuda` for `cuda:0`."""
    return device_name(name).partition(":")[0]


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep the progress bars and reports of transformers off the terminal."""
    from transformers.utils import logging

    shows_bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shows_bars:
            logging.enable_progress_bar()


def without_weights() -> RemovableHandle:
    """Create modules whose parameters have no storage while the context is open; their buffers have."""

    def on_meta(_module: nn.Module, _name: str, parameter: nn.Parameter) -> nn.Parameter:
        return nn.Parameter(parameter.detach().to("meta"), requires_grad=False)

    return register_module_parameter_registration_hook(on_meta)  # type: ignore[arg-type]
