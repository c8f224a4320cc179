"""Bytes and operations of an expert and of a registry of many, from their shapes alone.

Shapes: H hidden size, L layers, T calibration tokens. A number of statistics takes 8 bytes (packed int64).
"""

from dataclasses import dataclass

GIGABYTE, TERABYTE = 10**9, 10**12

WEIGHT_BYTES, SUM_BYTES = 2, 8
"""Bytes of a weight in bfloat16, and of a number of the statistics."""


@dataclass(frozen=True)
class Shape:
    """A decoder of the Llama family.

    Attributes:
        name: its name in tables.
        hidden: H.
        layers: L.
        intermediate: channels inside the MLP.
        heads: query heads.
        kv_heads: key and value heads.
        head_dim: channels of a head.
        vocab: rows of the embedding.
        tied: the head is the embedding.
    """

    name: str
    hidden: int
    layers: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool = False

    @property
    def mlp(self) -> int:
        """Weights of all MLPs."""
        return 3 * self.hidden * self.intermediate * self.layers

    @property
    def attention(self) -> int:
        """Weights of all attention maps."""
        return 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim * self.layers

    @property
    def trunk(self) -> int:
        """Weights outside the MLPs: embedding, head, attention and norms."""
        tables = (1 if self.tied else 2) * self.vocab * self.hidden
        return tables + self.attention + (2 * self.layers + 1) * self.hidden

    @property
    def weights(self) -> int:
        """All weights."""
        return self.trunk + self.mlp

    def grams(self, sites: str = "all") -> list[int]:
        """Return the channels H of the Gram of each site and layer, as `PassSettings.sites` says."""
        if sites == "router":
            return [self.hidden] * self.layers
        return [self.hidden, self.hidden, self.heads * self.head_dim] * self.layers + [self.hidden]

    def sums(self, sites: str = "all") -> int:
        """Return the numbers of the statistics: the upper triangle of each (H + 1, H + 1)."""
        return sum(map(_triangle, self.grams(sites)))

    def pass_products(self, tokens: int) -> int:
        """Return the multiplications of the forward pass over `tokens` up to the last norm, attention scores apart."""
        return (self.mlp + self.attention) * tokens

    def gram_products(self, tokens: int, sites: str = "all") -> int:
        """Return the multiplications of the Grams over `tokens`: T (H + 1)² each."""
        return sum(tokens * (channels + 1) ** 2 for channels in self.grams(sites))

    def solve_products(self, members: int) -> int:
        """Return the multiplications in float64 of RegMean's trunk and of the routers.

        Of each linear map W (R, H) of the attention and of the head: W_e G_e of every member, one Cholesky
        factorisation of H³ / 6 for each Gram, and two triangular solves of R rows.
        """
        hidden, heads = self.hidden, self.heads * self.head_dim
        rows = heads + 2 * self.kv_heads * self.head_dim
        of_inputs = members * rows * hidden**2 + hidden**3 // 6 + rows * hidden**2
        of_outputs = members * hidden * heads**2 + heads**3 // 6 + hidden * heads**2
        of_router = hidden**3 // 6 + members * hidden**2
        of_head = 0 if self.tied else (members + 1) * self.vocab * hidden**2 + hidden**3 // 6
        return self.layers * (of_inputs + of_outputs + of_router) + of_head


LLAMA_8B = Shape("8B", 4096, 32, 14_336, 32, 8, 128, 128_256)
LLAMA_70B = Shape("70B", 8192, 80, 28_672, 64, 8, 128, 128_256)


@dataclass(frozen=True)
class Rates:
    """What one worker does in a second, measured (`rates.py`), and what storage and catalog do for all of them.

    Attributes:
        hashed: bytes of a checkpoint that are read and hashed.
        stored: bytes that are written to the array store, flushed, read back and checked.
        passed: multiplications of a forward pass.
        grams: multiplications of exact Grams.
        composed: bytes of a composed folder that are copied from the store, hashed and flushed.
        solved: multiplications in float64.
        compressed: bytes of statistics on disk, as a share of packed int64.
        added: registrations that the catalog takes, one writer after another.
        listed: answers of the catalog to `list` of 20 versions.
    """

    hashed: float
    stored: float
    passed: float
    grams: float
    composed: float
    solved: float
    compressed: float
    added: float
    listed: float


@dataclass(frozen=True)
class Step:
    """One step of a command, and its seconds."""

    name: str
    seconds: float


def weight_bytes(shape: Shape) -> int:
    """Return the bytes of an expert's weights."""
    return WEIGHT_BYTES * shape.weights


def stored_bytes(shape: Shape, rates: Rates, experts: int, *, shared_trunk: bool = False, sites: str = "all") -> float:
    """Return the bytes in the array store of a base model and `experts`.

    Args:
        shape: of all of them.
        rates: for the compression of statistics.
        experts: how many.
        shared_trunk: all kept the trunk of the base model, which is stored once.
        sites: of the statistics.
    """
    own = shape.mlp if shared_trunk else shape.weights
    statistics = SUM_BYTES * shape.sums(sites) * rates.compressed
    return weight_bytes(shape) + experts * (WEIGHT_BYTES * own + statistics)


def registering(shape: Shape, rates: Rates, tokens: int, sites: str = "all") -> list[Step]:
    """Return the steps of registering one expert on one worker."""
    size = weight_bytes(shape)
    return [
        Step("hashing", size / rates.hashed),
        Step("forward pass", shape.pass_products(tokens) / rates.passed),
        Step("Grams", shape.gram_products(tokens, sites) / rates.grams),
        Step("storing", (size + SUM_BYTES * shape.sums(sites)) / rates.stored),
    ]


def composed_bytes(shape: Shape, members: int) -> int:
    """Return the bytes of a mixture: one trunk, and the MLPs of its members."""
    return WEIGHT_BYTES * (shape.trunk + members * shape.mlp)


def composing(shape: Shape, rates: Rates, members: int) -> list[Step]:
    """Return the steps of composing by the default trunk on one worker, the members' products not in the cache."""
    return [
        Step("solving", shape.solve_products(members) / rates.solved),
        Step("copying", composed_bytes(shape, members) / rates.composed),
    ]


def in_parallel(steps: list[Step], tasks: int, workers: int, moved: float, bandwidth: float) -> tuple[float, str]:
    """Return the seconds of `tasks` tasks on `workers` workers, and what holds them up.

    Args:
        steps: of one task.
        tasks: how many; each worker does one at a time.
        workers: how many.
        moved: bytes that all tasks together read from storage and write to it.
        bandwidth: bytes in a second that storage serves to all workers together.
    """
    rounds = -(-tasks // workers)
    of_workers = rounds * sum(step.seconds for step in steps)
    if moved / bandwidth > of_workers:
        return moved / bandwidth, "storage"
    return of_workers, max(steps, key=lambda step: step.seconds).name


def _triangle(channels: int) -> int:
    return (channels + 1) * (channels + 2) // 2
