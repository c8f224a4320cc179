"""Citations of a composition's methods as BibTeX: the paper of the idea itself, and those of its recipe."""

from collections.abc import Mapping
from typing import Any

_WORKS = {
    "fani2026dume": (
        "Fanì, Eros and Ersoy, Oğuzhan",
        "Training-Free Dynamic Upcycling of Expert Language Models",
        "2603.29765",
    ),
    "sukhbaatar2024btx": (
        "Sukhbaatar, Sainbayar and Golovneva, Olga and Sharma, Vasu and others",
        "Branch-Train-MiX: Mixing Expert LLMs into a Mixture-of-Experts LLM",
        "2403.07816",
    ),
    "jin2022regmean": (
        "Jin, Xisen and Ren, Xiang and Preoţiuc-Pietro, Daniel and Cheng, Pengxiang",
        "Dataless Knowledge Fusion by Merging Weights of Language Models",
        "2212.09849",
    ),
    "yadav2023ties": (
        "Yadav, Prateek and Tam, Derek and Choshen, Leshem and Raffel, Colin and Bansal, Mohit",
        "TIES-Merging: Resolving Interference When Merging Models",
        "2306.01708",
    ),
    "yu2023dare": (
        "Yu, Le and Yu, Bowen and Yu, Haiyang and Huang, Fei and Li, Yongbin",
        "Language Models are Super Mario: Absorbing Abilities from Homologous Models as a Free Lunch",
        "2311.03099",
    ),
    "ilharco2022arithmetic": (
        "Ilharco, Gabriel and Ribeiro, Marco Tulio and Wortsman, Mitchell and others",
        "Editing Models with Task Arithmetic",
        "2212.04089",
    ),
    "zhou2025mergeme": (
        "Zhou, Yuhang and Karamanolakis, Giannis and Soto, Victor and others",
        "MergeME: Model Merging Techniques for Homogeneous and Heterogeneous MoEs",
        "2502.00997",
    ),
    "shi2025flexolmo": (
        "Shi, Weijia and Bhagia, Akshita and Farhat, Kevin and others",
        "FlexOlmo: Open Language Models for Flexible Data Use",
        "2507.07024",
    ),
    "ablin2025soup": (
        "Ablin, Pierre and Katharopoulos, Angelos and Seto, Skyler and Grangier, David",
        "Soup-of-Experts: Pretraining Specialist Models via Parameters Averaging",
        "2502.01804",
    ),
    "chen2025simoe": (
        "Chen, Shengzhuang and Wei, Ying and Schwarz, Jonathan Richard",
        "Automatic Expert Discovery in LLM Upcycling via Sparse Interpolated Mixture-of-Experts",
        "2506.12597",
    ),
    "louizos2018sparse": (
        "Louizos, Christos and Welling, Max and Kingma, Diederik P.",
        "Learning Sparse Neural Networks through L0 Regularization",
        "1712.01312",
    ),
    "wortsman2022soups": (
        "Wortsman, Mitchell and Ilharco, Gabriel and Gadre, Samir Yitzhak and others",
        "Model soups: averaging weights of multiple fine-tuned models improves accuracy",
        "2203.05482",
    ),
    "li2022btm": (
        "Li, Margaret and Gururangan, Suchin and Dettmers, Tim and others",
        "Branch-Train-Merge: Embarrassingly Parallel Training of Expert Language Models",
        "2208.03306",
    ),
    "komatsuzaki2022upcycling": (
        "Komatsuzaki, Aran and Puigcerver, Joan and Lee-Thorp, James and others",
        "Sparse Upcycling: Training Mixture-of-Experts from Dense Checkpoints",
        "2212.05055",
    ),
    "su2021roformer": (
        "Su, Jianlin and Lu, Yu and Pan, Shengfeng and Murtadha, Ahmed and others",
        "RoFormer: Enhanced Transformer with Rotary Position Embedding",
        "2104.09864",
    ),
}
"""Key → authors, title, number of the preprint on arXiv."""

_PRINTED = {
    "maron1961indexing": (
        "Maron, M. E.",
        "Automatic Indexing: An Experimental Inquiry",
        "Journal of the ACM 8(3), 404–417",
        1961,
    ),
    "lewis1998naive": (
        "Lewis, David D.",
        "Naive (Bayes) at Forty: The Independence Assumption in Information Retrieval",
        "European Conference on Machine Learning, 4–15",
        1998,
    ),
}
"""Key → authors, title, where it appeared, year, of works that are not on arXiv."""

_DUME = "fani2026dume"
_TRUNKS = {
    "mean": ("sukhbaatar2024btx",),
    "regmean": ("jin2022regmean",),
    "ties": ("yadav2023ties", "zhou2025mergeme"),
    "dare": ("yu2023dare", "zhou2025mergeme"),
    "task-arithmetic": ("ilharco2022arithmetic", "zhou2025mergeme"),
}
_ROUTERS = {
    "context": ("maron1961indexing", "lewis1998naive", "su2021roformer"),
    "domain-embedding": ("shi2025flexolmo",),
    "anchored": ("shi2025flexolmo",),
    "random": ("sukhbaatar2024btx",),
}
_ROUTINGS = {
    "posterior": ("li2022btm",),
    "perplexity": ("zhou2025mergeme",),
    "prompt-perplexity": ("zhou2025mergeme",),
    "task-vector": ("zhou2025mergeme",),
}


def cited(recipe: Mapping[str, Any], *, of_copies: bool = False) -> list[str]:
    """Return the keys of the works to cite for a recipe's document, DUME's first.

    Args:
        recipe: the document.
        of_copies: the experts are copies of one base model.
    """
    if recipe["to"] == "simoe":
        return ["chen2025simoe", "louizos2018sparse"]
    keys = [_DUME, *(["komatsuzaki2022upcycling"] if of_copies else [])]
    keys += _ROUTINGS.get(str(recipe.get("routing")), ())
    keys += ["zhou2025mergeme"] if recipe["to"] == "hetero" else []
    keys += ["shi2025flexolmo"] if recipe.get("mixing") == "logits" else []
    keys += _ROUTERS.get(str(recipe.get("router")), ())
    if recipe["to"] == "dense":
        keys.append("wortsman2022soups")
        if len(set(recipe["weights"].values())) > 1:  # as a soup for documents, or for the wanted share of each
            keys.append("ablin2025soup")
    if recipe["to"] != "dense" or recipe["trunk"] != "mean":
        keys += _TRUNKS.get(str(recipe.get("trunk")), ())
    if recipe.get("coefficients"):
        keys.append("ablin2025soup")
    return list(dict.fromkeys(keys))


def bibtex(keys: list[str]) -> str:
    """Return works as BibTeX."""
    entries = []
    for key in keys:
        if key in _PRINTED:
            authors, title, where, year = _PRINTED[key]
            entries.append(
                f"@misc{{{key},\n  author = {{{authors}}},\n  title = {{{title}}},\n  year = {{{year}}},\n"
                f"  howpublished = {{{where}}}\n}}"
            )
            continue
        authors, title, number = _WORKS[key]
        entries.append(
            f"@misc{{{key},\n  author = {{{authors}}},\n  title = {{{title}}},\n  year = {{20{number[:2]}}},\n"
            f"  eprint = {{{number}}},\n  archivePrefix = {{arXiv}}\n}}"
        )
    return "\n\n".join(entries)
