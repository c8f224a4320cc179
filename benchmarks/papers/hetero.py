"""MergeME's Table 4: experts of different architectures in one model, against each of them."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks.papers.bench import BASE, Bench, Figures, fresh, kept, register_base
from benchmarks.papers.tables import Found, table
from registry import ExpertTraining, MixtureTraining, Recipe, Registry

WIDE, NARROW = "math", "german"
"""The domain of an expert of SHARED, and that of a narrower and shallower model trained from random weights."""
MIXED, TRAINED = "heterogeneous mixture", "heterogeneous mixture, then trained"
TIMES = 8
"""Tokens of the narrow model, in those of an expert."""


def narrow_model(bench: Bench) -> Path:
    """Write a model of half the width and half the depth, with random weights and the same tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    base, folder = bench.shared / "experts" / BASE, fresh(bench, "narrow")
    config = AutoConfig.from_pretrained(base)
    heads = max(1, config.num_attention_heads // 2)
    config.update(
        {
            "hidden_size": config.hidden_size // 2,
            "intermediate_size": config.intermediate_size // 2,
            "num_attention_heads": heads,
            "num_key_value_heads": min(heads, config.num_key_value_heads),
            "num_hidden_layers": max(1, config.num_hidden_layers // 2),
        }
    )
    if hasattr(config, "layer_types") and config.layer_types:
        config.layer_types = config.layer_types[: config.num_hidden_layers]
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    for file in base.glob("*token*"):
        shutil.copy(file, folder)
    return folder


def hetero(bench: Bench) -> Figures:
    """Compose an expert of SHARED and a narrow one, train the composition, and score all four on both domains."""
    folders = {"wide expert": bench.shared / "experts" / WIDE}
    with Registry(bench.work / f"hetero-{bench.tokens}") as registry:
        names = register_base(registry, bench)
        if "narrow" not in names:
            registry.add_base("narrow", narrow_model(bench))
        if WIDE not in names:
            text = [bench.text(WIDE, "train")]
            registry.add_expert(WIDE, folders["wide expert"], data=text, keep_calibration=True)
        if NARROW not in names:
            text = [bench.text(NARROW, "train")]
            settings = ExpertTraining(**bench.training(TIMES) | {"lr": 1e-3}, trunk="free")
            registry.train_expert(NARROW, "narrow", text, settings, keep_calibration=True)
        folders |= {"narrow expert": fresh(bench, "narrow-expert"), MIXED: fresh(bench, "hetero")}
        folders[TRAINED] = fresh(bench, "hetero-trained")
        registry.export(NARROW, folders["narrow expert"])
        registry.compose([WIDE, NARROW], folders[MIXED], Recipe(to="hetero", top_k=2))
        data = [str(bench.text(domain, "train")) for domain in (WIDE, NARROW)]
        done = registry.train(folders[MIXED], folders[TRAINED], data, MixtureTraining("all", **bench.mixed_training()))
        print(f"{TRAINED}: {done.before:.4f}, {done.after:.4f}", flush=True)
        tests = bench.tests([WIDE, NARROW], general=False)
        found = registry.evaluate(list(folders.values()), tests, bench.settings)
    of = {row.name: row for row in found}
    return kept({name: of[folder.name] for name, folder in folders.items()})


def section(found: Found) -> Iterator[str]:
    """Yield the lines of the section on different architectures."""
    if "hetero" not in found:
        return
    yield "The wide expert is the one of `../shared/experts` for the first domain. The narrow one has half its width"
    yield "and depth, and was trained from random weights on the second, on eight times the tokens above. The mixture"
    yield "has one embedding and one head for both (`--to hetero`), and weighs them by a text's first 32 tokens. The"
    yield "last row then had all its weights trained (`reg train --train all`), as in the paper: on text of both,"
    yield "as many tokens as above. The paper begins with averages of padded embeddings and random projectors, and its"
    yield "router reads the whole text."
    yield ""
    yield from table(found["hetero"]["rows"])


PARTS = {"hetero": hetero}
