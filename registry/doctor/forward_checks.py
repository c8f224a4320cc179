"""Checks of the loaded model: it loads, its routers use their experts, and it predicts text better than chance."""

import unicodedata
from collections.abc import Iterator
from math import exp, log
from statistics import fmean
from typing import Any

import torch

from registry.calibration import Calibration
from registry.composition.found import OUTPUTS
from registry.doctor.examination import CHEAP, Examination, is_cheap
from registry.doctor.finding import Finding, error, passed, skipped, warning
from registry.errors import CheckpointError, first_line
from registry.evaluation.benchmark import dense_model
from registry.evaluation.model_folders import decided_by_prompt
from registry.evaluation.stored import widest
from registry.io.display import few, printable
from registry.runtime.loading import quiet_transformers

_ALL = 0.95  # share of all tokens from which on a router has collapsed to one expert
_NONE = 0.01  # share of its own domain's tokens below which an expert is idle
_HARDLY = 0.5  # ratio to the perplexity of a uniform guess from which on built-in text is not understood at all
_WORSE = 1.02  # ratio to the averaged weights' perplexity from which on a mixture is remarked on

_FROM = {
    "given": "the given text",
    "kept": "the members' kept text",
    "sampled": "text that the members wrote",
    "built-in": "built-in text",
}

_BLURRED = ", which mixes domains more than real text does"
"""What to know of routing on text that experts were sampled for."""


def check_loads(exam: Examination) -> Iterator[Finding]:
    """Load the model with transformers, and the text to run it on."""
    assert exam.model is not None  # loaded, or an error that says why not
    texts = exam.texts
    yield passed(f"transformers loads it; it is run on {_FROM[texts.source]}: {few(sorted(texts.windows))}")


def check_routing(exam: Examination) -> Iterator[Finding]:
    """Look for an expert that gets all tokens, and for experts that get none of their own domain's."""
    if exam.model.experts < 2:
        yield skipped("it has no experts to choose from")
        return
    if len(exam.texts.windows) < 2:
        yield skipped("one expert may get all tokens of one domain: give --data of two domains or more")
        return
    routing, experts = exam.routing, exam.model.expert_names  # routing: domain → expert → share by layer
    layers = range(exam.model.layers)
    collapsed = {
        layer: expert
        for layer in layers
        for expert in experts
        if all(shares[expert][layer] > _ALL for shares in routing.values())
    }
    least = min(
        (shares[expert][layer] for layer, expert in collapsed.items() for shares in routing.values()), default=0
    )
    if len(collapsed) == len(layers) and len(set(collapsed.values())) == 1:
        expert = next(iter(collapsed.values()))
        where = "every layer" if len(layers) > 1 else "the routing"
        message = f"{where} sends at least {least:.0%} of every domain's tokens to expert {expert}: it has collapsed"
        yield (warning if exam.texts.source == "built-in" else error)(message, exam.again or _routers_of(exam))
    elif collapsed:
        layer, expert = next(iter(collapsed.items()))
        more = f" ({len(collapsed)} of {len(layers)} layers do so)" if len(collapsed) > 1 else ""
        yield warning(f"layer {layer}'s router sends nearly all tokens of every domain to expert {expert}{more}")
    idle = [expert for expert in experts if expert in routing and fmean(routing[expert][expert]) < _NONE]
    if idle and not collapsed:
        yield warning(f"{few(idle)}: gets less than 1 % of its own domain's tokens", _routers_of(exam))
    if not idle and not collapsed:
        own = {domain: fmean(found[domain]) for domain, found in routing.items() if domain in found}
        shares = ", ".join(f"{domain} {share:.0%}" for domain, share in own.items())
        on = _FROM[exam.texts.source] + (_BLURRED if exam.texts.source == "sampled" else "")
        comma = "," if _BLURRED in on else ""
        each = f"; on {on}{comma} each gets of its own domain's tokens: {shares}" if own else ""
        yield passed(f"every router uses its experts{each}")


def check_perplexity(exam: Examination) -> Iterator[Finding]:
    """Compare the perplexity with that of guesses that read no text before the token: by counts, and uniform."""
    if decided_by_prompt(exam.config):
        yield skipped("the whole prompt weighs its members, so it has no perplexity")
        return
    size, found = exam.uniform, exam.scored
    counted = {domain: _counted(text, size) for domain, text in exam.texts.windows.items()}
    built_in = exam.texts.source == "built-in"  # too little text to count, and perhaps far from what the model knows
    guess = dict.fromkeys(found, _HARDLY * size) if built_in else counted
    worse = [domain for domain, value in found.items() if value > guess[domain]]
    shown = ", ".join(f"{domain} {value:,.4g}" for domain, value in found.items())
    by_counts = "" if built_in else f"a guess by the counts of tokens has {_mean(list(counted.values())):,.4g}, "
    guessing = f"{by_counts}a uniform guess {'has ' * built_in}{size:,}"
    if len(worse) == len(found):
        yield error(
            f"it predicts {_FROM[exam.texts.source]} {'hardly better' if built_in else 'worse'} than guessing: "
            f"perplexity {shown}, and {guessing}{_cause(exam)}",
            exam.again or exam.look_closer,
        )
    elif worse and not built_in:
        yield warning(f"it predicts {few(worse)} worse than guessing: perplexity {shown}; {guessing}")
    else:
        yield passed(f"perplexity {shown} on {_FROM[exam.texts.source]}, where {guessing}")


def check_comparison(exam: Examination) -> Iterator[Finding]:
    """Compare the perplexity with that of the members, each on its own domain, and of their averaged weights."""
    texts = exam.texts
    if not exam.members:
        yield skipped("its members are not all registered here, so there is nothing to compare it with")
        return
    domains = [domain for domain in texts.windows if domain in exam.members]
    if texts.source == "built-in" or not domains:
        yield skipped("there is no text of its members: give --data DOMAIN=FILE, with their names")
        return
    stored = list(_stored(exam))
    yield from stored
    if not all(is_cheap(member) for member in exam.members.values()):
        example = " ".join(f"--data {domain}=FILE" for domain in domains[:2])
        yield skipped(
            f"members of more than {CHEAP:,} parameters are not loaded; to compare: reg evaluate {exam.quoted} "
            f"{example} --baselines"
        )
        return
    compared = _compared(exam, domains)
    # Scores of test text say more than a comparison on little text that members wrote, unless that finds a fault.
    yield from (one for one in compared if not stored or texts.source == "given" or one.severity != "ok")


def _compared(exam: Examination, domains: list[str]) -> Iterator[Finding]:
    texts, windows = exam.texts, {domain: exam.texts.windows[domain] for domain in domains}
    own: dict[str, float] = {}
    for domain in domains:
        with dense_model(domain, [exam.members[domain]], exam.settings) as model:
            own |= exam.perplexities_of(model, {domain: windows[domain]})
    ours, experts = _mean([exam.scored[domain] for domain in domains]), _mean(list(own.values()))
    said = f"perplexity {ours:.4g} over {few(domains)}, each domain's own expert {experts:.4g}"
    members = list(exam.members.values())
    if any(member.shapes != members[0].shapes for member in members):
        yield passed(f"{said}; members of several architectures have no averaged weights")
        return
    with dense_model("average", members, exam.settings) as model:
        average = _mean(list(exam.perplexities_of(model, windows).values()))
    data = " ".join(f"--data {domain}=FILE" for domain in domains)
    if ours > average * _WORSE:
        yield warning(
            f"it is worse than the averaged weights of its members: {said}, averaged weights {average:.4g}; "
            "a mixture should be better",
            f"see what routing and trunk each cost: reg evaluate {exam.quoted} {data} --baselines --oracle",
        )
    else:
        better = ours < average / _WORSE
        if texts.source == "given":
            word = f"{'better than' if better else 'as good as'} the averaged weights of its members"
        else:
            of = f"the averaged weights of its members on {_FROM[texts.source]}"
            word = f"not clearly worse than {of}, too little to rank them"
        yield passed(f"it is {word}: {said}, averaged weights {average:.4g}")


def _stored(exam: Examination) -> Iterator[Finding]:
    composed = exam.composed
    record = widest(exam.evaluations, [] if composed is None else [one.name for one in composed.manifest.members])
    if record is not None:
        scores = record.document.get("figures", {}).get("score", {})
        if isinstance(scores, dict) and scores:
            shown = ", ".join(f"{domain} {score:.1f}" for domain, score in scores.items())
            average = (record.document.get("plain_average") or {}).get("average")
            than = "" if average is None else f"; their averaged weights have a mean of {average:.1f}"
            yield passed(f"its stored evaluation has scores of {shown}, where 100 is each domain's own expert{than}")


def _counted(text: Calibration, size: int) -> float:
    """Return the perplexity of guessing each token by the counts of all others, to which 1 is added for every token."""
    counts = text.counts(size).double()
    seen = counts[counts > 0]
    total = float(seen.sum())
    return exp(-float((seen * (seen / (total - 1 + size)).log()).sum()) / total)


def _mean(perplexities: list[float]) -> float:
    """Return the geometric mean."""
    return exp(fmean(map(log, perplexities)))


def _routers_of(exam: Examination) -> str | None:
    if exam.composed is None:
        return None
    manifest = exam.composed.manifest
    if manifest.recipe.output is not OUTPUTS.default:  # of others there is no preview
        return f"score it on text of each domain: reg evaluate {exam.quoted} --data DOMAIN=FILE"
    names = ",".join(member.name for member in manifest.members)
    return f"see what other routers do: reg preview --experts {names}"


def _cause(exam: Examination) -> str:
    """Return whether a member alone is as bad, if one can be loaded and its own text is known."""
    windows = exam.texts.windows
    name = next((one for one in windows if one in exam.members and is_cheap(exam.members[one])), None)
    if name is None or exam.texts.source == "built-in":
        return ""
    with dense_model(name, [exam.members[name]], exam.settings) as model:
        alone = exam.perplexities_of(model, {name: windows[name]})[name]
    blame = "the member is broken itself" if alone > exam.uniform else "so the merge broke it, not the member"
    return f"; its member {name} alone has {alone:,.4g}, {blame}"


_DOMAINS, _PROMPT, _NEW = 8, 16, 24  # most domains, tokens of the prompt, and tokens that are written after it
_CHECKED = 64  # tokens on which logits are checked; any other that is not finite shows in the perplexity
_REPEATED = 16  # last tokens that are all the same in a loop of one token
_UNPRINTABLE = 0.5  # share of characters that cannot be shown from which on a text is no text


def check_generation(exam: Examination) -> Iterator[Finding]:
    """Continue a piece of each domain's text, and look for one token over and over, and for no text at all."""
    windows = dict(list(exam.texts.windows.items())[:_DOMAINS])
    size = min(_PROMPT, *(int(text.lengths[0]) for text in windows.values()))
    prompts = {}
    for domain, text in windows.items():
        # Text that members wrote begins alike, as experts of one base model do: its end is taken.
        begin = int(text.lengths[0]) - size if exam.texts.source == "sampled" else 0
        prompts[domain] = text.ids[0, begin : begin + size].long()
    rows = _written(exam.model.loaded, torch.stack(list(prompts.values())))
    written = dict(zip(prompts, rows, strict=True))
    texts = {domain: str(exam.tokenizer.decode(tokens)) for domain, tokens in written.items()}
    loops = [domain for domain, tokens in written.items() if len(set(tokens[-_REPEATED:])) == 1]
    broken = [domain for domain, text in texts.items() if _unprintable(text) > _UNPRINTABLE]
    if len(loops) == len(written):
        yield error(
            f"it writes one token over and over, whatever the text before it: {_shown(texts[loops[0]])}",
            exam.again or exam.look_closer,
        )
    elif loops:
        yield warning(f"it writes one token over and over after text of {few(loops)}: {_shown(texts[loops[0]])}")
    if len(broken) == len(written):
        yield error(
            f"it writes no printable text: {_shown(texts[broken[0]])}",
            "check that the tokenizer is the one that the model was trained with",
        )
    elif broken:
        yield warning(f"it writes hardly any printable text after text of {few(broken)}: {_shown(texts[broken[0]])}")
    if not loops and not broken:
        for domain in texts:
            begun = str(exam.tokenizer.decode(prompts[domain].tolist(), skip_special_tokens=True))
            again = ", and repeats itself: common in small models" if _repeats(written[domain]) else ""
            yield passed(f"after {_shown(begun)} ({domain}) it writes {_shown(texts[domain])}{again}")


def _written(model: Any, prompts: torch.Tensor) -> list[list[int]]:
    """Return the tokens that the model writes after each prompt; no token ends them early."""
    from transformers import GenerationConfig

    settings = GenerationConfig(do_sample=False, max_new_tokens=_NEW, eos_token_id=None, pad_token_id=0, bos_token_id=0)
    kept = model.generation_config
    model.generation_config = settings  # in place of the folder's own, which may penalise or sample
    tokens = prompts.to(model.device)
    try:
        with torch.no_grad(), quiet_transformers():
            rows = model.generate(tokens, attention_mask=torch.ones_like(tokens), generation_config=settings)
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as failure:
        raise CheckpointError(
            f"generation fails: {first_line(failure)}", "save or compose the folder again"
        ) from failure
    finally:
        model.generation_config = kept
    found: list[list[int]] = rows[:, prompts.shape[1] :].tolist()
    return found


def _repeats(tokens: list[int]) -> bool:
    """Tell whether the last tokens are a few that come again and again."""
    last = tokens[-_REPEATED:]
    return any(last[period:] == last[:-period] for period in range(1, _REPEATED // 2 + 1))


def _unprintable(text: str) -> float:
    """Return the share of characters that cannot be shown: control characters, and bytes that are no character."""
    odd = sum(char == "\ufffd" or (unicodedata.category(char)[0] == "C" and not char.isspace()) for char in text)
    return odd / len(text) if text else 0.0


def _shown(text: str) -> str:
    return f'"{printable(text[:80])}"'


def check_logits(exam: Examination) -> Iterator[Finding]:
    """Check that the scores of the next token are finite, on the beginning of every domain's text."""
    for domain, text in exam.texts.windows.items():
        ids = text.ids[:1, : min(_CHECKED, int(text.lengths[0]))].long().to(exam.model.loaded.device)
        with torch.no_grad(), quiet_transformers():
            logits = exam.model.loaded(input_ids=ids, use_cache=False).logits
        if not bool(torch.isfinite(logits.float()).all()):
            yield error(
                f"its logits are NaN or infinite on text of {domain}, though its weights are finite: numbers overflow "
                "on the way",
                exam.again or "look for weights of an absurd size, or merge again with smaller weights",
            )
            return
    if not exam.texts.windows:
        yield skipped("there is no text")
