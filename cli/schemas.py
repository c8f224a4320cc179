"""What every command prints with --json: a JSON Schema each. A command without one fails the tests."""

from cli.documents import (
    COMPOSE,
    COMPOSED,
    COMPOSITION,
    OPTED_OUT,
    OVERLAP,
    PUSH_RECORD,
    PUSHED,
    REF,
    REGISTRATION,
    RELATIONS,
    ROW,
    SHOWN_COMPOSITION,
    SHOWN_VERSION,
    TIME,
    VERSION,
)
from cli.fields import (
    Schema,
    by,
    digest,
    document,
    flag,
    maybe,
    number,
    optional,
    record,
    several,
    text,
    whole,
    whole_schema,
)

SCHEMAS: dict[str, Schema] = {
    "reg add-expert": REGISTRATION,
    "reg add-base": REGISTRATION,
    "reg check": record(
        "What there is to say of a checkpoint.",
        label=text("The checkpoint."),
        family=text("Its `model_type`."),
        hosts=several(text("A host."), "What carries it, the preferred one first."),
        notes=several(text("A sentence."), "What to know of a composition in the preferred host."),
        dtype=text("What most weights have."),
        parameters=whole("Weights, tied ones once."),
        tokens=maybe(whole("Tokens that its tokenizer knows.")),
        relations=RELATIONS,
        overlaps=maybe(several(OVERLAP, "Overlaps, the most alike first; null without text or statistics.")),
    ),
    "reg collect": record(
        "What was taken.",
        file=text("The file of statistics."),
        weights=text("The digest of the weights that they were taken with."),
        tokens=by("site", whole("Calibration tokens.")),
        calibration_digest=digest("Of the calibration tokens."),
        calibration_label=text("What the calibration is called."),
    ),
    "reg compose": COMPOSE,
    "reg lam-curve": several(
        record(
            "A layer's routers, by ridge strength.",
            layer=whole("The layer."),
            lams=several(number("A strength."), "Ridge strengths, absolute, ascending."),
            errors=several(number("An error."), "Held-out error of each, squared, a token."),
            accuracies=several(number("A share."), "Share of tokens predicted to go to their own expert, of each."),
            best=number("The strength that --lam auto takes."),
        )
    ),
    "reg train-router": record(
        "The composition whose routers were trained.",
        **COMPOSED,
        lam=optional(several(number("A strength."), "Of the parent, where it was composed with --lam auto.")),
        parent=digest("Of the composition that was trained."),
        training=document("All that the routers depend on (docs/formats.md)."),
        digest=digest("The composition's own."),
        loss=several(number("A loss."), "On held-out tokens, before and after."),
        tokens=whole("Held-out tokens that the losses stand on."),
        out=text("The folder that was written."),
    ),
    "reg evaluate": several(ROW),
    "reg continual": record(
        "The figures of a schedule.",
        schedule=several(text("An expert."), "The experts, in the order in which they joined."),
        perplexity=several(several(number("Of a domain."), "After a step."), "After each step, of each domain so far."),
        score=several(several(number("Of a domain."), "After a step."), "After each step, of each domain so far."),
        average=number("Mean score after the last step."),
        forgetting=maybe(number("Mean loss against a domain's best earlier score.")),
        backward_transfer=maybe(number("Mean of the last score less the one at joining.")),
    ),
    "reg opt-out": record(
        "What was opted out, and what holds it still.",
        versions=several(OPTED_OUT, "The versions that it concerned, as they are now."),
        withdrew=several(REF, "Those that were active until now."),
        deleted=several(REF, "Those that were not purged until now."),
        compositions=several(COMPOSITION, "Those ever made from any of them."),
        pushes=several(PUSH_RECORD, "Where any of it was pushed to."),
        purged=flag("Arrays were to be deleted too."),
        deleted_arrays=whole("Arrays that were deleted."),
        deleted_bytes=whole("What they took on disk."),
        shared_arrays=whole("Arrays that stay, as another version needs them."),
        cleared=several(text("A path."), "What else was deleted."),
        remains=several(text("A line."), "What could not be deleted yet; empty when all is done."),
        receipt=maybe(text("The receipt that was written.")),
    ),
    "reg receipt verify": record(
        "A receipt, held against the registry.",
        receipt=document("The receipt as its file has it (docs/formats.md)."),
        problems=several(text("A line."), "What is not as it says; empty where it holds."),
        notes=several(text("A line."), "What to know beside that."),
    ),
    "reg list": several(VERSION),
    "reg show": SHOWN_VERSION,
    "reg compositions": several(COMPOSITION),
    "reg log": several(
        record(
            "An event.",
            id=whole("Its number."),
            at=TIME,
            action=text("What was done."),
            subject=text("A version, a composition's digest, or empty."),
            details=document("What more there is to say; it depends on the action."),
            digest=digest("Of the event and of the one before."),
        )
    ),
    "reg alias": record(
        "An alias.",
        alias=text("NAME@ALIAS."),
        version=maybe(text("The version it stands for now; null after --delete.")),
        before=maybe(text("The one it stood for.")),
    ),
    "reg export": record("A version that was written.", ref=REF, digest=digest("Of it."), out=text("The folder.")),
    "reg push": PUSHED,
    "reg push-expert": PUSHED,
    "reg reproduce": record(
        "What came of composing a folder again.",
        folder=text("The folder."),
        digest=digest("The composition's, as it is now."),
        versions=several(REF, "What it was composed of now, the base model last."),
        same=flag("Every byte is the same, but for what a push added to the card."),
        files=several(
            record(
                "A file of either folder.",
                name=text("Its path in the folder."),
                state=text("How it compares.", "same", "differs", "missing", "added", "pushed"),
                at=maybe(whole("The first byte that differs.")),
            ),
            "Every file of either folder.",
        ),
        bytes=whole("Bytes compared."),
        out=maybe(text("Where what was composed now is kept.")),
    ),
    "reg verify": record(
        "What was checked and found.",
        versions=whole("Versions checked."),
        arrays=whole("Arrays read and hashed."),
        nbytes=whole("Their uncompressed size."),
        problems=several(text("A line."), "What is not what was stored; empty where all is intact."),
        orphans=whole("Arrays that no version needs: reg gc removes them."),
        events=whole("Lines of the log that follow from one another."),
        head=text("The digest of the last of them."),
    ),
    "reg gc": record(
        "What was deleted, or with --dry-run would be.",
        digests=several(digest("An array's."), "Arrays that no version needs."),
        bytes=whole("What they take on disk."),
        passes=whole("Passes under way or interrupted."),
        pass_bytes=whole("Their size."),
        merged=whole("Merged adapters."),
        merged_bytes=whole("Their size."),
        work=whole("Models of compositions that never ended."),
        work_bytes=whole("Their size."),
        cached=whole("Files of statistics taken for compositions."),
        cached_bytes=whole("Their size."),
        dry_run=flag("Nothing was deleted."),
    ),
    "reg db current": record(
        "Revisions of the catalog's schema.",
        current=maybe(text("The catalog's; null where there is none.")),
        head=text("The one that this program works with."),
    ),
    "reg db upgrade": record(
        "What upgrading did.",
        before=maybe(text("The revision that the catalog had.")),
        after=text("The one that it has."),
        backup=maybe(text("The copy of it as it was.")),
    ),
    "reg config": record(
        "Where everything comes from.",
        settings=by(
            "setting",
            record(
                "A setting.",
                value=text("As a person reads it; never a password or a token."),
                source=text("option --NAME, environment variable NAME, file PATH, default, or in the home."),
            ),
        ),
        versions=by("package", text("The version that is installed.")),
    ),
    "reg completion": record("A script.", shell=text("What reads it.", "bash", "zsh", "fish"), script=text("It.")),
    "reg schema": document("A JSON Schema (draft 2020-12), or one by the name of every command."),
    "reg demo": record(
        "What the demo made and showed.",
        folder=text("With text, checkpoints, registry and moe in it."),
        domains=several(text("An expert."), "The experts' names."),
        rows=several(ROW, "Base, experts, plain average and the composition, evaluated."),
        orders=by("order", text("SHA-256 over the composed folder."), "Order of registering → the composed folder."),
        opted_out=text("SHA-256 over the composition after an opt-out."),
        never_registered=text("The same of a registry that never held the expert."),
        withdrawn=text("The expert that was opted out."),
    ),
}
"""Command → what it prints with --json."""

ERROR = record(
    "Printed on stderr, on one line, in place of a message, where --json is given and the command fails.",
    error=record(
        "What failed.",
        kind=text("The kind of error: NotFoundError, ConflictError, UsageError, …"),
        message=text("What failed, on which id."),
        next=maybe(text("What to type next.")),
        exit_code=whole("1, or 2 where the command was not understood."),
    ),
)


def schema_of(command: str) -> Schema:
    """Return the schema of what a command, `reg list`, prints with --json."""
    found = SCHEMAS[command]
    if command == "reg show":
        return whole_schema(command, {"anyOf": [found, SHOWN_COMPOSITION]})
    return whole_schema(command, found)
