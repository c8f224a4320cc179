"""The ensemble of members that differ in family and size. Written by expert-registry; Apache-2.0.

Each member is a model of its own class and configuration, in `config.member_configs`, and has its own cache. They share
a tokenizer; where some have more rows than others, which pad their tables, the rows that all have are mixed. Routing,
mixing, padding, batches and beams are those of the ensemble of one architecture, of whose classes these are.
"""

from torch import nn
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache

from .modeling_mixed import EnsembleCache, MixedEnsembleForCausalLM


class FamiliesConfig(PretrainedConfig):
    """Settings that all members share, how they are weighed, and in `member_configs` the configuration of each."""

    model_type = "ensemble_families"
    use_cache = True


class FamiliesCache(EnsembleCache):
    """A cache for each member, as its own configuration asks for it."""

    def __init__(self, members):
        self.members = [DynamicCache(config=member.config) for member in members]
        Cache.__init__(self, layers=[layer for member in self.members for layer in member.layers])
        self.rows, self.length = {}, 0


class FamiliesForCausalLM(MixedEnsembleForCausalLM):
    """The members, each of its own class."""

    config_class = FamiliesConfig

    def __init__(self, config):
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

    def get_expanded_tied_weights_keys(self, all_submodels=False):
        """Return tensor -> the tensor that it is: what members share with one another, then the heads tied in each."""
        shared = {
            f"members.{place}.{name}": f"members.{owner}.{name}"
            for name, owners in self.config.shared_tensors.items()
            for place, owner in enumerate(owners)
            if place != owner
        }
        own = {
            f"members.{place}.{target}": f"members.{place}.{source}"
            for place, member in enumerate(self.members)
            if member.config.tie_word_embeddings
            for target, source in (member._tied_weights_keys or {}).items()
        }
        return shared | own

    def _cut(self, _member, _args, output):
        """Leave away the rows of a member's logits that others do not have."""
        output.logits = output.logits[..., : self.config.vocab_size]
        return output

    def _cache(self, given, wanted):
        """Return the cache to go on with; one that `generate` made for a single model, still empty, is replaced."""
        if given is not None and not isinstance(given, EnsembleCache) and not given.get_seq_length():
            given = None
            wanted = True
        return FamiliesCache(self.members) if given is None and wanted else super()._cache(given, wanted)
