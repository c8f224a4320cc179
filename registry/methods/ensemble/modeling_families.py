"""The ensemble of members that differ in family and size. Written by expert-registry; Apache-2.0.

Each member is a model of its own class and configuration, in `config.member_configs`, and has its own cache. They share
a tokenizer; where some have more rows than others, which pad their tables, the rows that all have are mixed. Routing,
mixing, padding, batches and beams are those of the ensemble of one architecture, of whose classes these are.
"""

from torch import nn
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, PretrainedConfig, PreTrainedModel

from .modeling_mixed import MixedEnsembleForCausalLM


class FamiliesConfig(PretrainedConfig):
    """Settings that all members share, how they are weighed, and in `member_configs` the configuration of each."""

    model_type = "ensemble_families"
    use_cache = True


class FamiliesForCausalLM(MixedEnsembleForCausalLM):
    """The members, each of its own class."""

    config_class = FamiliesConfig

    def __init__(self, config):
        """Make the members, without their weights."""
        PreTrainedModel.__init__(self, config)
        self.members, self.base = nn.ModuleList(), None
        for given in config.member_configs:
            own = CONFIG_MAPPING[given["model_type"]].from_dict(given)
            dense = MODEL_FOR_CAUSAL_LM_MAPPING[type(own)]
            if config._attn_implementation == "eager" or getattr(dense, "_supports_sdpa", True):
                own._attn_implementation = config._attn_implementation
            member = dense(own)
            if own.vocab_size > config.vocab_size:
                member.register_forward_hook(self._cut)
            self.members.append(member)
        self._keys_to_ignore_on_save = set(self.get_expanded_tied_weights_keys())
        self._no_split_modules = sorted({name for member in self.members for name in member._no_split_modules or ()})
        self.post_init()

    def _cut(self, _member, _args, output):
        """Leave away the logits of rows that not all members have: (B, S, rows) becomes (B, S, V)."""
        output.logits = output.logits[..., : self.config.vocab_size]
        return output
