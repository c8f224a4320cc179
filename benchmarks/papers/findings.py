"""What the papers find, beside what is found here: whether the order of methods agrees, and if not, why."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.papers import simoe
from benchmarks.papers.bench import NEAR, PUBLIC
from benchmarks.papers.flexolmo import WHOLE, active, without
from benchmarks.papers.hetero import NARROW, TRAINED, WIDE
from benchmarks.papers.mergeme import MERGING
from benchmarks.papers.mergeme import SEPARATE as BY_PERPLEXITY
from benchmarks.papers.soups import GENERIC, LIKE, SUPPORTS, UNSEEN, documents, support
from benchmarks.papers.tables import Found, Side, alike, difference, mean, verdict

Compared = tuple[str, bool]
"""Figures that no text moves in words, and whether their order is the paper's."""


class Pair(NamedTuple):
    """Two rows, the first of which has the lower perplexity if the paper is right, on domains or all that both have."""

    first: Side
    second: Side
    domains: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """A table or figure of a paper.

    Attributes:
        source: paper and place.
        states: what it finds.
        compared: pairs of rows; or what returns figures that no text moves (KeyError: they are not there).
        reason: why ours differ, where they do, in words or from the figures.
        is_tested: False if there is no verdict here: the paper has it of other conditions, or there is no interval.
    """

    source: str
    states: str
    compared: tuple[Pair, ...] | Callable[[Found], Compared]
    reason: str | Callable[[Found], str] = ""
    is_tested: bool = True

    def row(self, found: Found) -> str:
        """Return its row of the table (KeyError: a part is not measured, or those that it compares differ in size)."""
        if isinstance(self.compared, tuple):
            words = "; ".join(_words(found, pair) for pair in self.compared)
            judged = verdict([difference(found, *pair) for pair in self.compared]) if self.is_tested else "–"
        else:
            words, agrees = self.compared(found)
            judged = ("yes" if agrees else "no") if self.is_tested else "–"
        if judged == "no" and self.reason:
            judged += f": {self.reason if isinstance(self.reason, str) else self.reason(found)}"
        return f"| {self.source} | {self.states} | {words} | {judged} |"


def _words(found: Found, pair: Pair) -> str:
    sides = pair.first, pair.second
    if not alike(*(found[side.part]["size"] for side in sides)):
        raise KeyError(pair.second.part)
    rows = [found[side.part]["rows"][side.row] for side in sides]
    domains = pair.domains or [domain for domain in rows[0] if domain in rows[1]]
    means = (mean({domain: row[domain] for domain in domains}) for row in rows)
    words = ", ".join(f"{side.label} {value:.2f}" for side, value in zip(sides, means, strict=True))
    known = difference(found, *pair)
    return f"{words}: {known}" if known else words


def _against(first: Side, *others: Side) -> tuple[Pair, ...]:
    return tuple(Pair(first, other) for other in others)


def _in_order(*sides: Side) -> tuple[Pair, ...]:
    return tuple(map(Pair, sides, sides[1:]))


TUNED = Side("FlexOlmo", "tuned", "rows with a bias, tuned on proxy text")
TRAINED_ROWS = Side("no bias", "near-coordinated", "rows as trained, with the public expert")
DUME, DUME_PLUS = Side("DUME", "dume", "DUME"), Side("DUME+", "dume", "DUME+")
BELOW_DUME = (
    Side("average", "dume", "average"),
    Side("random", "dume", "random routing"),
    Side("BTX", "dume", "BTX, routers alone, top 2"),
)
SEPARATE = Side("separate, perplexity", "mergeme", "separate, prompt-perplexity")
SOUP = Side("soup", "soups", support(SUPPORTS[1]))
SHARED_OUT = [Side(f"{name}, then trained", "mixtures", f"{name}, trained on all text") for name in MERGING]
UNTRAINED = [Side(f"{name}, perplexity", "mergeme", f"{name}, prompt-perplexity") for name in MERGING]


LOW = 0.5
"""Cosine of task vectors below which more of them is each expert's own than is shared; the paper gives no bound."""


def _alike_little(found: Found) -> Compared:
    blocks = found["task-vectors"]["similarity"]
    words = ", ".join(f"{block} {min(of):.3f} to {max(of):.3f}" for block, of in blocks.items())
    return words, max(map(max, blocks.values())) < LOW


def _own_first(found: Found) -> Compared:
    shares = found["mergeme"]["shares"][BY_PERPLEXITY]
    words = (f"{domain} {100 * of[domain]:.1f} %, base {100 * of[PUBLIC]:.1f} %" for domain, of in shares.items())
    return "; ".join(words), all(max(of[domain], of[PUBLIC]) == max(of.values()) for domain, of in shares.items())


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


FINDINGS = (
    Finding(
        "FlexOlmo, Table 1",
        "FlexOlmo above model soup, BTM and BTX, which trains on public text",
        _against(
            TUNED,
            Side("soup", "near-free", "soup: average of all weights"),
            Side("BTM", "near-free", "BTM: the best 2 whole models"),
            Side("BTX", "mixtures", "BTX, trained on public text"),
        ),
        "a frozen trunk learns less from as many tokens than free experts do (see above), and BTM runs whole free "
        "experts",
    ),
    Finding(
        "FlexOlmo, Table 1",
        "FlexOlmo above the unrestricted mixture of the same compute, which is half its data",
        _against(TUNED, Side("unrestricted", "unrestricted-half", "unrestricted mixture, 0.5× data")),
        "the unrestricted mixture trains on the text of all domains at once, and its trunk too",
    ),
    Finding(
        "FlexOlmo, Table 1",
        "the unrestricted mixture of the same data, twice the compute, above FlexOlmo",
        (Pair(Side("unrestricted", "unrestricted-1", "unrestricted mixture, 1× data"), TUNED),),
    ),
    Finding(
        "FlexOlmo, Table 1, ablations",
        "router training, bias and domain embeddings each help; random rows are trained there, and not here",
        _in_order(
            TUNED,
            Side("no tuning", "near-coordinated", "rows as trained, bias -0.5"),
            TRAINED_ROWS,
            Side("random rows", "near-coordinated", "random rows, with the public expert"),
        ),
    ),
    Finding(
        "FlexOlmo, Table 1, ablations",
        "training to coordinate helps",
        _against(TRAINED_ROWS, Side("not coordinated", "near-frozen", "domain embeddings, with the public expert")),
    ),
    Finding(
        "FlexOlmo, Fig. 3",
        "the more active experts, the better, up to four",
        _in_order(*(Side(f"{count} active", "opt-out", active(count)) for count in (4, 3, 2, 1))),
    ),
    Finding(
        "FlexOlmo, Fig. 4",
        "without news news falls, other tasks hardly (here each domain; of the others, the table below)",
        tuple(
            Pair(Side(f"{one}: all", "opt-out", WHOLE), Side("without it", "opt-out", without(one)), (one,))
            for one in NEAR
        ),
    ),
    Finding(
        "ours",
        "over coordinated experts, routers solved again in closed form above the rows that they were trained with",
        _against(
            Side("solved", "near-coordinated", "ridge, with the public expert"), TRAINED_ROWS._replace(label="trained")
        ),
    ),
    Finding(
        "DUME, Table 2",
        "DUME above averaged weights and BTX",
        _against(DUME, BELOW_DUME[0], BELOW_DUME[2]),
        "read literally, eq. 4 leaves one expert its share of the softmax over all, which BTX's two are spared; the "
        "paper's random routing is 1.0 below averaging, so its weights are probably near 1: see the next row",
    ),
    Finding(
        "DUME, Table 2, but with weight 1",
        "DUME above averaged weights, random routing and BTX",
        _against(Side("DUME, weight 1", "dume", "DUME, weight 1"), *BELOW_DUME),
    ),
    Finding("DUME, Table 2", "router training (DUME+) gains a little", _against(DUME_PLUS, DUME)),
    Finding("DUME, Table 2", "the oracle above DUME", _against(Side("oracle", "dume", "oracle"), DUME)),
    Finding(
        "MergeME, Table 1",
        "TIES and DARE merge attention better than averages do, once all parameters are fine-tuned",
        tuple(Pair(other, SHARED_OUT[0]) for other in SHARED_OUT[1:]),
    ),
    Finding(
        "MergeME, Table 1, but without training",
        "TIES and DARE merge attention better than averages do; the paper's claim is of fine-tuned mixtures, so this "
        "is no verdict on it",
        tuple(Pair(other, UNTRAINED[0]) for other in UNTRAINED[1:]),
        is_tested=False,
    ),
    Finding(
        "MergeME, Fig. 4",
        f"task vectors are little alike (ours: a cosine below {LOW:g}), in attention as in MLPs",
        _alike_little,
    ),
    Finding(
        "MergeME, Table 2",
        "perplexity routing gives a domain's own expert or the base model most (there the own one is first in 2 of 6 "
        "tasks, and with the base model in 2)",
        _own_first,
        is_tested=False,
    ),
    Finding(
        "ours",
        "attention merged by RegMean, which MergeME leaves open, above mean, TIES and DARE, without training",
        _against(Side("RegMean, perplexity", "mergeme", "RegMean, prompt-perplexity"), *UNTRAINED),
    ),
    Finding(
        "MergeME, Table 3",
        "without training, separate attention with perplexity routing is best",
        _against(
            SEPARATE,
            Side("separate, task vectors", "mergeme", "separate, task-vector"),
            *(
                Side(f"merged, {how}", "mergeme", f"mean (BTX), {row}")
                for how, row in (
                    ("perplexity", "prompt-perplexity"),
                    ("task vectors", "task-vector"),
                    ("random", "random token router"),
                )
            ),
            *(Side(f"dense {name}", "mergeme", f"{name}, one dense model") for name in ("TIES", "DARE")),
        ),
    ),
    Finding(
        "MergeME, Table 4",
        "a trained mixture of different architectures is comparable to each expert or above, in that expert's domain",
        tuple(
            Pair(Side("mixture", "hetero", TRAINED), Side(f"{kind} expert", "hetero", f"{kind} expert"), (domain,))
            for kind, domain in (("wide", WIDE), ("narrow", NARROW))
        ),
    ),
    Finding(
        "Soup-of-Experts, Fig. 4",
        "specialists of a soup above one generic model",
        _against(SOUP, Side("generic", "soups", GENERIC)),
    ),
    Finding(
        "Soup-of-Experts, Fig. 8",
        "a support of 1 is bad, and 2 specialises best",
        _against(
            SOUP._replace(label="support 2"),
            *(Side(f"support {number}", "soups", support(number)) for number in SUPPORTS if number != 2),
        ),
    ),
    Finding(
        "Soup-of-Experts, Fig. 7",
        f"on text of no training domain ({UNSEEN}) 3 documents give the generic model's loss, or less",
        _against(Side("3 documents", "soups", documents(3)), Side("generic", "soups", GENERIC)),
    ),
    Finding(
        "Soup-of-Experts, Fig. 7",
        "and 100 documents less than 3",
        _against(Side("100 documents", "soups", documents(LIKE)), Side("3 documents", "soups", documents(3))),
    ),
    Finding("SIMoE, orthogonality", "masks overlap less with a larger weight β of the overlap", _overlap, _by_chance),
    Finding("SIMoE, sparsity", "the final sparsity is what was asked for, or more", _sparsity),
    Finding(
        "SIMoE, main tables",
        "above full fine-tuning of the same dense model",
        _against(Side("SIMoE", "simoe", simoe.WHOLE), Side("dense", "simoe", "dense model")),
        _by_sparsity,
    ),
)
"""Every comparison, in the order of the page."""

NOT_RUN: tuple[tuple[str, str], ...] = (
    ("FlexOlmo, Tables 1 to 3 on 24 and 31 tasks", "models of 7B parameters, and tasks that a model of 6.8M cannot do"),
    (
        "DUME, Table 3 on benchmarks",
        "experts of 3B parameters; `reg scores` normalises lm-eval's results",
    ),
    ("MergeME, Tables 1 to 4 on GSM8K, MBPP and others", "experts of 1B parameters and more"),
    ("SIMoE, tables on instruction tuning", "base models of 3B and 8B parameters and their instruction data"),
)
"""Table or figure → why it is not run at this scale."""


def lines(found: Found) -> Iterator[str]:
    """Yield the section's lines; findings whose parts are not measured are left out."""
    rows = []
    for finding in FINDINGS:
        try:
            rows.append(finding.row(found))
        except KeyError:
            continue
    if not rows:
        return
    yield "What a paper states is an order of methods, not its figures: models, text and tasks differ from ours. Of two"
    yield "rows, *here* has mean perplexities on the same text, and by how many percent the first one's is above the"
    yield "second's, with a 95 % interval: windows are drawn again in each domain, the same for both (paired"
    yield "bootstrap). The first one is to be lower. *Yes*: each interval is below 0; *no*: one is above; else *within"
    yield "noise*, which is what equal models give. Where losses of windows were not kept there is no verdict (–). An"
    yield "interval tells of other text of the same domains, not of other trainings."
    yield ""
    yield "| source | states | here | verdict |"
    yield "| --- | --- | --- | --- |"
    yield from rows
    yield ""
    yield "Not run at this scale:"
    yield ""
    yield from (f"- {what}: {why}." for what, why in NOT_RUN)
