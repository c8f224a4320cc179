"""What more than one command prints with --json: versions, compositions, figures."""

from cli.json_schema.fields import (
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
STRENGTHS = {
    "layer": whole("The layer."),
    "lams": several(number("A strength."), "Ridge strengths, absolute, ascending."),
    "errors": several(number("An error."), "Held-out error of each, squared, a token."),
    "accuracies": several(number("A share."), "Share of tokens predicted to go to their own expert, of each."),
}
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
    routing=by(
        "domain", by("expert", several(number("Share."), "By layer."), "Experts' shares of its tokens' first choices.")
    ),
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

PREVIEW = record(
    "What is foretold of a composition.",
    members=several(
        record(
            "One expert.",
            ref=REF,
            tokens=whole("Calibration tokens that it brings."),
            part=number("Its part in the routers' solve, of 1."),
            accuracy=number("Share of its tokens predicted to go to it first, mean over the layers."),
            share=number("Of all tokens, where each expert's text has as many, predicted to go to it first."),
            drowned=maybe(text("Why it is drowned out by the others; null where it is not.")),
        ),
        "The experts, in their order.",
    ),
    accuracy=number("Mean accuracy of the experts."),
    confusion=several(several(number("A share."), "An expert's text."), "Text of → goes to, mean over the layers."),
    layers=several(
        record(
            "One layer.",
            layer=whole("The layer."),
            confusion=several(several(number("A share."), "An expert's text."), "Text of → goes to."),
        ),
        "The layers that were looked at.",
    ),
    overlap=several(
        record(
            "A pair of experts.",
            experts=several(REF, "Their versions."),
            routing=number("Share of tokens that no linear router tells apart, mean over the layers."),
        ),
        "How far experts' text overlaps.",
    ),
    notes=several(text("A sentence."), "What the figures leave out."),
)
ROUTED = record(
    "A text, and where its tokens go.",
    experts=several(text("An expert."), "The experts' names, in their order."),
    shares=by("expert", number("Share of the tokens that it handles, over all layers.")),
    tokens=several(
        record(
            "A token.",
            id=whole("Its number in the vocabulary."),
            text=text("The characters it stands for; empty where it ends a character that another began."),
            special=flag("The tokenizer added it."),
            experts=several(text("An expert."), "Where it goes first, by layer."),
            weights=several(by("expert", number("Its routing weight."), "At a layer."), "Routing weights, by layer."),
            expert=text("The expert with the most weight over all layers."),
        ),
        "In the order of the text.",
    ),
)
REPORT = record(
    "Every figure of a report; null or empty where there is none, and the notes say why.",
    name=text("What the composition is called: its folder, or its members."),
    digest=digest("The composition's."),
    host=text("Its `model_type`."),
    made=maybe(text("When it was first made here, ISO 8601.")),
    recipe=by("setting", text("What it was set to.")),
    members=several(
        record(
            "One expert.",
            name=text("The expert."),
            ref=maybe(text("Its version here; null where it is not registered here, or was opted out.")),
            digest=digest("Of its content."),
            tokens=maybe(whole("Calibration tokens.")),
            license=maybe(text("Its license.")),
            drowned=maybe(text("Why it is drowned out, as far as is foretold.")),
        ),
        "The experts, in their order.",
    ),
    parameters=maybe(whole("Weights.")),
    active_parameters=maybe(whole("Weights that take part in one token.")),
    top_k=maybe(whole("Experts a token.")),
    routing=maybe(
        record(
            "Where the tokens of each domain go first.",
            measured=flag("Counted on test text; otherwise foretold from statistics."),
            layers=several(whole("A layer."), "Their numbers."),
            shares=by("domain", by("expert", several(number("A share."), "By layer."), "Shares of its tokens.")),
            load=by("expert", several(number("A share."), "Share of all tokens, by layer.")),
        )
    ),
    overlap=several(
        several({"type": ["string", "number"], "description": "Two experts and a share."}, "A pair."),
        "Expert, expert, share of tokens that routing cannot tell apart.",
    ),
    curves=several(
        record(
            "A layer's ridge strengths.",
            **STRENGTHS,
            used=number("The one that the composition has."),
        ),
        "What ridge strengths would do.",
    ),
    scores=several(
        record(
            "Scores of a model.",
            name=text("The model."),
            kind=text("What it is.", "composition", "oracle", "average", "base", "expert"),
            score=by("domain", number("Normalised: 100 is the domain's own expert.")),
            perplexity=by("domain", number("Its perplexity.")),
            average=maybe(number("Mean score, where every domain has one.")),
        ),
        "The composition first.",
    ),
    evaluated=maybe(
        record(
            "What scores and measured routing stand on.",
            at=maybe(text("When, ISO 8601; null for now.")),
            tokens=by("domain", whole("Predicted tokens.")),
            labels=by("domain", text("What its text is called.")),
        )
    ),
    lineage=several(
        record(
            "A model in the lineage.",
            id=text("What others name it by."),
            label=text("As it is shown."),
            kind=text("What it is: base, expert, composition or trained."),
            of=several(text("An id."), "What it comes from."),
            told=text("What there is to say of it."),
        ),
        "Where it comes from, and what comes from it.",
    ),
    notes=several(text("A sentence."), "What is not there, and why."),
)
