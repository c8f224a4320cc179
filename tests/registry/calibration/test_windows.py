"""Proves: windows come from all over a corpus, are a function of corpus and seed, and hold the corpus's own tokens."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from registry.calibration import Corpus, document_beginnings, evenly_spaced, random_places
from registry.calibration import windows as module
from registry.calibration.corpus import Document
from registry.calibration.windows import encode, start_token
from registry.errors import CalibrationError
from tests.models import sentences, write_jsonl


@pytest.fixture
def corpus(tmp_path: Path, tokenizer: Any) -> Corpus:
    return Corpus([write_jsonl(tmp_path / "data.jsonl", sentences("law", 400))], tokenizer)


def stream(corpus: Corpus, tokenizer: Any) -> list[int]:
    return [token for document in corpus for token in encode(document, tokenizer)]


def occurs(window: list[int], tokens: list[int]) -> int:
    """Return where a window stands in a stream, or -1."""
    return next((i for i in range(len(tokens) - len(window) + 1) if tokens[i : i + len(window)] == window), -1)


@pytest.mark.parametrize("whole_corpus_is_tokenised", [True, False])
def test_windows_are_from_all_over_the_corpus(
    corpus: Corpus, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, whole_corpus_is_tokenised: bool
) -> None:
    monkeypatch.setattr(module, "_CHARACTERS_PER_TOKEN", 1000 if whole_corpus_is_tokenised else 2)
    tokens = stream(corpus, tokenizer)
    taken = random_places(corpus, tokenizer, tokens=20 * 32, seq_len=32, seed=0)
    assert taken.ids.shape == (20, 32)
    assert taken.tokens == 640
    places = [occurs(window, tokens) for window in taken.ids.tolist()]
    assert min(places) >= 0, "every window is a piece of the corpus"
    strata = {place * 20 // len(tokens) for place in places}
    assert len(strata) >= 18  # one a stratum; tokens and characters are not quite proportional
    assert random_places(corpus, tokenizer, tokens=20 * 32, seq_len=32, seed=0).digest == taken.digest
    assert random_places(corpus, tokenizer, tokens=20 * 32, seq_len=32, seed=1).digest != taken.digest


def test_window_runs_on_into_the_next_document(tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHARACTERS_PER_TOKEN", 1)
    corpus = Corpus([write_jsonl(tmp_path / "data.jsonl", ["court party law act", "duty claim"] * 60)], tokenizer)
    taken = random_places(corpus, tokenizer, tokens=160, seq_len=32, seed=0)
    start = start_token(tokenizer)
    full = [window for window, length in zip(taken.ids.tolist(), taken.lengths.tolist(), strict=True) if length == 32]
    assert full
    assert all(start in window for window in full)
    tokens = stream(corpus, tokenizer)
    assert all(occurs(window, tokens) >= 0 for window in full)


def test_too_little_text_is_taken_whole_once(tmp_path: Path, tokenizer: Any) -> None:
    corpus = Corpus([write_jsonl(tmp_path / "data.jsonl", ["court party law", "act"])], tokenizer)
    tokens = stream(corpus, tokenizer)
    taken = random_places(corpus, tokenizer, tokens=10_000, seq_len=4, seed=0)
    assert taken.ids[taken.keep].tolist() == tokens
    assert taken.tokens == len(tokens)
    assert taken.lengths[:-1].tolist() == [4] * (len(taken.lengths) - 1)


def test_beginnings_are_the_first_tokens_of_documents_one_of_each_stratum(tmp_path: Path, tokenizer: Any) -> None:
    words = ("court", "party", "law", "act", "claim")
    texts = [" ".join(words[number // 5**place % 5] for place in range(9)) for number in range(100)]
    texts[::3] = ["law"] * len(texts[::3])
    corpus = Corpus([write_jsonl(tmp_path / "data.jsonl", texts)], tokenizer)
    taken = document_beginnings(corpus, tokenizer, tokens=20 * 6, seq_len=6, seed=0)
    first = [encode(document, tokenizer)[:6] for document in corpus]
    windows = [window[:length] for window, length in zip(taken.ids.tolist(), taken.lengths.tolist(), strict=True)]
    assert len(windows) == 20
    assert all(window in first[5 * stratum : 5 * stratum + 5] for stratum, window in enumerate(windows))
    assert {len(window) for window in windows} == {min(6, len(window)) for window in first}
    assert len({len(window) for window in windows}) > 1, "short documents are short windows"
    again = document_beginnings(corpus, tokenizer, tokens=20 * 6, seq_len=6, seed=0)
    assert again.digest == taken.digest
    assert document_beginnings(corpus, tokenizer, tokens=20 * 6, seq_len=6, seed=1).digest != taken.digest


def test_beginnings_of_too_few_documents_are_those_of_all(tmp_path: Path, tokenizer: Any) -> None:
    corpus = Corpus([write_jsonl(tmp_path / "data.jsonl", ["court party law act duty claim", " ", "act"])], tokenizer)
    taken = document_beginnings(corpus, tokenizer, tokens=10_000, seq_len=4, seed=0)
    expected = [encode(Document(text), tokenizer)[:4] for text in ("court party law act duty claim", "act")]
    assert taken.ids[taken.keep].tolist() == [token for window in expected for token in window]
    assert taken.lengths.tolist() == [len(window) for window in expected]
    blank = Corpus([write_jsonl(tmp_path / "blank.jsonl", [" "])], tokenizer)
    with pytest.raises(CalibrationError, match="hold no text"):
        document_beginnings(blank, tokenizer, tokens=10, seq_len=4, seed=0)


def test_piece_begins_at_a_word_and_text_without_white_space_is_no_trap(tokenizer: Any) -> None:
    document = Document("ab" * 5000)
    piece = module._piece(document, 4000, 50, tokenizer)
    assert len(piece) == 50
    last = module._piece(document, 9_990, 50, tokenizer)  # the last word: the window begins with the next document
    assert last == module._piece(document, 0, 0, tokenizer) == []
    words = Document("court party shall hereby section act claim")
    assert tokenizer.decode(module._piece(words, 2, 3, tokenizer)).startswith(" party")


def test_start_token_leads_documents_but_not_chats(tokenizer: Any) -> None:
    assert encode(Document("law"), tokenizer)[0] == 0
    assert encode(Document("law", ()), tokenizer) == encode(Document("law"), tokenizer)[1:]
    assert encode(Document(" law"), tokenizer, begin=1) == tokenizer("law")["input_ids"]
    none = type(tokenizer)(tokenizer_object=tokenizer._tokenizer)
    assert start_token(none) is None
    end = type(tokenizer)(tokenizer_object=tokenizer._tokenizer, eos_token="<eos>")
    assert start_token(end) == 0


@pytest.mark.parametrize("taken_by", ["places", "streams", "everything", "evaluation"])
def test_windows_begin_as_the_tokenizer_begins_a_text(
    corpus: Corpus, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, taken_by: str
) -> None:
    """All of a text is still read once, and no window is longer."""
    led = type(tokenizer)(tokenizer_object=deepcopy(tokenizer._tokenizer), bos_token="<eos>")
    led._tokenizer.post_processor = TemplateProcessing(single="<eos> $A", special_tokens=[("<eos>", 0)])
    monkeypatch.setattr(module, "_CHARACTERS_PER_TOKEN", 2 if taken_by == "places" else 1000)
    plain = stream(corpus, tokenizer)
    if taken_by == "evaluation":
        taken = evenly_spaced(corpus, led, windows=10, seq_len=32)
    else:
        taken = random_places(corpus, led, tokens=len(plain) if taken_by == "everything" else 640, seq_len=32, seed=0)
    assert taken.ids.shape[1] == 32
    assert set(taken.ids[:, 0].tolist()) == {start_token(led)} == {0}
    if taken_by == "everything":
        rest = [ids[1:length] for ids, length in zip(taken.ids.tolist(), taken.lengths.tolist(), strict=True)]
        without = [token for token in plain if token]
        assert [token for window in rest for token in window if token] == without
    elif taken_by != "evaluation":
        assert all(occurs(window[1:], plain) >= 0 for window in taken.ids.tolist())


def test_evenly_spaced_windows_cover_the_shuffled_documents(corpus: Corpus, tokenizer: Any, tmp_path: Path) -> None:
    """A short text is one padded window."""
    taken = evenly_spaced(corpus, tokenizer, windows=10, seq_len=32)
    assert taken.ids.shape == (10, 32)
    assert (taken.lengths == 32).all()
    assert torch.equal(evenly_spaced(corpus, tokenizer, windows=10, seq_len=32).ids, taken.ids)
    every = evenly_spaced(corpus, tokenizer, windows=10_000, seq_len=32)
    flat = every.ids.flatten()
    assert every.tokens > len(stream(corpus, tokenizer)) - 64
    assert torch.equal(flat[:32], taken.ids[0])
    short = Corpus([write_jsonl(tmp_path / "short.jsonl", ["court law"])], tokenizer)
    taken = evenly_spaced(short, tokenizer, windows=5, seq_len=64)
    assert taken.ids.shape == (1, 64)
    assert taken.tokens == len(stream(short, tokenizer))
