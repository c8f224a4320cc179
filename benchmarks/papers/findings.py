"""What the papers find, beside what is found here: whether the order of methods agrees, and if not, why."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.papers import mergeme
from benchmarks.papers.tables import Found, mean

Compared = tuple[str, bool]
"""Our figures in words, and whether their order is the paper's."""


@dataclass(frozen=True)
class Finding:
    """A table or figure of a paper.

    Attributes:
        source: paper and place.
        states: what it finds.
        compare: returns our figures in words and whether they agree; KeyError where a part is not measured.
        reason: why ours differ, where they do, in words or from the figures.
    """

    source: str
    states: str
    compare: Callable[[Found], Compared]
    reason: str | Callable[[Found], str] = ""


def _perplexity(found: Found, part: str, row: str) -> float:
    return mean(found[part]["rows"][row])


def _score(found: Found, part: str, row: str) -> float:
    return float(found[part]["scores"][row]["average"])


def _merging(found: Found) -> Compared:
    flex = _perplexity(found, "tuned", "rows with a bias, tuned on proxy text")
    others = {
        "soup": _perplexity(found, "near-free", "soup: average of all weights"),
        "BTM": _perplexity(found, "near-free", "BTM: all whole models"),
        "BTX": _perplexity(found, "mixtures", "BTX, trained on public text"),
    }
    words = ", ".join(f"{name} {value:.2f}" for name, value in others.items())
    return f"FlexOlmo {flex:.2f}; {words}", flex < min(others.values())


def _unrestricted(found: Found) -> Compared:
    flex = _perplexity(found, "tuned", "rows with a bias, tuned on proxy text")
    joint = _perplexity(found, "unrestricted-1", "unrestricted mixture, 1×")
    return f"FlexOlmo {flex:.2f}; unrestricted {joint:.2f}", flex < joint


def _ablations(found: Found) -> Compared:
    steps = {
        "all": _perplexity(found, "tuned", "rows with a bias, tuned on proxy text"),
        "no tuning": _perplexity(found, "near-coordinated", "rows as trained, bias -0.5"),
        "no bias": _perplexity(found, "near-coordinated", "rows as trained, with the public expert"),
        "random rows": _perplexity(found, "near-coordinated", "random rows, with the public expert"),
    }
    values = list(steps.values())
    words = ", ".join(f"{name} {value:.2f}" for name, value in steps.items())
    return words, values == sorted(values)


def _coordination(found: Found) -> Compared:
    without = _perplexity(found, "near-frozen", "domain embeddings, with the public expert")
    trained = _perplexity(found, "near-coordinated", "rows as trained, with the public expert")
    return f"coordinated {trained:.2f}; not {without:.2f}", trained < without


def _dume_plus(found: Found) -> Compared:
    steps = max(int(name.split(", ")[2].split()[0]) for name in found["dume"]["scores"] if name.startswith("DUME+"))
    before = [_score(found, "dume", f"DUME, top {top}") for top in (1, 2)]
    after = [_score(found, "dume", f"DUME+, top {top}, {steps} steps") for top in (1, 2)]
    words = ", ".join(f"top {top}: {a:.2f} → {b:.2f}" for top, a, b in zip((1, 2), before, after, strict=True))
    return words, all(b > a for a, b in zip(before, after, strict=True))


def _dume_btx(found: Found) -> Compared:
    closed = _score(found, "dume", "DUME, top 2")
    trained = max(
        value["average"]
        for name, value in found["dume"]["scores"].items()
        if name.startswith("BTX") and "top 2" in name
    )
    return f"DUME {closed:.2f}; BTX, routers trained {trained:.2f}", closed > trained


def _separate(found: Found) -> Compared:
    rows = found["mergeme"]["scores"]
    own = {name: rows[name]["average"] for name in rows if "perplexity" in name or "task-vector" in name}
    best = max(own, key=lambda name: own[name])
    merged = max((name for name in own if "separate" not in name), key=lambda name: own[name])
    words = f"separate: perplexity {own['separate, prompt-perplexity']:.2f}, task vectors "
    words += f"{own['separate, task-vector']:.2f}; best merged ({merged}) {own[merged]:.2f}"
    return words, best == "separate, prompt-perplexity"


def _interference(found: Found) -> Compared:
    of = {name: _score(found, "mergeme", f"{name}, prompt-perplexity") for name in mergeme.MERGING}
    words = ", ".join(f"{name} {value:.2f}" for name, value in of.items())
    for name in mergeme.SHARED_OUT:
        words += f", {name} {_score(found, 'mergeme', f'{name}, prompt-perplexity'):.2f}"
    return words, of["mean (BTX)"] < max(of["TIES"], of["DARE"])


def _hetero(found: Found) -> Compared:
    of = {name: mean(row) for name, row in found["far-hetero"]["rows"].items()}
    words = ", ".join(f"{name} {value:.2f}" for name, value in of.items())
    return words, min(of, key=lambda name: of[name]) == "heterogeneous mixture"


def _specialists(found: Found) -> Compared:
    rows = found["soups"]["rows"]
    soup = min(mean(rows[name]) for name in rows if name.startswith("soup"))
    return f"specialists {soup:.2f}; generic {mean(rows['generic model']):.2f}", soup < mean(rows["generic model"])


def _support(found: Found) -> Compared:
    of = {name.split()[-1]: mean(row) for name, row in found["soups"]["rows"].items() if name.startswith("soup")}
    words = ", ".join(f"support {name}: {value:.2f}" for name, value in of.items())
    return words, of[max(of, key=int)] > min(of.values())


def _samples(found: Found) -> Compared:
    of = found["soup-samples"]["perplexity"]
    words = ", ".join(f"{number}: {value:.2f}" for number, value in of.items())
    values = list(of.values())
    return words, values[1] <= 1.01 * values[-1]


def _overlap(found: Found) -> Compared:
    masks = found["simoe"]["masks"].values()
    tau = max((one["tau"] for one in masks), key=[one["tau"] for one in masks].count)
    of = sorted((one["beta"], one["overlap"]) for one in masks if one["tau"] == tau)
    overlaps = [overlap for _, overlap in of]
    return ", ".join(f"β {beta:g}: {overlap:.2f}" for beta, overlap in of), overlaps == sorted(overlaps, reverse=True)


def _by_chance(found: Found) -> str:
    """Tell how the overlap of masks compares with that of random ones: their density, one less the sparsity."""
    masks = found["simoe"]["masks"].values()
    tau = max((one["tau"] for one in masks), key=[one["tau"] for one in masks].count)
    of = sorted((one["beta"], one["overlap"], 1 - one["sparsity"]) for one in masks if one["tau"] == tau)
    words = ", ".join(f"{overlap / density:.1f} times (density {density:.2f})" for _, overlap, density in of)
    return f"the masks are not equally dense; of the overlap of random masks as dense they have, in turn, {words}"


def _sparsity(found: Found) -> Compared:
    masks = found["simoe"]["masks"].values()
    words = ", ".join(f"τ {one['tau']:g}, β {one['beta']:g}: {one['sparsity']:.3f}" for one in masks)
    return words, all(one["sparsity"] >= one["tau"] for one in masks)


def _by_sparsity(found: Found) -> str:
    """Tell how perplexity goes with the final sparsity."""
    rows, masks = found["simoe"]["rows"], found["simoe"]["masks"]
    open_rows, open_masks = (found["simoe"]["ablations"][key] for key in ("rows", "masks"))
    of = {masks[name]["sparsity"]: mean(rows[name]) for name in masks}
    of |= {open_masks[name]["sparsity"]: mean(open_rows[name]) for name in open_masks}
    ends = ", ".join(f"{of[sparsity]:.2f} at {sparsity:.2f}" for sparsity in (min(of), max(of)))
    return f"the more of the weights is masked, the further it is from the dense model: by final sparsity, {ends}"


def _upcycled(found: Found) -> Compared:
    rows = found["simoe"]["rows"]
    best = min((name for name in rows if name != "dense model"), key=lambda name: mean(rows[name]))
    words = f"{best}: {mean(rows[best]):.2f}; dense {mean(rows['dense model']):.2f}"
    return words, mean(rows[best]) < mean(rows["dense model"])


FINDINGS = (
    Finding(
        "FlexOlmo, Table 1",
        "FlexOlmo above model soup, BTM and BTX",
        _merging,
        "a frozen trunk learns less from as many tokens than free experts do (own perplexities below), and BTM runs "
        "whole free experts",
    ),
    Finding(
        "FlexOlmo, Table 1",
        "FlexOlmo above the unrestricted mixture trained with the same compute",
        _unrestricted,
        "the unrestricted mixture trains on the text of all domains at once; its row with a frozen trunk, where there "
        "is one, tells what the trunk adds",
    ),
    Finding(
        "FlexOlmo, Table 1, ablations",
        "proxy tuning, bias and domain embeddings each help",
        _ablations,
    ),
    Finding("FlexOlmo, Table 1, ablations", "training to coordinate helps", _coordination),
    Finding("DUME, Table 2", "training the closed form's routers (DUME+) gains a little", _dume_plus),
    Finding("DUME, Table 2", "closed-form routers above routers trained from random ones", _dume_btx),
    Finding(
        "MergeME, Table 3",
        "separate attention with perplexity routing is best without training",
        _separate,
    ),
    Finding(
        "MergeME, §3.1.2",
        "TIES and DARE merge attention better than averages do",
        _interference,
        "λ = 1/3 makes the sum of five task vectors longer than their mean; with λ = 1/5 most of the difference goes",
    ),
    Finding(
        "MergeME, Table 4",
        "a mixture of experts of different architectures above each of them",
        _hetero,
    ),
    Finding(
        "Soup-of-Experts, Fig. 4",
        "specialists of a soup above one generic model",
        _specialists,
    ),
    Finding(
        "Soup-of-Experts, Fig. 8",
        "mixtures of few domains train better specialists than mixtures of all",
        _support,
    ),
    Finding("Soup-of-Experts, Fig. 7", "few documents suffice for the domain weights", _samples),
    Finding("SIMoE, orthogonality", "masks overlap less with a larger weight β of the overlap", _overlap, _by_chance),
    Finding("SIMoE, sparsity", "the final sparsity is what was asked for, or more", _sparsity),
    Finding(
        "SIMoE, main tables",
        "above full fine-tuning of the same dense model",
        _upcycled,
        _by_sparsity,
    ),
)
"""Every comparison, in the order of the page."""

NOT_RUN: tuple[tuple[str, str], ...] = (
    ("FlexOlmo, Tables 1 to 3 on 31 tasks", "models of 7B parameters, and tasks that a model of 6.8M cannot do"),
    ("DUME, Table 3 on benchmarks", "the same; `reg scores` normalises lm-eval's results"),
    ("MergeME, Tables 1 and 2 on GSM8K, MBPP and others", "experts of 1B parameters and more"),
    ("SIMoE, tables on instruction tuning", "a base model of 3B parameters and its instruction data"),
)
"""Table or figure → why it is not run at this scale."""


READ = ("| FlexOlmo", "| DUME")
"""Beginnings of the rows whose statements are those of a paper's table."""


def lines(found: Found) -> Iterator[str]:
    """Yield the section's lines; findings whose parts are not measured are left out."""
    rows = []
    for finding in FINDINGS:
        try:
            words, agrees = finding.compare(found)
        except KeyError:
            continue
        reason = finding.reason if isinstance(finding.reason, str) else finding.reason(found)
        verdict = "yes" if agrees else f"no: {reason}" if reason else "no"
        rows.append(f"| {finding.source} | {finding.states} | {words} | {verdict} |")
    if not rows:
        return
    yield "What a paper states is an order of methods, not its figures: models, text and tasks differ from ours. Ours"
    yield "are mean perplexities (lower is better) or, of DUME and MergeME, mean scores (higher is better)."
    if any(not row.startswith(READ) for row in rows):
        yield "What MergeME, Soup-of-Experts and SIMoE state is put in words from their abstracts, not read off tables."
    yield ""
    yield "| source | states | here | same order |"
    yield "| --- | --- | --- | --- |"
    yield from rows
    yield ""
    yield "Not run at this scale:"
    yield ""
    yield from (f"- {what}: {why}." for what, why in NOT_RUN)
