"""What more than one command prints with --json: versions, compositions, figures."""

from cli.fields import (
    by,
    digest,
    document,
    flag,
    maybe,
    number,
    plus,
    record,
    several,
    text,
    whole,
)

REF = text("The version: NAME@NUMBER.")
TIME = text("When, ISO 8601, UTC.")

STATISTICS = record(
    "What one site's statistics were taken on.",
    site=text("mlp_input, attention_input, attention_output or head_input."),
    tokens=whole("Calibration tokens."),
    saturated=whole("Activations that were held at their bound."),
    calibration_digest=digest("Of the calibration tokens."),
    calibration_label=text("What the calibration is called."),
)
VERSION = record(
    "A registered version.",
    ref=REF,
    name=text("Its name."),
    kind=text("What it is.", "expert", "base"),
    number=whole("Its number under that name."),
    digest=digest("Of its content."),
    content=maybe(document("What its digest is taken over, beside its arrays (docs/formats.md); null once purged.")),
    parameters=whole("Weights, tied ones once."),
    state=text("Whether it can be composed.", "active", "withdrawn", "purged"),
    created_at=text("When it was registered, ISO 8601, UTC."),
    withdrawn_at=maybe(text("When it was opted out.")),
    purged_at=maybe(text("When its arrays were deleted.")),
    aliases=several(text("An alias, without the name."), "Its aliases, without the name."),
    tags=by("key", text("The tag's value."), "Its tags."),
    statistics=several(STATISTICS, "What its statistics were taken on, one a site; none of a base model."),
)
RELATION = record(
    "Its distance to a registered version of its shape.",
    ref=REF,
    kind=text("What that is.", "expert", "base"),
    verdict=text("What follows from the distance.", "same weights", "same base", "unrelated"),
    distance=number("The median over the matrices; 0 is the same, 1 chance."),
    tensors=by("tensor", number("Its distance, from 0 to √2."), "The distance of each tensor."),
)
OVERLAP = record(
    "How far its tokens overlap with those of a registered expert.",
    ref=REF,
    routing=number("Share of tokens that no linear router tells apart, mean over the layers, from 0 to 1."),
    layers=several(
        record(
            "One layer.",
            layer=whole("The layer."),
            distance=maybe(number("Mahalanobis distance of the means, in standard deviations; null where infinite.")),
            routing=number("Share of tokens that no linear router tells apart."),
            subspace=number("Mean squared cosine of the angles between the leading directions, from 0 to 1."),
        ),
        "The layers that were compared.",
    ),
)
RELATIONS = several(RELATION, "Distances to registered versions of its shape, the nearest first.")
OVERLAPS = several(OVERLAP, "Overlaps with registered experts, the most alike first.")
REGISTRATION = plus(
    VERSION,
    added=flag("False where this content was registered already."),
    self_sampled=flag("No data was given, so the expert wrote its calibration text."),
    relations=RELATIONS,
    overlaps=OVERLAPS,
)
CONTENT = record("A member, by content.", name=text("Its name."), digest=digest("Of its content."))
COMPOSED = {
    "format": whole("Of this document, as composition.json has it (docs/formats.md)."),
    "host": text("The `model_type` that carries it."),
    "recipe": document("The recipe, every default spelled out (docs/formats.md)."),
    "members": several(CONTENT, "The members, in the order of the experts."),
    "base": maybe(record("The base model, where it takes part.", name=text("Its name."), digest=digest("Of it."))),
}
PUSHED = record(
    "What a push did.",
    repo_id=text("ORG/NAME."),
    revision=text("The branch, or the pull request: refs/pr/N."),
    endpoint=text("The Hub."),
    commit=text("The commit that holds it."),
    url=text("Where a person sees it."),
    added=flag("False where all of it was there already."),
    nbytes=whole("Of all files."),
)
COMPOSE = record(
    "The composition that was written, or with --plan the one that would be.",
    **COMPOSED,
    digest=digest("Of the five fields above: the composition's own."),
    versions=several(REF, "The members' versions."),
    dtype=text("What the weights are written in."),
    parameters=whole("Weights, tied ones once."),
    active_parameters=whole("Weights that take part in one token."),
    bytes=whole("Of the files of weights."),
    peak_bytes=whole("Memory needed at most, about, beyond the program itself."),
    out=maybe(text("The folder that was written; null with --plan.")),
    pushed=maybe(PUSHED),
)
DOMAINS = {
    "perplexity": by("domain", number("exp of the mean negative log-likelihood of a token.")),
    "score": by("domain", number("100 · perplexity of the domain's own expert / perplexity.")),
}
SPREAD = record(
    "Standard deviations over the seeds of a method that draws at random.",
    seeds=whole("How many."),
    **DOMAINS,
    average=maybe(number("Of the average score.")),
)
ROW = record(
    "One model's figures.",
    name=text("What it is called in the table."),
    **DOMAINS,
    tokens=by("domain", whole("Tokens that the figures stand on.")),
    accuracy=by(
        "domain", several(number("Share."), "Share of its tokens whose first choice is its own expert, by layer.")
    ),
    load=by("expert", several(number("Share."), "Its share of all tokens, by layer.")),
    parameters=maybe(whole("Weights.")),
    active_parameters=maybe(whole("Weights that take part in one token.")),
    relative_time=maybe(number("Time a token, divided by a dense expert's; with --speed.")),
    spread=maybe(SPREAD),
    average=maybe(number("Mean score, where every domain has one.")),
    overall_accuracy=by("domain", number("Mean over the layers.")),
    overall_load=by("expert", number("Mean over the layers.")),
)
COMPOSITION = record(
    "A composition that was made.",
    digest=digest("Its digest."),
    document=document("What the digest is taken over: recipe, host, members, base (docs/formats.md)."),
    created_at=text("When it was first made, ISO 8601, UTC."),
    members=several(REF, "The versions it was made from, a base model included."),
    folders=several(text("A folder."), "The folders that the log says it was written to."),
)
EVALUATION = record(
    "What an evaluation found.",
    asked=digest("Of data and settings."),
    evaluated_at=text("When, ISO 8601, UTC."),
    data=by("domain", document("Its text: label, digest, tokens.")),
    settings=document("How it was scored: windows, seq_len, batch_size, device, dtype."),
    figures=ROW,
    oracle=maybe(document("The same fields, with every token sent to its domain's own expert.")),
)
SHOWN_VERSION = plus(
    VERSION,
    bytes=by("role", whole("Bytes of its arrays of that role.")),
    compositions=several(digest("A composition's."), "The compositions made from it."),
    relations=RELATIONS,
)
SHOWN_COMPOSITION = plus(
    COMPOSITION, evaluations=several(EVALUATION, "What reg evaluate found of it, the latest first.")
)
OPTED_OUT = record(
    "A version that the opt-out concerns.",
    ref=REF,
    digest=digest("Of its content."),
    withdrawn_at=text("When it was withdrawn."),
    purged_at=maybe(text("When its arrays were deleted.")),
)
PUSH_RECORD = record(
    "A push that was begun.",
    repo=text("ORG/NAME."),
    revision=text("The branch, or the pull request."),
    endpoint=text("The Hub."),
    commit=maybe(text("The commit; null where none is known.")),
)
