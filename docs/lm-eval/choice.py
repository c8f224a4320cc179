"""What lm_eval calls for gsm8k_local_choice.yaml: each question gets the answers of the three that follow it."""

from typing import Any


def with_others(docs: Any) -> Any:
    """Return the documents, a `datasets.Dataset`, with `choices` (four answers) and `right`, where the own one stands."""
    answers = docs["answer"]

    def add(doc: dict[str, Any], index: int) -> dict[str, Any]:
        right = index % 4
        others = [answers[(index + step) % len(answers)] for step in (1, 2, 3)]
        return doc | {"choices": [*others[:right], doc["answer"], *others[right:]], "right": right}

    return docs.map(add, with_indices=True)
