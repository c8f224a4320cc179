"""What commands import, imported before processes fork, so that it costs them no time."""

import alembic.command
import numcodecs.zstd
import torch
import transformers.models.llama.modeling_llama
import transformers.models.mixtral.modeling_mixtral
import zarr
from transformers import AutoModelForCausalLM, AutoTokenizer

import registry.composition.compose
import registry.composition.reproduce
import registry.evaluation.service
import registry.opt_out.verify_receipt
import registry.opt_out.withdraw
import registry.statistics.collect
import registry.training

PRELOADED = (alembic, numcodecs, registry, transformers, zarr, AutoModelForCausalLM, AutoTokenizer)


def before_forks() -> None:
    """Use one thread: no pool of them may exist when a process forks."""
    torch.set_num_threads(1)
