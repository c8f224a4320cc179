"""Proves: the arithmetic of docs/scale.md is that of a registered expert, and its tables come from the last rates."""

import math

from benchmarks.scale.__main__ import load
from benchmarks.scale.arithmetic import LLAMA_8B, LLAMA_70B, SUM_BYTES, WEIGHT_BYTES, Shape, Step, in_parallel
from benchmarks.scale.page import PAGE, rewritten, tables
from registry import Registry


def test_tables_are_those_of_the_last_rates() -> None:
    text = PAGE.read_text()
    assert rewritten(text, tables(*load())) == text


def test_shapes_give_the_bytes_of_a_registered_expert(filled: Registry) -> None:
    version = filled.resolve("math")
    assert version.content is not None
    links, sizes = filled.arrays_of(version), version.content["architecture"]
    shape = Shape(
        "math",
        sizes["hidden_size"],
        sizes["num_hidden_layers"],
        sizes["intermediate_size"],
        sizes["num_attention_heads"],
        sizes["num_key_value_heads"],
        sizes["head_dim"],
        sizes["vocab_size"],
        sizes["tie_word_embeddings"],
    )
    width = 4 if version.content["dtype"] == "float32" else WEIGHT_BYTES
    stored = {role: sum(link.nbytes for link in links if link.role == role) for role in ("mlp", "trunk")}
    assert stored == {"mlp": width * shape.mlp, "trunk": width * shape.trunk}
    assert version.parameters == shape.weights
    grams = [link for link in links if link.role == "statistics" and "/gram/" in link.name]
    assert sum(link.nbytes for link in grams) == SUM_BYTES * shape.sums()
    assert len(grams) == len(shape.grams())


def test_shapes_have_the_weights_of_their_models() -> None:
    assert (LLAMA_8B.weights, LLAMA_70B.weights) == (8_030_261_248, 70_553_706_496)


def test_workers_are_held_up_by_the_longest_step_or_by_storage() -> None:
    steps = [Step("short", 1.0), Step("long", 9.0)]
    assert in_parallel(steps, 16, 8, 0, 1) == (20.0, "long")
    assert in_parallel(steps, 17, 8, 0, 1) == (30.0, "long")
    assert in_parallel(steps, 16, 8, 1000, 10) == (100.0, "storage")
    assert math.isclose(in_parallel(steps, 1, 1, 0, 1)[0], 10.0)
