"""Bodies of several architectures between one embedding and one head. Written by expert-registry; Apache-2.0.

Members are whole decoders without embedding and head, of any sizes and families that share a tokenizer (after MergeME,
Zhou et al. 2025, §3.2, where tokenizers may differ and everything is trained). With E_v the shared embedding of token v
and H the shared head, member i reads P_i E_v, h_i is what its last norm gives, and the logits are

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
from transformers import CONFIG_MAPPING, MODEL_MAPPING, GenerationMixin, PretrainedConfig, PreTrainedModel

from registry.hosts.code.modeling_members import MembersCache, MembersModel, on_device_of


class HeteroConfig(PretrainedConfig):
    """The sizes of the shared embedding, how members are weighed, and in `member_configs` the configuration of each.

    `input_projectors` and `output_projectors` say of each member whether it has P_i and R_i. Logits are multiplied by
    `logit_scale`, divided by `logits_scaling` and capped by `final_logit_softcapping`, where these are not None.
    """

    model_type = "ensemble_hetero"
    use_cache = True


def own_config(config, index):
    """Return the configuration of a member, of the class of its family."""
    given = dict(config.member_configs[index])
    return CONFIG_MAPPING[given.pop("model_type")].from_dict(given)


class SharedEmbedding(nn.Module):
    """The embedding of a member: rows of the shared one, projected unless its own are the same.

    It stands where the member's code looks for its embedding, so that the member itself needs no change.

    Args:
        shared: the shared embedding, (V, H), which is no module of this one: else its weight would be stored twice.
        own: the embedding that stands in the member's code, which may scale its rows.
        width: the member's hidden size, H_i.
        projected: there is a projector P_i, (H_i, H).
    """

    def __init__(self, shared, own, width, projected):
        """Make the projector, without its weight."""
        super().__init__()
        self._shared = (shared,)
        self.scale = width**0.5 if hasattr(own, "embed_scale") else None
        self.projector = nn.Linear(shared.embedding_dim, width, bias=False) if projected else None

    def forward(self, input_ids):
        """Return P_i E_v of each token v, (B, S, H_i), on the device of the ids, (B, S)."""
        (shared,) = self._shared
        rows = shared(on_device_of(shared.weight, input_ids))
        if self.projector is not None:
            rows = self.projector(on_device_of(self.projector.weight, rows))
        rows = rows.to(input_ids.device)
        return rows if self.scale is None else rows * torch.tensor(self.scale, dtype=rows.dtype, device=rows.device)


class HeteroCache(MembersCache):
    """The members' caches, and what the first tokens say of each sequence."""

    cannot_forget = "this cache cannot forget tokens: what they said of the members is summed"


class HeteroForCausalLM(MembersModel, PreTrainedModel, GenerationMixin):
    """The members' bodies, the tables that they share, and the router."""

    config_class = HeteroConfig
    cache_class = HeteroCache
    wanted_output = "last_hidden_state"
    base_model_prefix = ""
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    needs_ids = "these members take input_ids: the router reads the tokens"
    needs_mask = "these members take an attention mask of (batch, tokens), and make their cache themselves"
    foreign_cache = "this cache is of another model: leave it out, these members make their own"

    def __init__(self, config):
        """Make the shared tables, the members between them and the router, without their weights."""
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
        """Return the shared embedding, whose weight is (V, H)."""
        return self.embed_tokens

    def get_output_embeddings(self):
        """Return the shared head, whose weight is (V, H)."""
        return self.lm_head

    def set_output_embeddings(self, head):
        """Take another shared head, whose weight is (V, H)."""
        self.lm_head = head

    def _answer(self, call):
        """Return the logits of the members' weighed hidden states under the shared head, (B, K, V).

        The hidden states are added up in float32; the head multiplies them in the dtype of the members.
        """
        weights = self._weights(call)
        shape = len(call.ids), len(call.kept), self.config.hidden_size
        mixed, dtype = torch.zeros(shape, dtype=torch.float32, device=call.ids.device), torch.float32
        for index, chosen, hidden, weight in self._weighted(call, weights):
            dtype = hidden.dtype
            own = self.outputs[index](hidden).float().to(mixed.device)  # R_i h_i, (B, n, H)
            mixed = mixed.index_add(1, chosen, weight.exp() * own)
        return {"logits": self._head(mixed.to(dtype))}

    def _head(self, mixed):
        """Return the shared head's logits (B, K, V) of hidden states (B, K, H), as the member does whose head it is."""
        config = self.config
        logits = self.lm_head(on_device_of(self.lm_head.weight, mixed))
        if config.logit_scale is not None:
            logits = logits * config.logit_scale
        if config.logits_scaling is not None:
            logits = logits / config.logits_scaling
        if config.final_logit_softcapping is not None:
            logits = torch.tanh(logits / config.final_logit_softcapping) * config.final_logit_softcapping
        return logits

    def _weights(self, call):
        """Return log weights (B, S, E) by the mean embedding of each sequence's first tokens.

        The cache's rows hold, for each sequence, how many tokens there were (`count`, (B,)), the sum of the embeddings
        of those that decide (`total`, (B, H) float32), and how many these are (`read`, (B,)).
        """
        rows = {} if call.cache is None else call.cache.rows
        ids, needed, batch = call.ids, self.config.routing_tokens, len(call.ids)
        read = rows.get("read", ids.new_zeros(batch))
        total = rows.get("total")
        if total is None:
            total = torch.zeros(batch, self.config.hidden_size, dtype=torch.float32, device=ids.device)
        ordinal, deciding = self._first_tokens(call, rows)
        if deciding.any():
            stop = int((deciding.any(dim=0).nonzero() + 1).max())
            embedded = self.embed_tokens(on_device_of(self.embed_tokens.weight, ids[:, :stop]))
            embedded = embedded.float().to(ids.device).masked_fill(~deciding[:, :stop, None], 0.0)
            total, read = total + embedded.sum(dim=1), read + deciding.sum(dim=1)
        rows.update(count=ordinal[:, -1], read=read, total=total)
        mean = total / read.clamp(min=1).unsqueeze(1)  # m, (B, H)
        weight = self.router.weight.float()  # W, (E, H)
        scores = (mean.to(weight.device) @ weight.T).to(ids.device) / self.config.routing_temperature
        known = ordinal >= needed if needed else (read > 0).unsqueeze(1).expand_as(ids)
        return self._weigh(scores.unsqueeze(1).expand(*ids.shape, -1), known)
