"""Objects of JSON output with figures: previews, routed texts, trainings and reports."""

from cli.json_schema.fields import (
    by,
    digest,
    flag,
    maybe,
    number,
    record,
    several,
    text,
    whole,
)
from cli.json_schema.objects import REF

PREVIEW = record(
    "The predicted routing of a composition.",
    members=several(
        record(
            "One expert.",
            ref=REF,
            tokens=whole("Its calibration tokens."),
            part=number("Its weight in the routers' solve, from 0 to 1; with --router context the same for all."),
            accuracy=number("Predicted share of its tokens whose first choice is it, mean over the layers."),
            share=number("Predicted share of first choices, if each expert's text has the same number of tokens."),
            drowned=maybe(text("The reason why it is drowned out by the others; null if it is not.")),
        ),
        "The experts, in their order.",
    ),
    accuracy=number("Mean accuracy of the experts."),
    confusion=several(
        several(number("A share."), "An expert's text."),
        "Rows: text of each expert; columns: first choices. Mean over the layers.",
    ),
    layers=several(
        record(
            "One layer.",
            layer=whole("The layer."),
            confusion=several(
                several(number("A share."), "An expert's text."), "Rows: text of each expert; columns: first choices."
            ),
        ),
        "The predicted layers; with --router context the first stands for all, which route alike.",
    ),
    overlap=several(
        record(
            "A pair of experts.",
            experts=several(REF, "Their versions."),
            routing=number(
                "The overlap of activations, mean over the layers; with --router context the overlap of token counts."
            ),
        ),
        "Overlaps of experts' text.",
    ),
    by_tokens=several(
        record(
            "Texts of which so many tokens were read.",
            tokens=whole("The number of tokens."),
            accuracy=number("Mean accuracy of the experts."),
            confusion=several(
                several(number("A share."), "An expert's text."), "Rows: text of each expert; columns: first choices."
            ),
        ),
        "With --router context, the prediction by number of tokens read; else empty.",
    ),
    notes=several(text("A sentence."), "Limits of the prediction."),
)
ROUTED = record(
    "A text and the routing of its tokens.",
    experts=several(text("An expert."), "The experts' names, in their order."),
    shares=by("expert", number("Share of the tokens that it handles, over all layers.")),
    tokens=several(
        record(
            "A token.",
            id=whole("Its number in the vocabulary."),
            text=text("Its characters; empty if it completes a character that an earlier token began."),
            special=flag("True if the tokenizer added it."),
            experts=several(text("An expert."), "Its first choice, by layer."),
            weights=several(by("expert", number("Its routing weight."), "At a layer."), "Routing weights, by layer."),
            expert=text("The expert with the most weight over all layers."),
        ),
        "In the order of the text.",
    ),
)
TRAINING = {
    "steps": whole("Number of steps."),
    "tokens": whole("Tokens of all its steps, padding included."),
    "before": number("Loss on held-out text before the training, in nats per token."),
    "after": number("The same after the training."),
    "at": several(number("A step."), "The middle of the steps that each number of `loss` is the mean of."),
    "loss": several(number("A loss."), "Loss curve, at most 200 numbers."),
}
REPORT = record(
    "The content of a report; parts without data are null or empty, and the notes give the reasons.",
    name=text("The composition's folder, or its members."),
    digest=digest("The composition's digest."),
    to=text("The output of its recipe: moe, dense, ensemble, hetero or simoe."),
    folder=maybe(text("A folder that it is in.")),
    verdict=record(
        "What the report says first.",
        text=text("One or two sentences."),
        command=maybe(text("The command that says more.")),
    ),
    warnings=several(
        record(
            "What is wrong with the composition or its evaluation.",
            text=text("Sentences."),
            mend=text("What mends it."),
            command=maybe(text("The command that mends it.")),
        ),
        "The gravest first.",
    ),
    host=text("Its `model_type`."),
    made=maybe(text("The time when it was first composed here, ISO 8601.")),
    recipe=by("setting", text("Its value.")),
    members=several(
        record(
            "One expert.",
            name=text("The expert."),
            ref=maybe(text("Its version in this registry; null if it is not registered, or was opted out.")),
            digest=digest("The digest of its content."),
            tokens=maybe(whole("Calibration tokens.")),
            license=maybe(text("Its license.")),
            drowned=maybe(text("The reason why it is predicted to be drowned out.")),
            opted_out=maybe(text("The version that was opted out since.")),
        ),
        "The experts, in their order.",
    ),
    parameters=maybe(whole("Weights.")),
    active_parameters=maybe(whole("Weights used for one token.")),
    top_k=maybe(whole("Experts per token.")),
    routing=maybe(
        record(
            "The first choices of the tokens of each domain.",
            measured=flag("True if counted on test text, false if predicted from statistics."),
            layers=several(whole("A layer."), "Layer numbers."),
            shares=by("domain", by("expert", several(number("A share."), "By layer."), "Shares of its tokens.")),
            load=by("expert", several(number("A share."), "Share of all tokens, by layer.")),
            weights=by(
                "domain", by("expert", several(number("Weight."), "By layer."), "Mean routing weights on them.")
            ),
        )
    ),
    overlap=several(
        several({"type": ["string", "number"], "description": "Two experts and a share."}, "A pair."),
        "Expert, expert, overlap of activations; routed by context, overlap of token counts.",
    ),
    indistinct=number("The share from which on routing hardly separates two experts."),
    scores=several(
        record(
            "Scores of a model.",
            name=text("The model."),
            kind=text("The kind of model.", "composition", "oracle", "average", "base", "expert"),
            score=by("domain", number("Normalised: 100 is the domain's own expert.")),
            perplexity=by("domain", number("Its perplexity.")),
            average=maybe(number("Mean score, if every domain has one.")),
            interval=by(
                "domain",
                several(number("Score."), "The low and the high end."),
                "95 % intervals of the scores, over windows.",
            ),
            average_interval=maybe(several(number("Score."), "The same of the average: the low and the high end.")),
            ahead_of_average=maybe(
                several(number("Points."), "95 % interval of its average less that of averaged weights.")
            ),
        ),
        "The composition first.",
    ),
    evaluated=maybe(
        record(
            "The data of scores and measured routing.",
            at=maybe(text("The time, ISO 8601; null for now.")),
            tokens=by("domain", whole("Predicted tokens.")),
            labels=by("domain", text("The label of its text.")),
        )
    ),
    active_experts=several(
        record(
            "The composition with another number of experts per token.",
            experts_per_token=whole("The number."),
            active_parameters=whole("Weights used for one token."),
            score=by("domain", number("Normalised: 100 is the domain's own expert.")),
            perplexity=by("domain", number("Its perplexity.")),
            average=maybe(number("Mean score, if every domain has one.")),
        ),
        "Ascending, from the latest evaluation with --active-experts; empty without one.",
    ),
    trainings=several(
        record("The training of an expert by reg train-expert.", name=text("The expert."), **TRAINING),
        "Of the members that were trained so.",
    ),
    audits=several(
        record(
            "An audit of extraction.",
            text=text("The label of its text."),
            documents=whole("Documents that were tried."),
            extracted=whole("Documents that it continued nearly word for word."),
            rate=number("Their share, from 0 to 1."),
            similarity=number("Mean over documents of the best continuation's similarity, from 0 to 1."),
            most=number("The largest of them."),
            prefix=whole("Tokens that it was given."),
            continued=whole("Tokens that it continued by."),
            at=text("The time, ISO 8601, UTC."),
        ),
        "Those that are stored, the latest first.",
    ),
    lineage=several(
        record(
            "A model in the lineage.",
            id=text("Its identifier, which others name as a source."),
            label=text("Its label."),
            kind=text("Its kind: base, expert, composition or trained."),
            of=several(text("An id."), "The models it comes from."),
            told=text("Its caption."),
        ),
        "Sources of the composition, and compositions trained from it.",
    ),
    notes=several(text("A sentence."), "Missing parts, with reasons."),
    training=maybe(
        record("The latest training of the composition by reg train.", name=text("What was trained."), **TRAINING)
    ),
    from_base=maybe(whole("The number of members, where they are copies of a base model.")),
    mask_overlap=several(
        several({"type": ["string", "number"], "description": "Two experts and an overlap."}, "A pair."),
        "Of a SIMoE: expert, expert, overlap of their masks, from 0 to 1.",
    ),
    mask_joins=several(
        record(
            "Two groups of experts that join.",
            first=several(text("A name."), "The experts of one group."),
            second=several(text("A name."), "Those of the other."),
            overlap=number("Mean overlap of a mask of one with a mask of the other."),
        ),
        "Of a SIMoE: average linkage over 1 - overlap, the most alike first; the last one has all experts.",
    ),
)
