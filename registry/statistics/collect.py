"""Statistics of an expert, collected in one forward pass over its calibration tokens or carried by its folder.

`--sites counts` only counts the tokens: a text is then read by the tokenizer, and no model is loaded.
"""

import math
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from registry.calibration import Calibration, Corpus, document_beginnings, random_places, sample_from_expert
from registry.calibration.calibration import LEAST_PAIRS, Turns, sample_conversations
from registry.calibration.corpus import find_calibration
from registry.calibration.windows import start_token
from registry.checkpoint import Checkpoint, HashedCheckpoint, hash_checkpoint
from registry.checkpoint.annotations import is_signed
from registry.checkpoint.open import open_checkpoint
from registry.distributed import Cluster, Step, Task
from registry.errors import CalibrationError, CheckpointError, StorageError
from registry.families.sites import ALL_TEXT, CONTENTS, COUNTS, MLP_INPUT, SITES
from registry.io.display import some
from registry.io.process import return_freed_memory
from registry.io.untrusted import own_file
from registry.io.work_dirs import temporary_folder
from registry.progress import Progress, remark, silent
from registry.runtime.loading import load_tokenizer
from registry.runtime.upcast import load_for_pass
from registry.statistics import file as statistics_file
from registry.statistics.file import Collected
from registry.statistics.forward_pass import computed_by, take_statistics, window_size
from registry.statistics.layer_pass import check_sampling, take_statistics_by_layer, whole_fits
from registry.statistics.scales import scales
from registry.statistics.settings import PassSettings, on_cluster
from registry.statistics.slices import SharedCheckpoint, collect_slices, open_shared

SEED = 0

EVIDENCE_TOKENS = 262_144
"""Tokens of a text that are counted as evidence, however few a model reads: they are tokenised in 1 to 3 s, and 24,576
are too few to tell near neighbours apart, such as the source code of five programs."""

SAMPLES = "no data was given: the expert writes its own calibration text; --data FILE is faster"
"""The remark on an expert without text."""

MOST_TOKENS = 2**53  # tokens that counts alone may add up to: shares of them are exact in float64


def text_calibration(
    checkpoint: Checkpoint, data: Sequence[str | os.PathLike[str]], settings: PassSettings, progress: Progress = silent
) -> Calibration | None:
    """Return the calibration tokens of `data`, sampled over all of it, and of more text up to `EVIDENCE_TOKENS`.

    They are windows anywhere (`windows.random_places`) or, with `settings.document_tokens`, the first tokens of
    documents (`windows.document_beginnings`). Without `data` the checkpoint's own `calibration.*` file is read; without
    such a file, None is returned (CalibrationError: there is no text, `data` cannot be read, or a token is not in the
    model's vocabulary; CheckpointError: the checkpoint has no tokenizer).
    """
    if not data:
        own = find_calibration(checkpoint.folder)
        if not own:
            return None
        data, others = own[:1], [path.name for path in own[1:]]
        if others:
            remark(progress, f"{own[0].name} is read, and {some(others)} not: name all files with --data")
    tokenizer = load_tokenizer(checkpoint.folder)
    seq_len = window_size(checkpoint, settings)
    wanted = settings.seq_len if settings.document_tokens is None else settings.document_tokens
    if seq_len < wanted:
        remark(progress, f"windows have {seq_len} tokens, not {wanted}: the model reads no more at once")
    take = random_places if settings.document_tokens is None else document_beginnings
    corpus = Corpus([Path(file) for file in data], tokenizer, progress)
    calibration = take(corpus, tokenizer, tokens=settings.tokens, seq_len=seq_len, seed=SEED)
    largest = int(calibration.ids.max())
    if settings.tokens <= calibration.tokens < EVIDENCE_TOKENS:  # else there is no more text, or enough is read
        wider = take(corpus, tokenizer, tokens=EVIDENCE_TOKENS, seq_len=seq_len, seed=SEED)
        if wider.tokens > calibration.tokens:
            calibration, largest = replace(calibration, wider=wider), max(largest, int(wider.ids.max()))
    if largest >= checkpoint.architecture.vocab_size:
        raise CalibrationError(
            f"{checkpoint.label}: its tokenizer gives token {largest}, the model knows "
            f"{checkpoint.architecture.vocab_size}",
            "put the tokenizer that the model was trained with into the folder",
        )
    return calibration


def carries_statistics(checkpoint: Checkpoint) -> bool:
    """Tell whether a checkpoint's folder has statistics."""
    return own_file(checkpoint.folder, statistics_file.FILE_NAME) is not None


def carried_statistics(hashed: HashedCheckpoint) -> Collected | None:
    """Return the statistics in a checkpoint's folder, or None (CheckpointError: contradictory, or of other weights)."""
    checkpoint = hashed.checkpoint
    path = own_file(checkpoint.folder, statistics_file.FILE_NAME)
    if path is None:
        return None
    collected = statistics_file.load(path)
    for problem in _contradictions(collected, checkpoint, hashed.saved_weights):
        hint = "make them again: reg collect CKPT --data FILE --out DIR"
        if is_signed(checkpoint.folder):
            hint = "it is not as it was signed: do not use it, and fetch it again from its signer"
        raise CheckpointError(f"{path}{problem}", hint)
    return collected


def _contradictions(collected: Collected, checkpoint: Checkpoint, weights: str) -> Iterator[str]:
    """Yield what is wrong with the statistics of a checkpoint's folder, to follow the name of their file."""
    if collected.weights != weights:
        yield f" has statistics of weights {collected.weights[:12]}, the checkpoint has {weights[:12]}"
    kept, vocabulary = collected.calibration, checkpoint.architecture.vocab_size
    if kept is not None and not 0 <= int(kept.ids.min()) <= int(kept.ids.max()) < vocabulary:
        yield " has calibration tokens that the model does not know"
    if unknown := sorted(set(collected.sites) - set(SITES["all"])):
        yield f" has statistics of an unknown site: {', '.join(unknown)}"
    if collected.computed.get("sites") == COUNTS:
        if not collected.counts_alone:
            yield f" must have token counts alone, as it was made with --sites {COUNTS}"
    else:
        for site in dict.fromkeys((MLP_INPUT, *collected.sites)):  # first the one whose count the others must have
            yield from _contradictions_of_site(collected, checkpoint, site)
    counts = collected.token_counts
    if counts is not None and not _are_counts(counts, collected, vocabulary):
        yield f": its token counts are not those of {vocabulary:,} tokens"
    if not _are_contents(collected):
        yield ": its counts of contents are not counts of the tokens that are evidence"
    if not _are_pairs(collected, vocabulary):
        yield ": its counts of pairs are not counts of pairs of the tokens that are evidence"
    if kept is not None:
        same = counts is None or torch.equal(counts, kept.counts(vocabulary))
        if (kept.digest, kept.tokens, same) != (collected.calibration_digest, collected.tokens, True):
            yield ": its statistics were not taken on the calibration tokens it holds"


def _are_counts(counts: torch.Tensor, collected: Collected, vocabulary: int) -> bool:
    """Tell whether token counts are one a token, not negative, and add up to the tokens of the statistics."""
    if counts.shape != (vocabulary,) or int(counts.min()) < 0:
        return False
    total: int = sum(counts.tolist())  # as Python's integers: a forged sum may not wrap around
    return 1 <= total <= MOST_TOKENS if collected.counts_alone else total == collected.tokens


def _are_contents(collected: Collected) -> bool:
    """Tell whether counts of contents are there where they are said to be, and can be what they are said to be."""
    contents, counts = collected.content_counts, collected.token_counts
    if (contents is not None) != (collected.computed.get("evidence") in (CONTENTS, ALL_TEXT)):
        return False
    if contents is None or counts is None or contents.shape != counts.shape:
        return contents is None
    if bool((contents < 0).any()) or sum(contents.tolist()) > MOST_TOKENS:
        return False
    return "evidence_text" in collected.computed or bool((contents <= counts).all())


def _are_pairs(collected: Collected, vocabulary: int) -> bool:
    """Tell whether counts of pairs are there where they are said to be, and can be what they are said to be."""
    pairs, contents, least = collected.pair_counts, collected.content_counts, collected.computed.get("evidence_pairs")
    if (pairs is not None) != (least == LEAST_PAIRS and type(least) is int) or (pairs is not None and contents is None):
        return False
    if pairs is None or contents is None:
        return least is None
    if pairs.dtype != torch.int32 or pairs.ndim != 2 or pairs.shape[1] != 3:
        return False
    tokens, keys = pairs[:, :2].long(), pairs[:, 0].long() * vocabulary + pairs[:, 1]
    if bool((tokens < 0).any()) or bool((tokens >= vocabulary).any()) or bool((keys.diff() <= 0).any()):
        return False
    if bool((pairs[:, 2] < LEAST_PAIRS).any()):
        return False
    sums = torch.zeros((2, vocabulary), dtype=torch.int64)  # of all pairs that a token is the first, or the second of
    for own, numbers in zip(sums, tokens.T, strict=True):
        own.index_add_(0, numbers, pairs[:, 2].long())
    return bool((sums <= contents).all())


def _contradictions_of_site(collected: Collected, checkpoint: Checkpoint, site: str) -> Iterator[str]:
    """Compare one site with the weights: layers, scales, counts."""
    layers, expected = collected.sites.get(site, ()), scales(checkpoint, site).exponents
    if len(layers) != len(expected):
        yield f" has {len(layers)} layers of {site}, the checkpoint has {len(expected)}"
    tokens = collected.sites[MLP_INPUT][0].count
    for number, (layer, exponents) in enumerate(zip(layers, expected, strict=True)):
        if not torch.equal(layer.exponents, exponents):
            yield f": the scales of {site}, layer {number}, are not those that the weights give"
        if layer.count != tokens or tokens < 1 or bool((layer.matrix.diagonal() < 0).any()):
            yield f": {site}, layer {number}, holds no sum over {tokens} tokens"


def collect(
    hashed: HashedCheckpoint,
    calibration: Calibration | None,
    settings: PassSettings,
    *,
    keep_calibration: bool = False,
    partial: Path | None = None,
    cluster: Cluster | None = None,
    progress: Progress,
) -> Collected:
    """Return the expert's statistics on `calibration`, default text that it samples itself.

    The model is loaded unless the tokens of a given text are only counted. If it does not fit into memory together with
    its sums (`settings.max_memory`), it is read layer by layer.

    Args:
        keep_calibration: include the tokens in the result; self-sampled tokens are always included.
        partial: as in `take_statistics`.
        cluster: the nodes that take slices of the pass; None to run it in this process.

    Raises:
        CalibrationError: the expert cannot sample text, or not in this memory; or an activation is NaN or infinite.
        CheckpointError, ClusterError: the model cannot be loaded; the nodes cannot do the work.
    """
    checkpoint, model = hashed.checkpoint, None
    self_sampled = calibration is None
    runs_model = self_sampled or settings.sites != COUNTS
    settings = on_cluster(settings, cluster if runs_model else None)
    seq_len = window_size(checkpoint, settings)
    whole = runs_model and cluster is None and whole_fits(checkpoint, settings, seq_len, progress)
    if calibration is None:
        if cluster is not None:
            calibration = _sampled_by(cluster, hashed, settings, partial, progress)
        else:
            check_sampling(checkpoint, settings, seq_len)
            calibration, model = _sampled_calibration(checkpoint, settings, progress)
    if settings.sites == COUNTS:
        computed = computed_by(checkpoint, settings, self_sampled=self_sampled)
        collected = Collected(hashed.weights, {}, calibration.digest, calibration.label, computed)
    elif cluster is not None:
        collected = collect_slices(hashed, calibration, settings, cluster, partial, progress)
    elif whole:
        if model is None:
            model = load_for_pass(checkpoint.whole_folder, settings.dtype, settings.device, progress=progress)
        collected = take_statistics(
            checkpoint, hashed.weights, model, calibration, settings, partial=partial, progress=progress
        )
    else:
        del model  # text was sampled by it
        return_freed_memory()
        collected = take_statistics_by_layer(
            checkpoint, hashed.weights, calibration, settings, partial=partial, progress=progress
        )
    # Tokens that the expert sampled reveal no more than its weights.
    kept = calibration if keep_calibration or self_sampled else None
    return replace(_with_counts(collected, calibration, checkpoint), calibration=kept)


def own_text(hashed: HashedCheckpoint, settings: PassSettings, progress: Progress) -> Collected:
    """Return counts of text that a model writes: conversations, if its tokenizer has a chat template (`collect`)."""
    checkpoint = hashed.checkpoint
    has_tokenizer = any(name.startswith("tokenizer") for name in hashed.files)
    turns = Turns.of(load_tokenizer(checkpoint.folder)) if has_tokenizer else None
    if turns is None:
        return collect(hashed, None, settings, progress=progress)
    seq_len = window_size(checkpoint, settings)
    check_sampling(checkpoint, settings, seq_len)
    model = load_for_pass(checkpoint.folder, settings.dtype, settings.device, prefer_whole=True, progress=progress)
    named = checkpoint.special_tokens["eos_token_id"]
    end = [number for number in (named if isinstance(named, list) else [named]) if isinstance(number, int)]
    sizes = {"tokens": settings.tokens, "seq_len": seq_len, "batch_size": settings.batch_size}
    calibration = sample_conversations(model, turns, end, **sizes, progress=progress)
    computed = computed_by(checkpoint, settings, self_sampled=True)
    return replace(counted(hashed.weights, calibration, checkpoint, computed), calibration=calibration)


def counted(weights: str, calibration: Calibration, checkpoint: Checkpoint, computed: dict[str, Any]) -> Collected:
    """Return token counts alone."""
    alone = Collected(weights, {}, calibration.digest, calibration.label, computed)
    return _with_counts(alone, calibration, checkpoint)


def _with_counts(collected: Collected, calibration: Calibration, checkpoint: Checkpoint) -> Collected:
    size, evidence = checkpoint.architecture.vocab_size, calibration.wider or calibration
    return replace(
        collected,
        computed=collected.computed | evidence_of(calibration),
        token_counts=calibration.counts(size),
        content_counts=evidence.counts(size, evidence.written),
        pair_counts=evidence.pairs(size, evidence.written),
    )


def evidence_of(calibration: Calibration | None) -> dict[str, str | int]:
    """Return what `computed` says of the tokens that are evidence; those that a model samples are all of them."""
    found: dict[str, str | int] = {"evidence": ALL_TEXT, "evidence_pairs": LEAST_PAIRS}
    if calibration is None:
        return found
    text = calibration.wider or calibration
    if calibration.wider is not None:
        found["evidence_text"] = calibration.wider.digest
    if text.written is not None:
        found["evidence"] = CONTENTS
        if text.documents:
            found["evidence_documents"] = math.ceil(1000 * text.documents)
    return found


def report_few_tokens(collected: Collected, checkpoint: Checkpoint, settings: PassSettings, progress: Progress) -> None:
    """Report statistics of fewer tokens than a window or than the hidden size has."""
    tokens, window, hidden = collected.tokens, window_size(checkpoint, settings), checkpoint.architecture.hidden_size
    if tokens >= max(window, hidden) or (collected.counts_alone and tokens >= window):
        return
    what = f"one window of {window:,}" if tokens < window else f"the hidden size, {hidden:,}"
    remark(
        progress,
        f"only {tokens:,} tokens were counted, fewer than {what}: what is solved from them is chance; give more text, "
        "24,576 tokens or more",
    )


def collect_to(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    data: Sequence[str | os.PathLike[str]] = (),
    settings: PassSettings | None = None,
    keep_calibration: bool = False,
    base: str | os.PathLike[str] | None = None,
    cluster: Cluster | None = None,
    progress: Progress = silent,
) -> tuple[Path, Collected]:
    """Collect the statistics of a checkpoint without a registry, and write them to `out`/statistics.safetensors.

    With that file in its folder, the checkpoint registers anywhere without data and without a forward pass. An
    interrupted pass resumes when it is started again with the same `out`.

    Args:
        folder: the checkpoint, as `Registry.add_expert` takes it.
        out: created if absent (StorageError: it cannot be written).
        cluster: the nodes that take slices of the pass; they see the checkpoint and `out`.

    Other errors are those of `open_checkpoint`, `text_calibration` and `collect`.
    """
    settings = settings or PassSettings()
    target = Path(out)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{target} cannot be created: {error.strerror}", "choose another --out") from error
    with open_checkpoint(folder, target / "partial", base=base, remote_code=True, progress=progress) as checkpoint:
        hashed = hash_checkpoint(checkpoint, progress)
        calibration = text_calibration(checkpoint, data, settings, progress)
        if calibration is None:
            remark(progress, SAMPLES)
        collected = collect(
            hashed,
            calibration,
            settings,
            keep_calibration=keep_calibration,
            partial=target / "partial",
            cluster=cluster,
            progress=progress,
        )
        report_few_tokens(collected, checkpoint, settings, progress)
    path = target / statistics_file.FILE_NAME
    statistics_file.save(path, collected)
    shutil.rmtree(target / "partial", ignore_errors=True)
    return path, collected


def _sampled_by(
    cluster: Cluster, hashed: HashedCheckpoint, settings: PassSettings, partial: Path | None, progress: Progress
) -> Calibration:
    """Let one task of a cluster sample the expert's text; `partial` is a folder that all nodes see."""
    shared, tasks = (SharedCheckpoint.of(hashed), settings), [Task("text", (), settings.tokens)]
    with temporary_folder(partial) as folder:
        step = Step("sampling", "token", sample_in_task, shared, tasks, folder.absolute(), str(settings.device))
        sampled: Calibration = cluster.results(step, progress)[0].result
        return sampled


def sample_in_task(shared: tuple[SharedCheckpoint, PassSettings], *, progress: Progress) -> Calibration:
    """Sample an expert's text in a task."""
    described, settings = shared
    return _sampled_calibration(open_shared(described), settings, progress)[0]


def _sampled_calibration(checkpoint: Checkpoint, settings: PassSettings, progress: Progress) -> tuple[Calibration, Any]:
    """Return text that an expert samples token by token, and its loaded model."""
    model = load_for_pass(
        checkpoint.whole_folder, settings.dtype, settings.device, prefer_whole=True, progress=progress
    )
    start = None
    if checkpoint.special_tokens["bos_token_id"] is None and (checkpoint.folder / "tokenizer_config.json").is_file():
        start = start_token(load_tokenizer(checkpoint.folder))
    sampled = sample_from_expert(
        model,
        checkpoint.special_tokens,
        start=start,
        tokens=settings.tokens,
        seq_len=window_size(checkpoint, settings),
        batch_size=settings.batch_size,
        progress=progress,
    )
    return sampled, model
