"""Sites: the points in the network where statistics are collected."""

MLP_INPUT = "mlp_input"
"""Input of a layer's MLP, and so of the router that replaces it."""

ATTENTION_INPUT = "attention_input"
"""Input of a layer's query, key and value projections."""

ATTENTION_OUTPUT = "attention_output"
"""Input of the output projection of a layer's attention: the concatenated outputs of the heads."""

HEAD_INPUT = "head_input"
"""Input of the output head; there is one in the network, counted as layer 0."""

TOKEN_COUNTS = "token_counts"
"""Occurrences of each token in the calibration, stored beside the sites."""

CONTENT_COUNTS = "content_counts"
"""Occurrences of each token that are evidence of the expert: in more windows of the same text, and of messages in their
contents alone. Where a version has none, its token counts are the evidence."""

PAIR_COUNTS = "pair_counts"
"""Pairs of tokens, one after the other, that occur at least twice in what `CONTENT_COUNTS` counts, and how often."""

CONTENTS, ALL_TEXT = "contents", "text"
"""Values of `evidence` in the settings of statistics that have counts of contents: what they are counts of. Beside it
`evidence_text` is the digest of the tokens where these are more than those of the calibration, and of contents
`evidence_documents` how many characters in a thousand are of no conversation, if any."""

COUNTS = "counts"
"""The key of `SITES` that counts tokens alone, without a forward pass."""

SITES: dict[str, tuple[str, ...]] = {
    "all": (MLP_INPUT, ATTENTION_INPUT, ATTENTION_OUTPUT, HEAD_INPUT),
    "router": (MLP_INPUT,),
    COUNTS: (),
}
"""Sites that statistics are collected at: those that any method needs, those that routers need, or none. Tokens are
counted in any case."""
