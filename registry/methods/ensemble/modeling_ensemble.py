"""Whole dense language models whose next-token distributions are mixed. Written by expert-registry; Apache-2.0.

Each member keeps its own attention and everything else ("separate attention", MergeME, Zhou et al. 2025, §3.1.3);
p(x_t | x_<t) = sum_j w_j p_j(x_t | x_<t), and the logits returned are its logarithm. `config.routing` says where the
weights w come from; those of x_t depend on x_<t alone, whatever is asked for in one call:

- `posterior`: w_j is p(D=j | x_<t), by Bayes' rule from each member's likelihood of x_<t (BTM, Li et al. 2022, §2).
- `perplexity`: softmax of the negative perplexity of each member on x_<t (after MergeME, §3.1.3: 1 / PPL there).
- `task-vector`: softmax of the cosine between the base model's negative gradient on the first `routing_tokens` tokens
  and each member's task vector (MergeME, App. C; how many tokens count, and the uniform mixture before, are ours).

Of the weights the `routing_top_k` largest are kept and renormalised; without evidence every member has its prior.
`posterior` and `perplexity` run all members on every token, `task-vector` only those chosen once it has chosen. Token
ids and an attention mask of (batch, tokens) are needed; what is masked is no evidence.
"""

import torch
from torch import nn
from transformers import LlamaForCausalLM as DenseForCausalLM

from registry.hosts.code.modeling_members import MembersCache, MembersModel

# The logarithm of nothing. It is no -inf, which would have no gradient.
LEAST = torch.finfo(torch.float32).min


class EnsembleConfig(DenseForCausalLM.config_class):
    """The dense configuration with the members' names, how they are weighed and which tensors they share.

    `shared_tensors` gives, for a tensor's name, the number of the member whose tensor each one uses; the base model,
    where there is one, comes last. `routing_prior` is a weight for each member, or None for equal ones.
    """

    model_type = "ensemble_" + DenseForCausalLM.config_class.model_type


class EnsembleCache(MembersCache):
    """The members' caches, and what the tokens so far say of each member."""

    cannot_forget = "the cache of an ensemble cannot forget tokens: what they said of the members is summed"


class EnsembleForCausalLM(MembersModel, *DenseForCausalLM.__bases__):
    """The members, and the base model where the routing needs it."""

    config_class = EnsembleConfig
    cache_class = EnsembleCache
    base_model_prefix = ""
    needs_ids = "an ensemble takes input_ids: each member embeds them by itself"
    needs_mask = "an ensemble takes an attention mask of (batch, tokens), and makes its cache itself"
    foreign_cache = "this cache is of another model: leave it out, an ensemble makes its own"

    def __init__(self, config):
        """Make the members, without their weights."""
        super().__init__(config)
        self.members = nn.ModuleList([DenseForCausalLM(config) for _ in config.members])
        self.base = DenseForCausalLM(config) if config.routing == "task-vector" else None
        self._keys_to_ignore_on_save = set(self.get_expanded_tied_weights_keys())
        self.post_init()

    def get_expanded_tied_weights_keys(self, all_submodels=False):
        """Return which tensors are another one, by name: those that members share, and in each member its tied head.

        transformers asks for it: a file holds such a tensor once.
        """
        models = {f"members.{index}": member for index, member in enumerate(self.members)}
        if self.base is not None:
            models["base"] = self.base
        names = list(models)
        shared = {
            f"{model}.{tensor}": f"{names[owner]}.{tensor}"
            for tensor, owners in self.config.shared_tensors.items()
            for model, owner in zip(names, owners, strict=True)
            if model != names[owner]
        }
        tied = {
            f"{name}.{target}": f"{name}.{source}"
            for name, model in models.items()
            if model.config.tie_word_embeddings
            for target, source in (model._tied_weights_keys or {}).items()
        }
        return shared | tied

    def _answer(self, call):
        """Return the logarithm of the mixture as the logits, (B, K, V) float32."""
        weights, ready, heads = self._weights(call)
        shape = len(call.ids), len(call.kept), self.config.vocab_size
        return {"logits": self._mix(shape, call.ids.device, self._weighted(call, weights, ready, heads))}

    def _mix(self, shape, device, outputs):
        """Return log sum_j w_j p_j, of the given shape (B, K, V), float32; members are added as they come.

        Args:
            shape: (B, K, V).
            device: where the result is.
            outputs: of each member what `_weighted` yields.
        """
        mixed = torch.full(shape, LEAST, device=device)
        for _, chosen, logits, weight in outputs:
            own = logits.float().log_softmax(dim=-1).to(device) + weight  # log w_j p_j, (B, n, V)
            mixed = mixed.index_copy(1, chosen, torch.logaddexp(mixed[:, chosen], own))
        return mixed

    def _weights(self, call):
        """Return the log weights (B, S, E), and what the members computed to find them out.

        That is how many of the new tokens all members have read, R, and each one's logits at the kept ones of these,
        (B, kept ones, V): nothing is computed twice.
        """
        rows = {} if call.cache is None else call.cache.rows
        return self._by_evidence(call, rows) if self.base is None else (self._by_task_vector(call, rows), 0, ())

    def _by_evidence(self, call, rows):
        """Return what `_weights` does, by the members' likelihood of the text up to each token.

        `rows` holds, for each sequence, each member's log likelihood of the text so far (`total`, (B, E)), of how many
        tokens it is (`count`, (B,)), whether there was a token (`seen`, (B,)), and each member's distribution of the
        token after it (`ends`, (B, E, V)): the first token of the next call is scored by that.
        """
        real, new = call.real, call.ids.shape[1]
        seen = rows.get("seen", torch.zeros_like(real[:, 0]))
        latest, before = _latest(real)
        scored = real & ((before >= 0) | seen.unsqueeze(1))  # not the very first token, which nobody predicted, (B, S)
        gains, ends, heads = [], [], []
        for index in range(len(self.members)):
            logits = self._run(index, call, 0, new).to(call.ids.device)
            gain, end = self._read(index, logits, call.ids, latest, before, rows)
            gains.append(gain.masked_fill(~scored, 0.0).to(_exact(call.ids)))
            ends.append(end)
            heads.append(logits[:, call.kept])
        total, count = torch.stack(gains, dim=-1).cumsum(dim=1), scored.cumsum(dim=1)  # (B, S, E), (B, S)
        if "total" in rows:
            total, count = total + rows["total"].unsqueeze(1), count + rows["count"].unsqueeze(1)
        rows.update(seen=seen | real.any(dim=1), ends=torch.stack(ends, dim=1), total=total[:, -1], count=count[:, -1])
        if self.config.routing == "posterior":
            scores = total / self.config.routing_temperature + self._log_prior(total)
        else:
            perplexity = (-total / count.clamp(min=1).unsqueeze(-1)).exp()
            scores = -perplexity / self.config.routing_temperature
        return self._weigh(scores, count > 0), new, heads

    def _read(self, index, logits, ids, latest, before, rows):
        """Return what a member thinks of each token, and of the token after the last one.

        Args:
            index: number of the member.
            logits: its logits at the tokens, (B, S, V).
            ids: the tokens, (B, S).
            latest, before: of `_latest`, (B, S).
            rows: `ends` are the distributions after the text before, (B, E, V), if there was any.

        Returns:
            log p(x_t | x_<t), (B, S) float32, without meaning where nothing came before; and log p(x | all of the
            text), (B, V) float32.
        """
        row = torch.arange(len(ids), device=ids.device).unsqueeze(1)
        gain = logits[row, before, ids].float() - logits.float().logsumexp(dim=-1)[row, before]
        end = logits[row, latest[:, -1:]].squeeze(1).float().log_softmax(dim=-1)
        if "ends" in rows:
            earlier = rows["ends"][:, index]  # (B, V)
            gain = torch.where(before >= 0, gain, earlier.gather(1, ids))
            end = torch.where(latest[:, -1:] >= 0, end, earlier)
        return gain, end

    def _by_task_vector(self, call, rows):
        """Return log weights (B, S, E) by each sequence's first tokens.

        `rows` holds, for each sequence, its first tokens (`first`, (B, routing_tokens)), how many tokens there were
        (`count`, (B,)), and once these are enough the cosines (`cosines`, (B, E)).
        """
        needed, batch, ids = self.config.routing_tokens, len(call.ids), call.ids
        first = rows.get("first", ids.new_zeros(batch, needed))
        count = rows.get("count", ids.new_zeros(batch))
        cosines = rows.get("cosines", torch.zeros(batch, len(self.members), device=ids.device))
        ordinal, deciding = self._first_tokens(call, rows)
        row, column = deciding.nonzero(as_tuple=True)
        first = first.index_put((row, ordinal[row, column] - 1), ids[row, column])
        for new in ((count < needed) & (ordinal[:, -1] >= needed)).nonzero()[:, 0].tolist():
            cosines = cosines.index_put((cosines.new_tensor(new).long(),), self._cosines(first[new]).to(cosines))
        rows.update(first=first, count=ordinal[:, -1], cosines=cosines)
        scores = (cosines / self.config.routing_temperature).unsqueeze(1).expand(*ids.shape, -1)
        return self._weigh(scores, ordinal >= needed)

    def _cosines(self, tokens):
        """Return the cosine between the base model's negative gradient on `tokens` and each member's task vector, (E,).

        A task vector is a member's weights less those of the base model, so the cosine is large where the step that
        would teach the base model this text is one that the member has made. Each gradient is used and dropped as soon
        as it is there, so that no second copy of the weights is held.

        Args:
            tokens: (routing_tokens,) int64.
        """
        with torch.inference_mode(False), torch.enable_grad():
            tokens = tokens.clone().unsqueeze(0)
            weights = {name: weight.detach().requires_grad_() for name, weight in self.base.named_parameters()}
            others = [dict(member.named_parameters()) for member in self.members]
            dots, norms = torch.zeros(2, len(others), dtype=torch.float32, device=tokens.device)  # (E,) each
            length = torch.zeros((), device=tokens.device)

            def use(name, weight):
                """Add a weight's part of the products and squared lengths; it and its gradient have the same shape."""
                with torch.no_grad():
                    down = -weight.grad.float()
                    length.add_(down.square().sum().to(length.device))
                    for index, other in enumerate(others):
                        step = other[name].float() - weight.float()
                        dots[index] += (down * step).sum().to(dots.device)
                        norms[index] += step.square().sum().to(norms.device)
                weight.grad = None

            for name, weight in weights.items():
                weight.register_post_accumulate_grad_hook(lambda weight, name=name: use(name, weight))
            output = torch.func.functional_call(self.base, weights, (), {"input_ids": tokens, "use_cache": False})
            nn.functional.cross_entropy(output.logits[0, :-1].float(), tokens[0, 1:]).backward()
        return dots / (norms * length).sqrt().clamp(min=torch.finfo(torch.float32).tiny)


def _latest(real):
    """Return where the text of a sequence is read up to each token, and where it is before it, both (B, S) int64.

    The first is the number of the latest token that is no padding, this one or one before it, the second that of the
    latest one before it: there the token is predicted. -1 stands for none.

    Args:
        real: which tokens are no padding, (B, S) bool.
    """
    latest = torch.where(real, torch.arange(real.shape[1], device=real.device), -1).cummax(dim=1).values
    return latest, torch.cat([torch.full_like(latest[:, :1], -1), latest[:, :-1]], dim=1)


def _exact(ids):
    """Return the dtype for sums over a text: float64, which Apple's GPUs do not have."""
    return torch.float32 if ids.device.type == "mps" else torch.float64
