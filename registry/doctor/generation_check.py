"""Check of what a model writes: a few tokens in every domain, the most probable one each time."""

import unicodedata
from collections.abc import Iterator
from typing import Any

import torch

from registry.doctor.examination import Examination
from registry.doctor.finding import Finding, error, passed, skipped, warning
from registry.errors import CheckpointError, first_line
from registry.io.display import few, printable
from registry.runtime.loading import quiet_transformers

_DOMAINS, _PROMPT, _NEW = 8, 16, 24
"""Most domains, tokens of the prompt, and tokens that are written after it."""

_CHECKED = 64
"""Tokens on which logits are checked; any other that is not finite shows in the perplexity."""

_REPEATED = 16
"""Last tokens that are all the same in a loop of one token."""

_UNPRINTABLE = 0.5
"""Share of characters that cannot be shown from which on a text is no text."""


def check_generation(exam: Examination) -> Iterator[Finding]:
    """Continue a piece of each domain's text, and look for one token over and over, and for no text at all.

    The piece is the beginning of a window; of text that members wrote it is the end, because experts of one base model
    begin alike.
    """
    windows = dict(list(exam.texts.windows.items())[:_DOMAINS])
    size = min(_PROMPT, *(int(text.lengths[0]) for text in windows.values()))
    prompts = {}
    for domain, text in windows.items():
        begin = int(text.lengths[0]) - size if exam.texts.source == "sampled" else 0
        prompts[domain] = text.ids[0, begin : begin + size].long()
    rows = _written(exam.model.loaded, torch.stack(list(prompts.values())))
    written = dict(zip(prompts, rows, strict=True))
    texts = {domain: str(exam.folder.tokenizer.decode(tokens)) for domain, tokens in written.items()}
    loops = [domain for domain, tokens in written.items() if len(set(tokens[-_REPEATED:])) == 1]
    broken = [domain for domain, text in texts.items() if _unprintable(text) > _UNPRINTABLE]
    if len(loops) == len(written):
        yield error(
            f"it writes one token over and over, whatever the text before it: {_shown(texts[loops[0]])}",
            exam.folder.again or exam.look_closer,
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
            begun = str(exam.folder.tokenizer.decode(prompts[domain].tolist(), skip_special_tokens=True))
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
                exam.folder.again or "look for weights of an absurd size, or merge again with smaller weights",
            )
            return
    if not exam.texts.windows:
        yield skipped("there is no text")
