"""Routing methods of ensembles: how the members' predictions are weighted."""

from dataclasses import dataclass

from registry.composition.method import Work
from registry.methods.works import BTM, MERGEME

POSTERIOR, PERPLEXITY, PROMPT_PERPLEXITY, TASK_VECTOR = "posterior", "perplexity", "prompt-perplexity", "task-vector"
LOGITS = "logits"
"""Mixing of logits, which has a modelling file of its own, as `PROMPT_PERPLEXITY` has."""


@dataclass(frozen=True)
class Routing:
    """How an ensemble weights its members.

    Attributes:
        meaning: where the weights come from, for the model card.
        words: the same in lists and forms.
        works: its sources.
        needs_base: the base model is in the folder, whole.
        by_first_tokens: the first tokens decide for the rest, in which only chosen members run.
    """

    meaning: str
    words: str
    works: tuple[Work, ...]
    needs_base: bool = False
    by_first_tokens: bool = False


ROUTINGS = {
    POSTERIOR: Routing(
        "p(expert | text so far) by Bayes' rule (Branch-Train-Merge, section 2)",
        "weighted by how well each predicts the text so far",
        (BTM,),
    ),
    PERPLEXITY: Routing(
        "softmax of the negative perplexity on the text so far (MergeME, section 3.1.3)",
        "weighted by perplexity",
        (MERGEME,),
    ),
    PROMPT_PERPLEXITY: Routing(
        "softmax of one over the perplexity on the first tokens (MergeME, section 3.1.3)",
        "weighted by perplexity on the prompt",
        (MERGEME,),
        by_first_tokens=True,
    ),
    TASK_VECTOR: Routing(
        "softmax of the cosine between the base model's negative gradient on the first tokens and the task vector "
        "(MergeME, section 3.1.3)",
        "weighted by task vectors",
        (MERGEME,),
        needs_base=True,
        by_first_tokens=True,
    ),
}
"""Value of `--routing` → what it is."""
