"""Schemas that several commands share: versions, compositions, scores."""

from cli.json_schema.fields import (
    by,
    digest,
    document,
    flag,
    maybe,
    number,
    optional,
    plus,
    record,
    several,
    text,
    whole,
)

REF = text("The reference of a version: NAME@NUMBER.")
TIME = text("The time, ISO 8601, UTC.")

STATISTICS = record(
    "The data of one site's statistics.",
    site=text("mlp_input, attention_input, attention_output or head_input; token_counts if only tokens were counted."),
    tokens=whole("Calibration tokens."),
    saturated=whole("Activations that were clipped at their bound."),
    calibration_digest=digest("The digest of the calibration tokens."),
    calibration_label=text("The label of the calibration."),
)
VERSION = record(
    "A registered version.",
    ref=REF,
    name=text("Its name."),
    kind=text("The kind of version.", "expert", "base"),
    number=whole("Its number under that name."),
    digest=digest("The digest of its content."),
    content=maybe(document("The content of its digest, besides its arrays (docs/formats.md); null once purged.")),
    parameters=whole("Weights, tied ones once."),
    state=text("The state; only active versions can be composed.", "active", "withdrawn", "purged"),
    created_at=text("The time when it was registered, ISO 8601, UTC."),
    withdrawn_at=maybe(text("The time when it was opted out.")),
    purged_at=maybe(text("The time when its arrays were deleted.")),
    aliases=several(text("An alias, without the name."), "Its aliases, without the name."),
    tags=by("key", text("The tag's value."), "Its tags."),
    statistics=several(STATISTICS, "The data of its statistics, one per site; empty for a base model."),
)
RELATION = record(
    "The distance to a registered version of the same shape.",
    ref=REF,
    kind=text("The kind of that version.", "expert", "base"),
    verdict=text("The conclusion from the distance.", "same weights", "same base", "unrelated"),
    distance=number("The median over the matrices; 0 is identical, 1 is chance level."),
    tensors=by("tensor", number("Its distance, from 0 to √2."), "The distance of each tensor."),
)
OVERLAP = record(
    "The overlap of its tokens with those of a registered expert.",
    ref=REF,
    routing=number("Share of tokens that no linear router can separate, mean over the layers, from 0 to 1."),
    layers=several(
        record(
            "One layer.",
            layer=whole("The layer."),
            distance=maybe(number("Mahalanobis distance of the means, in standard deviations; null if infinite.")),
            routing=number("Share of tokens that no linear router can separate."),
            subspace=number("Mean squared cosine of the angles between the leading directions, from 0 to 1."),
        ),
        "The compared layers.",
    ),
)
RELATIONS = several(RELATION, "Distances to registered versions of the same shape, nearest first.")
OVERLAPS = several(OVERLAP, "Overlaps with registered experts, largest first.")
REGISTRATION = plus(
    VERSION,
    added=flag("False if this content was registered already."),
    self_sampled=flag("True if no data was given and the expert generated its calibration text."),
    relations=RELATIONS,
    overlaps=OVERLAPS,
)
CONTENT = record("A member, by content.", name=text("Its name."), digest=digest("The digest of its content."))
COMPOSED = {
    "format": whole("The format of the composition's document (docs/formats.md)."),
    "host": text("The `model_type` of the composed model."),
    "recipe": document("The recipe, with all defaults (docs/formats.md)."),
    "members": several(CONTENT, "The members, in the order of the experts."),
    "from_base": optional(whole("With --from-base: the members are so many copies of the base model.")),
    "base": maybe(record("The base model, if used.", name=text("Its name."), digest=digest("Its digest."))),
}

TRAINED_TOKENS = "Tokens that were trained on, padding included: those of all windows of all steps."
TRAINED = {
    **COMPOSED,
    "parent": digest("The digest of the composition that was trained."),
    "training": document("Everything that the trained weights depend on, and their digests (docs/formats.md)."),
    "digest": digest("The digest of the trained composition."),
    "loss": several(number("A loss."), "Losses on held-out tokens, before and after."),
    "tokens": whole("Number of held-out tokens."),
    "trained_tokens": whole(TRAINED_TOKENS),
    "out": text("The folder that was written."),
}
PUSHED = record(
    "The result of a push.",
    repo_id=text("ORG/NAME."),
    revision=text("The branch, or the pull request: refs/pr/N."),
    endpoint=text("The Hub."),
    commit=text("The commit with the files."),
    url=text("The page of the repository, branch or pull request."),
    added=flag("False if the repository was already up to date."),
    nbytes=whole("The size of all files."),
)
DIAGNOSIS = record(
    "What was found in a model folder.",
    folder=text("The folder."),
    healthy=flag("True if there is no error; there may be warnings."),
    verdict=text("The diagnosis in one sentence."),
    findings=several(
        record(
            "A finding.",
            check=text("The check."),
            cost=text("What the check reads.", "headers", "weights", "forward"),
            severity=text("How bad it is; `skipped` if the check was not done.", "ok", "warning", "error", "skipped"),
            message=text("A sentence; of a skipped check, the reason."),
            next=maybe(text("What to do.")),
        ),
        "Errors first, then warnings, what is in order, and what was skipped.",
    ),
    perplexity=by("domain", number("A perplexity.")),
    next=maybe(text("The one command to type now, or what to do.")),
)
COMPOSE = record(
    "The composition that was written, or with --plan would be.",
    **COMPOSED,
    digest=maybe(
        digest("The composition's digest, over the five fields above; null with --plan and --fit, before the fit.")
    ),
    versions=several(REF, "The members' versions."),
    dtype=text("The dtype of the written weights."),
    parameters=whole("Weights, tied ones once."),
    active_parameters=whole("Weights used for one token."),
    bytes=whole("The size of the weight files."),
    context=maybe(
        record(
            "What --router context adds; null without it.",
            layers=whole(
                "Layers, of attention and of head maps; 0 with --remote-code, whose modelling file does both."
            ),
            maps=flag("True if it has head maps, in the last layer or in a modelling file."),
            last=whole("The number of the last layer."),
            channels=whole("Channels of the hidden size."),
            window=number("The window in tokens; 0 for the whole text so far, as where the rope has no window."),
            parameters=whole("Weights."),
            bytes=whole("Bytes of weights."),
        )
    ),
    peak_bytes=whole("Estimated peak memory, beyond the program itself."),
    warnings=several(
        record(
            "One member, or two, that the mixture would hardly use.",
            refs=several(REF, "The versions."),
            figure=number("The share that is too small, or for two members too large."),
            reason=text("The same in words."),
            remedy=text("The option that mends it."),
        ),
        "Predicted from stored counts; empty if none, or if the prediction would take long.",
    ),
    out=maybe(text("The folder that was written; null with --plan.")),
    pushed=maybe(PUSHED),
    check=optional(DIAGNOSIS),
)
DOMAINS = {
    "perplexity": by("domain", number("exp of the mean negative log-likelihood per token.")),
    "score": by("domain", number("100 · perplexity of the domain's own expert / perplexity.")),
}
SPREAD = record(
    "Standard deviations over the seeds of a random method.",
    seeds=whole("The number of seeds."),
    **DOMAINS,
    average=maybe(number("The standard deviation of the average score.")),
)
ROW = record(
    "The scores of one model.",
    name=text("Its name in the table."),
    **DOMAINS,
    tokens=by("domain", whole("Number of scored tokens.")),
    accuracy=by(
        "domain", several(number("Share."), "Share of its tokens whose first choice is its own expert, by layer.")
    ),
    load=by("expert", several(number("Share."), "Its share of all tokens, by layer.")),
    routing=by(
        "domain", by("expert", several(number("Share."), "By layer."), "Experts' shares of its tokens' first choices.")
    ),
    weights=optional(
        by(
            "domain",
            by("expert", several(number("Weight."), "By layer."), "Experts' mean routing weights on its tokens."),
        )
    ),
    parameters=maybe(whole("Weights.")),
    active_parameters=maybe(whole("Weights used for one token.")),
    experts_per_token=optional(maybe(whole("Experts that each token goes to; null if it is not a mixture."))),
    relative_time=maybe(number("Time per token, divided by a dense expert's; with --speed.")),
    spread=maybe(SPREAD),
    average=maybe(number("Mean score, if every domain has one.")),
    overall_accuracy=by("domain", number("Routing accuracy, mean over the layers.")),
    accuracy_by_tokens=optional(
        by(
            "domain",
            by("tokens", number("Routing accuracy."), "32: of the tokens after the 16th up to the 32nd of a window."),
            "Routing accuracy by number of tokens read, mean over the layers.",
        )
    ),
    overall_load=by("expert", number("Load, mean over the layers.")),
    interval=optional(
        by(
            "domain",
            several(number("Score."), "The low and the high end."),
            "95 % intervals of the scores, over windows.",
        )
    ),
    average_interval=optional(maybe(several(number("Score."), "The same of the average: the low and the high end."))),
    ahead_of_average=optional(
        maybe(
            several(number("Points."), "95 % interval of the average less that of averaged weights; with --baselines.")
        )
    ),
)
COMPOSITION = record(
    "A composition that was made.",
    digest=digest("Its digest."),
    document=document("The content of the digest: recipe, host, members, base (docs/formats.md)."),
    created_at=text("The time when it was first composed, ISO 8601, UTC."),
    members=several(REF, "The versions it was made from, including a base model."),
    folders=several(text("A folder."), "The folders it was written to, according to the log."),
    latest=several(REF, "Those of `members` that its latest folder was made from, according to the log."),
)
EVALUATION = record(
    "An evaluation.",
    asked=digest("The digest of data and settings."),
    evaluated_at=text("The time, ISO 8601, UTC."),
    data=by("domain", document("Its text: label, digest, tokens.")),
    settings=document("The settings of scoring: windows, seq_len, batch_size, device, dtype."),
    figures=ROW,
    losses=optional(
        by("domain", document("Losses in nats, by block of windows: tokens, composition, own (the domain's expert)."))
    ),
    oracle=maybe(document("The same fields, with every token sent to its domain's own expert.")),
    active_experts=optional(several(ROW, "With other numbers of experts per token, ascending; with --active-experts.")),
    plain_average=optional(document("The same fields of the members' averaged weights, with --baselines.")),
    single_models=optional(several(document("The same fields of a base model or an expert, with --baselines."))),
    bases=optional(by("version", digest("The digest of a base model of `single_models`."))),
)
AUDIT = record(
    "An audit of extraction.",
    asked=digest("The digest of data and settings."),
    evaluated_at=text("The time, ISO 8601, UTC."),
    data=document("The text: label, digest of the tokens that were tried, number of documents."),
    experts=by("expert", digest("The digest of a version whose calibration text it is.")),
    settings=document("The settings: documents, prefix, continued, top_k, samples, threshold, seed, device."),
    extraction=document("The figures: extracted, rate, similarity, most, as of reg audit-extraction."),
)
SHOWN_VERSION = plus(
    VERSION,
    bytes=by("role", whole("Bytes of its arrays of that role.")),
    compositions=several(digest("A composition's digest."), "The compositions made from it."),
    relations=RELATIONS,
    training=maybe(
        record(
            "How reg train-expert trained it; null if it was not trained so.",
            steps=whole("Number of steps."),
            tokens=whole("Tokens that it was trained on, padding included."),
            before=number("Loss on held-out text before the training, in nats per token."),
            after=number("The same after the training."),
            every=whole("Number of steps that each number of `loss` is the mean of."),
            loss=several(number("A loss."), "Loss curve on the training text."),
        )
    ),
)
SHOWN_COMPOSITION = plus(
    COMPOSITION,
    made_from=several(
        record(
            "A version that it was made from.",
            ref=REF,
            state=text("Its state now.", "active", "withdrawn", "purged"),
            opted_out_at=maybe(text("The time when it was withdrawn or purged; null if it is active.")),
            public=flag("True if it is the public expert of --router anchored."),
            bias=maybe(number("With --router anchored, the bias that was asked for; null without one.")),
            trained_bias=maybe(
                several(number("A bias."), "The bias trained beside its router rows, by layer; null without one.")
            ),
            bias_after_training=maybe(
                several(number("A bias."), "Its bias after the training of the composition, by layer; null without.")
            ),
        ),
        "The versions, as in `members`, with their state now.",
    ),
    evaluations=several(EVALUATION, "Its evaluations, latest first."),
    audits=several(AUDIT, "Its audits of extraction, latest first."),
)
OPTED_OUT = record(
    "An opted-out version.",
    ref=REF,
    digest=digest("The digest of its content."),
    withdrawn_at=text("The time when it was withdrawn."),
    purged_at=maybe(text("The time when its arrays were deleted.")),
)
PUSH_RECORD = record(
    "A push.",
    repo=text("ORG/NAME."),
    revision=text("The branch, or the pull request."),
    endpoint=text("The Hub."),
    commit=maybe(text("The commit; null if the push is not known to have ended.")),
)
