"""The tables of `docs/scale.md`, written between its marks."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.scale.arithmetic import (
    GIGABYTE,
    LLAMA_8B,
    LLAMA_70B,
    SUM_BYTES,
    TERABYTE,
    WEIGHT_BYTES,
    Rates,
    Shape,
    Step,
    composed_bytes,
    composing,
    in_parallel,
    registering,
    stored_bytes,
    weight_bytes,
)
from benchmarks.scale.rates import Check

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
SHAPES = (LLAMA_8B, LLAMA_70B)
EXPERTS, MEMBERS, TOKENS = 1000, 8, 24_576
WORKERS = (1, 8, 64)

BANDWIDTH = 10 * GIGABYTE
"""Bytes in a second that storage is assumed to serve to all workers together."""

INT32, LOW_RANK = 4, 1024
"""Bytes of a shorter number, and rank of a shorter form, that the page weighs."""


def rewritten(text: str, tables: dict[str, str]) -> str:
    """Return the page with each table between its marks replaced.

    Raises:
        ValueError: a mark is missing.
    """
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        if begin not in text or end not in text:
            raise ValueError(f"{PAGE.name} lacks the marks of {name}")
        before, rest = text.split(begin, 1)
        text = f"{before}{begin}\n{table}\n\n{end}{rest.split(end, 1)[1]}"
    return text


def tables(rates: Rates, checks: Sequence[Check]) -> dict[str, str]:
    """Return every table by the name of its marks."""
    return {
        "expert": _of_expert(rates),
        "registry": _of_registry(rates),
        "forms": _of_forms(rates),
        "steps": _of_steps(rates),
        "workers": _of_workers(rates),
        "catalog": _of_catalog(rates),
        "rates": _of_rates(rates),
        "check": _of_check(checks),
    }


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _of_expert(rates: Rates) -> str:
    def row(shape: Shape) -> list[str]:
        sums = SUM_BYTES * shape.sums()
        return [
            shape.name,
            _billions(shape.weights),
            _bytes(weight_bytes(shape)),
            _bytes(WEIGHT_BYTES * shape.mlp),
            f"{len(shape.grams()) + shape.layers:,}",
            _bytes(sums),
            _bytes(sums * rates.compressed),
            _bytes(SUM_BYTES * shape.sums("router") * rates.compressed),
        ]

    header = ["expert", "weights", "bytes", "of MLPs", "Grams", "packed int64", "on disk", "on disk, `--sites router`"]
    return _table(header, map(row, SHAPES))


def _of_registry(rates: Rates) -> str:
    header = [f"{EXPERTS:,} experts of", "in the store", "with the base model's trunk", "saved by sharing trunks"]
    rows = []
    for shape in SHAPES:
        whole = stored_bytes(shape, rates, EXPERTS)
        shared = stored_bytes(shape, rates, EXPERTS, shared_trunk=True)
        rows.append([shape.name, _bytes(whole), _bytes(shared), f"{100 * (1 - shared / whole):.0f} %"])
    return _table(header, rows)


def _of_forms(rates: Rates) -> str:
    header = ["statistics of one expert", *(shape.name for shape in SHAPES)]
    forms: dict[str, Callable[[Shape], float]] = {
        "packed int64, as stored": lambda shape: SUM_BYTES * shape.sums() * rates.compressed,
        "packed int32": lambda shape: INT32 * shape.sums(),
        f"rank {LOW_RANK:,} in float32": lambda shape: sum(4 * LOW_RANK * (width + 1) for width in shape.grams()),
        f"the {TOKENS:,} inputs in int16": lambda shape: sum(2 * TOKENS * width for width in shape.grams()),
    }
    return _table(header, [[name, *(_bytes(form(shape)) for shape in SHAPES)] for name, form in forms.items()])


def _of_steps(rates: Rates) -> str:
    header = ["one worker", *(shape.name for shape in SHAPES)]
    columns = [
        [*registering(shape, rates, TOKENS), *(_renamed(step) for step in composing(shape, rates, MEMBERS))]
        for shape in SHAPES
    ]
    return _table(
        header, [[steps[0].name, *(_time(step.seconds) for step in steps)] for steps in zip(*columns, strict=True)]
    )


def _renamed(step: Step) -> Step:
    return Step(f"composing {MEMBERS}: {step.name}", step.seconds)


def _of_workers(rates: Rates) -> str:
    header = ["", *(f"{count} worker{'s' if count > 1 else ''}" for count in WORKERS)]
    rows = []
    for shape in SHAPES:
        steps = registering(shape, rates, TOKENS)
        # A checkpoint is read, its arrays are written and read back.
        moved = EXPERTS * (2 * weight_bytes(shape) + stored_bytes(shape, rates, 1) - weight_bytes(shape))
        of = [in_parallel(steps, EXPERTS, workers, moved, BANDWIDTH) for workers in WORKERS]
        rows.append([f"register {EXPERTS:,} of {shape.name}", *(f"{_time(seconds)}, {why}" for seconds, why in of)])
        # A mixture's shards are tasks; its solutions too, layer by layer.
        parts = [Step(step.name, step.seconds / shape.layers) for step in composing(shape, rates, MEMBERS)]
        moved = 2 * composed_bytes(shape, MEMBERS)
        of = [in_parallel(parts, shape.layers, workers, moved, BANDWIDTH) for workers in WORKERS]
        rows.append([f"compose {MEMBERS} of {shape.name}", *(f"{_time(seconds)}, {why}" for seconds, why in of)])
    return _table(header, rows)


def _of_catalog(rates: Rates) -> str:
    rows = []
    for shape in SHAPES:
        seconds = sum(step.seconds for step in registering(shape, rates, TOKENS))
        rows.append([shape.name, *(f"{workers / seconds:.2g}" for workers in WORKERS), f"{seconds * rates.added:,.0f}"])
    header = ["registrations in a second", *map(str, WORKERS), "workers that fill the catalog"]
    return _table(header, rows)


def _of_rates(rates: Rates) -> str:
    return _table(
        ["one worker in a second", "measured"],
        [
            ["hashing a checkpoint", f"{rates.hashed / GIGABYTE:.2f} GB"],
            ["storing arrays: write, flush, read back, check", f"{rates.stored / GIGABYTE:.2f} GB"],
            ["forward pass, in the dtype that `auto` chooses", f"{rates.passed / 1e9:,.0f} billion multiplications"],
            ["exact Grams", f"{rates.grams / 1e9:,.0f} billion multiplications"],
            ["solving in float64", f"{rates.solved / 1e9:,.0f} billion multiplications"],
            ["composing with trunk mean: copy, hash, flush", f"{rates.composed / GIGABYTE:.2f} GB"],
            ["catalog: registrations of 416 arrays", f"{rates.added:.1f}"],
            ["catalog: lists of 20 versions", f"{rates.listed:,.0f}"],
            ["statistics on disk, as a share of packed int64", f"{100 * rates.compressed:.0f} %"],
        ],
    )


def _of_check(checks: Sequence[Check]) -> str:
    return _table(
        ["step of the large model", "from the rates", "measured", "ratio"],
        [[c.name, f"{c.predicted:.2f} s", f"{c.measured:.2f} s", f"{c.measured / c.predicted:.2f}"] for c in checks],
    )


def _billions(weights: int) -> str:
    return f"{weights / 1e9:.2f} billion"


def _bytes(count: float) -> str:
    for unit, size in (("PB", 1000 * TERABYTE), ("TB", TERABYTE), ("GB", GIGABYTE)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 1000 * size else f"{count / size:,.0f} {unit}"
    return f"{count / 10**6:.3g} MB"


def _time(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}" if seconds < 1000 * size else f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
