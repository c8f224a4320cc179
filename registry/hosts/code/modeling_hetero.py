"""Bodies of several architectures between one embedding and one head. Written by expert-registry; Apache-2.0.

Members are whole decoders without embedding and head, of any sizes and families that share a tokenizer (MergeME, Zhou
et al. 2025, §3.2). With E_v the shared embedding of token v and H the shared head, member i reads P_i E_v, h_i is what
its last norm gives, and the logits are

    H Σ_i w_i R_i h_i = Σ_i w_i (H R_i h_i)

A member whose own tables are the shared ones has neither P_i nor R_i. The weights w are those of the sequence: of the
mean m of the shared embeddings of its first `routing_tokens` tokens, the router gives the scores W m, and w is the
softmax of the `routing_top_k` largest, divided by the temperature. Until there are so many tokens all members count
alike, so that the weights for x_t depend on x_<t alone; members without a weight do not run. 0 tokens stand for all
tokens of the first call, the prompt in generation, whose weights are then those of its own tokens too.

Token ids and an attention mask of (batch, tokens) are needed; what is masked has no part in the mean. Each member may
be on a device of its own.
"""

import torch
from torch import nn
from transformers import CONFIG_MAPPING, MODEL_MAPPING, DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import can_return_tuple

# The name of a cache in calls and outputs, which is `cache` since transformers 5.24.
CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"


class HeteroConfig(PretrainedConfig):
    """The sizes of the shared embedding, how members are weighed, and in `member_configs` the configuration of each.

    `input_projectors` and `output_projectors` say of each member whether it has P_i and R_i. Logits are multiplied by
    `logit_scale`, divided by `logits_scaling` and capped by `final_logit_softcapping`, where these are not None.
    """

    model_type = "ensemble_hetero"


def own_config(config, index):
    """Return the configuration of a member."""
    given = dict(config.member_configs[index])
    return CONFIG_MAPPING[given.pop("model_type")].from_dict(given)


def beside(tensor, weight):
    """Return a tensor on the device of a weight; as it is, where the weight is brought from elsewhere when needed."""
    return tensor if weight.device.type == "meta" else tensor.to(weight.device)


class SharedEmbedding(nn.Module):
    """The embedding of a member: rows of the shared one, projected unless its own are the same.

    Args:
        shared: the shared embedding, which is no module of this one.
        own: the embedding that stands in the member's code.
        width: the member's hidden size.
        projected: there is a projector.
    """

    def __init__(self, shared, own, width, projected):
        super().__init__()
        self._shared = (shared,)
        self.scale = width**0.5 if hasattr(own, "embed_scale") else None
        self.projector = nn.Linear(shared.embedding_dim, width, bias=False) if projected else None

    def forward(self, input_ids):
        (shared,) = self._shared
        rows = shared(beside(input_ids, shared.weight))
        if self.projector is not None:
            rows = self.projector(beside(rows, self.projector.weight))
        rows = rows.to(input_ids.device)
        return rows if self.scale is None else rows * torch.tensor(self.scale, dtype=rows.dtype, device=rows.device)


class HeteroCache(Cache):
    """A cache for each member, and `rows`: what the first tokens say of each sequence, a row for each."""

    def __init__(self, model):
        self.members = [DynamicCache(config=member.config) for member in model.members]
        super().__init__(layers=[layer for member in self.members for layer in member.layers])
        self.rows, self.length = {}, 0

    def get_seq_length(self, layer_idx=0):
        return self.length

    def reset(self):
        super().reset()
        self.rows, self.length = {}, 0

    def reorder_cache(self, beam_idx):
        super().reorder_cache(beam_idx)
        self.rows = {name: rows[beam_idx.to(rows.device)] for name, rows in self.rows.items()}

    def batch_select_indices(self, indices):
        super().batch_select_indices(indices)
        self.rows = {name: rows[indices] for name, rows in self.rows.items()}

    def batch_repeat_interleave(self, repeats):
        super().batch_repeat_interleave(repeats)
        self.rows = {name: rows.repeat_interleave(repeats, dim=0) for name, rows in self.rows.items()}

    def crop(self, tokens_to_remove):
        if tokens_to_remove:
            raise NotImplementedError("this cache cannot forget tokens: what they said of the members is summed")


class HeteroForCausalLM(PreTrainedModel, GenerationMixin):
    """The members' bodies, the tables that they share, and the router."""

    config_class = HeteroConfig
    base_model_prefix = ""
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True

    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.members, self.outputs = nn.ModuleList(), nn.ModuleList()
        for index, projected in enumerate(config.input_projectors):
            own = own_config(config, index)
            body_class = MODEL_MAPPING[type(own)]
            if config._attn_implementation == "eager" or getattr(body_class, "_supports_sdpa", True):
                own._attn_implementation = config._attn_implementation
            body = body_class(own)
            width = own.hidden_size
            body.set_input_embeddings(SharedEmbedding(self.embed_tokens, body.get_input_embeddings(), width, projected))
            self.members.append(body)
            out = config.output_projectors[index]
            self.outputs.append(nn.Linear(width, config.hidden_size, bias=False) if out else nn.Identity())
        self.router = nn.Linear(config.hidden_size, len(config.members), bias=False)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self._tied_weights_keys = {"lm_head.weight": "embed_tokens.weight"}  # where the configuration says so
        self._no_split_modules = sorted({name for body in self.members for name in body._no_split_modules or ()})
        self.post_init()

    def get_input_embeddings(self):
        return self.embed_tokens

    def get_output_embeddings(self):
        return self.lm_head

    def set_output_embeddings(self, head):
        self.lm_head = head

    @can_return_tuple
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        inputs_embeds=None,
        labels=None,
        use_cache=None,
        logits_to_keep=0,
        **kwargs,
    ):
        """Return the logits (B, S, V) of the members' weighted hidden states under the shared head."""
        if input_ids is None or inputs_embeds is not None:
            raise ValueError("these members take input_ids: the router reads the tokens")
        if attention_mask is not None and attention_mask.ndim != 2:
            raise ValueError("these members take an attention mask of (batch, tokens), and make their cache themselves")
        cache = self._cache(kwargs.pop(CACHE, past_key_values), use_cache is None or use_cache)
        columns = input_ids.shape[1]
        past = 0 if attention_mask is None else attention_mask.shape[1] - columns
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask[:, -columns:]
        places = torch.arange(columns, device=input_ids.device)
        places = places[-logits_to_keep:] if isinstance(logits_to_keep, int) else places[logits_to_keep]
        weights = self._weights(input_ids, real.bool(), {} if cache is None else cache.rows)
        kwargs.pop("cache_position", None)  # transformers 4 gives it, and each member knows its own

        def run(index, width):
            """Return a member's last hidden states for the first `width` columns."""
            body = self.members[index]
            first = next(body.parameters())
            return body(
                input_ids=beside(input_ids[:, :width], first),
                attention_mask=None if attention_mask is None else beside(attention_mask[:, : past + width], first),
                position_ids=None if position_ids is None else beside(position_ids[..., :width], first),
                use_cache=cache is not None,
                **{CACHE: None if cache is None else cache.members[index]},
                **{name: value for name, value in kwargs.items() if name != "num_items_in_batch"},
            ).last_hidden_state

        shape = len(input_ids), len(places), self.config.hidden_size
        mixed, dtype = torch.zeros(shape, dtype=torch.float32, device=input_ids.device), torch.float32
        for index in range(len(self.members)):
            used = weights[:, :, index].isfinite().any(dim=0)
            wanted = places[used[places]]
            width = max([0, *(wanted + 1).tolist(), *([columns] if cache is not None and used[-1] else [])])
            if not width:
                continue
            hidden = run(index, width)
            dtype = hidden.dtype
            own = self.outputs[index](hidden[:, wanted.to(hidden.device)]).float().to(mixed.device)
            mixed = mixed.index_add(1, used[places].nonzero()[:, 0], weights[:, wanted, index, None].exp() * own)
        logits = self._logits(mixed.to(dtype))
        if cache is not None:
            cache.length += columns
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=logits, **{CACHE: cache})

    def _logits(self, mixed):
        """Return what the shared head makes of hidden states, as the member does whose head it is."""
        config = self.config
        logits = self.lm_head(beside(mixed, self.lm_head.weight))
        if config.logit_scale is not None:
            logits = logits * config.logit_scale
        if config.logits_scaling is not None:
            logits = logits / config.logits_scaling
        if config.final_logit_softcapping is not None:
            logits = torch.tanh(logits / config.final_logit_softcapping) * config.final_logit_softcapping
        return logits

    def _cache(self, given, wanted):
        """Return the cache to go on with; one that `generate` made for a single model, still empty, is replaced."""
        if isinstance(given, HeteroCache):
            return given
        if given is not None and given.get_seq_length():
            raise ValueError("this cache is of another model: leave it out, these members make their own")
        return HeteroCache(self) if wanted else None

    def _weights(self, input_ids, real, state):
        """Return log weights (B, S, E) by the mean embedding of each sequence's first tokens.

        `state` holds, for each sequence, how many tokens there were, the sum of the embeddings of those that decide,
        and how many these are.
        """
        needed, rows = self.config.routing_tokens, len(input_ids)
        count = state.get("count", input_ids.new_zeros(rows))
        read = state.get("read", input_ids.new_zeros(rows))
        total = state.get("total")
        ordinal = count.unsqueeze(1) + real.cumsum(dim=1)
        deciding = real & (ordinal <= needed) if needed else real & ("count" not in state)
        if total is None:
            total = torch.zeros(rows, self.config.hidden_size, dtype=torch.float32, device=input_ids.device)
        if deciding.any():
            stop = int((deciding.any(dim=0).nonzero() + 1).max())
            embedded = self.embed_tokens(beside(input_ids[:, :stop], self.embed_tokens.weight))
            embedded = embedded.float().to(input_ids.device).masked_fill(~deciding[:, :stop, None], 0.0)
            total, read = total + embedded.sum(dim=1), read + deciding.sum(dim=1)
        state.update(count=ordinal[:, -1], read=read, total=total)
        mean = total / read.clamp(min=1).unsqueeze(1)
        weight = self.router.weight.float()
        scores = (mean.to(weight.device) @ weight.T).to(input_ids.device) / self.config.routing_temperature
        known = ordinal >= needed if needed else (read > 0).unsqueeze(1).expand_as(real)
        return self._weigh(scores.unsqueeze(1).expand(*real.shape, -1), known)

    def _weigh(self, scores, known):
        """Return log weights (B, S, E): of each place's largest scores the log softmax, equal ones if not `known`."""
        best = scores.topk(self.config.routing_top_k, dim=-1)
        kept = torch.full_like(scores, -torch.inf).scatter(-1, best.indices, best.values)
        return torch.where(known.unsqueeze(-1), kept, torch.zeros_like(scores)).log_softmax(dim=-1)
