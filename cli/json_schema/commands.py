"""JSON Schemas of every command's output with --json. A command without one fails the tests."""

from cli.json_schema.fields import (
    Schema,
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
    whole_schema,
)
from cli.json_schema.figures import PREVIEW, REPORT, ROUTED
from cli.json_schema.objects import (
    COMPOSE,
    COMPOSITION,
    DIAGNOSIS,
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
    TRAINED,
    TRAINED_TOKENS,
    VERSION,
)

SCHEMAS: dict[str, Schema] = {
    "reg add-expert": REGISTRATION,
    "reg add-experts": record(
        "The experts of a list.",
        experts=several(
            record(
                "A registered expert.",
                name=text("Its name."),
                ref=REF,
                digest=digest("The digest of its content."),
                added=flag("False if this content was registered already."),
            ),
            "The registered experts, in the order of the list.",
        ),
        failed=several(
            record(
                "An expert that could not be registered.",
                name=text("Its name."),
                kind=text("The kind of error."),
                message=text("What failed."),
                next=maybe(text("The next command.")),
            ),
            "The others; the exit code is 1 if there are any.",
        ),
    ),
    "reg add-base": REGISTRATION,
    "reg check": record(
        "A report on a checkpoint.",
        label=text("The checkpoint."),
        family=text("Its `model_type`."),
        hosts=several(text("A host."), "Hosts that support it, the preferred one first."),
        notes=several(text("A sentence."), "Remarks on compositions in the preferred host."),
        dtype=text("The dtype of most weights."),
        parameters=whole("Weights, tied ones once."),
        tokens=maybe(whole("Size of its tokenizer's vocabulary; null if it is not comparable.")),
        relations=RELATIONS,
        text=maybe(text("Label of the text of its statistics; null without text or statistics.")),
        overlaps=maybe(several(OVERLAP, "Overlaps, largest first; null without text or statistics.")),
    ),
    "reg collect": record(
        "The collected statistics.",
        file=text("The file of statistics."),
        weights=text("The digest of the weights that computed them."),
        tokens=by("site", whole("Calibration tokens.")),
        calibration_digest=digest("The digest of the calibration tokens."),
        calibration_label=text("The label of the calibration."),
    ),
    "reg compose": COMPOSE,
    "reg instantiate": plus(
        COMPOSE,
        domain_weights=by("domain", number("Its share."), "Shares of the domains; empty with --fit."),
        coefficients=by("expert", number("Its coefficient.")),
    ),
    "reg preview": PREVIEW,
    "reg train-expert": record(
        "The expert that was trained.",
        version=maybe(VERSION),
        out=maybe(text("The folder that was written, with --out.")),
        training=document("How it was trained, and its loss curve (docs/formats.md)."),
        loss=several(number("A loss."), "Losses on held-out tokens, before and after."),
        tokens=whole("Number of held-out tokens."),
        trained_tokens=whole(TRAINED_TOKENS),
    ),
    "reg train-soup": record(
        "The soup that was trained.",
        shared=VERSION,
        experts=several(VERSION, "Its experts, by number."),
        training=document("How it was trained, and its loss curve (docs/formats.md)."),
        loss=several(
            number("A loss."),
            "Losses on held-out tokens, before and after, of each domain's with all weight on the domain.",
        ),
        tokens=whole("Number of held-out tokens."),
        trained_tokens=whole(TRAINED_TOKENS),
    ),
    "reg train-simoe": record(
        "The SIMoE that was trained.",
        experts=several(VERSION, "Its experts, by number."),
        training=document("How it was trained, its curves and its masks (docs/formats.md)."),
        loss=several(number("A loss."), "Losses on held-out tokens after the prompt, before and after."),
        tokens=whole("Number of held-out tokens."),
        trained_tokens=whole(TRAINED_TOKENS),
        sparsity=number("Share of zeros in the final masks."),
        closed=whole("Number of open gates that were closed at the end, for the sparsity."),
        overlap=number("Mean overlap of two final masks, from 0 to 1; 0 of one mask."),
    ),
    "reg proxy": several(
        record(
            "Public documents that were chosen for an expert.",
            name=text("The expert's name."),
            path=text("Their file, a document a row."),
            documents=whole("Number of documents chosen."),
            candidates=whole("Number of documents that they were chosen from."),
            best=number(
                "The highest score of a document: the discriminant of the expert's text against the public text, mean "
                "over layers. Below 0 a document is nearer to the public text."
            ),
            least=number("The lowest score of a chosen one."),
        )
    ),
    "reg train": record("The composition that was trained.", **TRAINED),
    "reg train-router": record("The composition whose routers were trained.", **TRAINED),
    "reg evaluate": several(ROW),
    "reg scores": several(
        record(
            "The accuracies of one model.",
            name=text("Its name."),
            accuracy=by("domain", by("task", number("Accuracy, from 0 to 1.")), "Accuracies in its tasks."),
            score=by("domain", number("100 · accuracy / accuracy of the domain's own expert, mean over the tasks.")),
            metric=by("domain", by("task", text("The metric in the files.")), "Metrics of its tasks."),
            average=maybe(number("Mean score, if every domain has one.")),
        )
    ),
    "reg report": REPORT,
    "reg route": ROUTED,
    "reg audit-extraction": several(
        record(
            "A model, and how much of the text it gave away.",
            folder=text("The model's folder."),
            documents=whole("Documents that were tried."),
            extracted=whole("Documents that it continued nearly word for word."),
            rate=number("Their share, from 0 to 1."),
            similarity=number("Mean over documents of the best continuation's similarity, from 0 to 1."),
            most=number("The largest of them."),
        )
    ),
    "reg doctor": DIAGNOSIS,
    "reg continual": record(
        "The results of a schedule.",
        schedule=several(text("An expert."), "The experts, in the order in which they joined."),
        perplexity=several(several(number("A perplexity."), "A step."), "After each step, one per domain so far."),
        score=several(several(number("A score."), "A step."), "After each step, one per domain so far."),
        average=number("Mean score after the last step."),
        forgetting=maybe(number("Mean of a domain's best earlier score minus its last.")),
        backward_transfer=maybe(number("Mean of a domain's last score minus its score when it joined.")),
    ),
    "reg opt-out": record(
        "The opted-out versions, and the copies that remain.",
        dry_run=flag("True with --dry-run: nothing was changed, and the rest says what would be."),
        versions=several(OPTED_OUT, "The versions, in their current state."),
        withdrew=several(REF, "The versions that were active before."),
        deleted=several(REF, "The versions that were not purged before."),
        compositions=several(COMPOSITION, "The compositions ever made from any of them."),
        heirs=several(
            record(
                "Who would get the tokens of a version in a mixture; only with --dry-run.",
                composition=digest("The mixture."),
                ref=REF,
                shares=by("expert", number("Share of the version's text."), "Shares, predicted from counts of tokens."),
            ),
            "The members of its latest mixtures that would get its tokens.",
        ),
        trained_together=several(REF, "Active versions whose weights were trained together with it, as of a soup."),
        pushes=several(PUSH_RECORD, "The pushes of versions and compositions to the Hub."),
        purged=flag("True with --purge."),
        deleted_arrays=whole("Number of deleted arrays."),
        deleted_bytes=whole("Their size on disk."),
        shared_arrays=whole("Number of arrays that stay because another version uses them."),
        cleared=several(text("A path."), "Paths of other deleted files."),
        remains=several(
            text("A line."), "Files that could not be deleted yet, and old versions that a bucket keeps; empty if none."
        ),
        beyond=maybe(text("Where deleted rows of the catalog may be, out of the registry's reach.")),
        receipt=maybe(text("The receipt's file.")),
    ),
    "reg receipt verify": record(
        "A receipt, compared with the registry.",
        receipt=document("The content of the receipt (docs/formats.md)."),
        problems=several(text("A line."), "Contradictions to the receipt; empty if it holds."),
        remedies=several(text("A line."), "Remedies of the problems."),
        notes=several(text("A line."), "Later changes that do not contradict the receipt."),
    ),
    "reg list": several(VERSION),
    "reg show": SHOWN_VERSION,
    "reg compositions": several(COMPOSITION),
    "reg log": several(
        record(
            "An event of the log.",
            id=whole("Its number."),
            at=TIME,
            action=text("The action."),
            subject=text("A version, a composition's digest, or empty."),
            details=document("Details, depending on the action; `actor` says who did it."),
            digest=digest("The digest of the event and the event before it."),
        )
    ),
    "reg alias": record(
        "An alias.",
        alias=text("NAME@ALIAS."),
        version=maybe(text("The version it points at; null after --delete.")),
        before=maybe(text("The version it pointed at before.")),
    ),
    "reg export": record("An exported version.", ref=REF, digest=digest("Its digest."), out=text("The folder.")),
    "reg push": PUSHED,
    "reg push-expert": PUSHED,
    "reg reproduce": record(
        "The comparison of a folder with its recomposition.",
        folder=text("The folder."),
        digest=digest("The digest of the recomposition."),
        versions=several(REF, "The versions it was recomposed from, the base model last."),
        same=flag("True if every byte is the same, except for the additions of a push to the card."),
        files=several(
            record(
                "A file of either folder.",
                name=text("Its path in the folder."),
                state=text("The result of the comparison.", "same", "differs", "missing", "added", "pushed"),
                at=maybe(whole("The first byte that differs.")),
            ),
            "Every file of either folder.",
        ),
        bytes=whole("Number of bytes compared."),
        out=maybe(text("The folder in which the recomposition is kept.")),
    ),
    "reg verify": record(
        "The result of a verification.",
        versions=whole("Number of versions checked."),
        arrays=whole("Number of arrays hashed."),
        nbytes=whole("Their uncompressed size."),
        problems=several(text("A line."), "Damaged content; empty if all is intact."),
        orphans=whole("Number of arrays that nothing uses; reg gc deletes them."),
        events=whole("Number of intact events of the log."),
        head=text("The digest of the last intact event."),
    ),
    "reg gc": record(
        "The deleted files, or with --dry-run those that would be deleted.",
        digests=several(digest("An array's digest."), "Arrays that nothing uses."),
        bytes=whole("Their size on disk."),
        passes=whole("Running or interrupted passes."),
        pass_bytes=whole("Their size."),
        merged=whole("Merged adapters."),
        merged_bytes=whole("Their size."),
        work=whole("Temporary models of interrupted compositions."),
        work_bytes=whole("Their size."),
        cached=whole("Cached statistics of compositions."),
        cached_bytes=whole("Their size."),
        pieces=several(
            record("A piece.", name=text("Its path; of an array its digest."), bytes=whole("Its size on disk.")),
            "Everything above, each with its size: arrays, then files and folders.",
        ),
        dry_run=flag("True if nothing was deleted."),
    ),
    "reg ui": record(
        "Printed when the server is ready.", url=text("The address."), home=text("The registry's folder.")
    ),
    "reg arrays copy": record(
        "The result of copying arrays.",
        source=text("Where they were, and still are."),
        target=text("Where they are now too."),
        copied=whole("Number of arrays that were written and read back."),
        kept=whole("Number of arrays that were there already, intact."),
        nbytes=whole("Uncompressed size of those that were written."),
        problems=several(text("A line."), "Arrays that are damaged and were not copied; empty if none."),
    ),
    "reg db current": record(
        "Revisions of the catalog's schema.",
        current=maybe(text("The catalog's revision; null if there is no catalog.")),
        head=text("The revision that this program works with."),
    ),
    "reg db upgrade": record(
        "The result of an upgrade.",
        before=maybe(text("The catalog's revision before.")),
        after=text("The catalog's revision now."),
        backup=maybe(text("The copy made before the upgrade.")),
    ),
    "reg db copy": record(
        "The copy of a catalog.",
        source=text("The URL it was copied from, with any password hidden."),
        target=text("The URL it was copied to, with any password hidden."),
        id=text("The registry's id, the same in both."),
        rows=by("table", whole("Number of rows.")),
        events=whole("Number of events of the log."),
        head=text("The digest of the last event."),
    ),
    "reg config": record(
        "Settings with their sources, and versions of packages.",
        settings=by(
            "setting",
            record(
                "A setting.",
                value=text("The value for display; never a password or a token."),
                source=text("option --NAME, environment variable NAME, file PATH, default, or in the home."),
            ),
        ),
        versions=by("package", text("The installed version.")),
    ),
    "reg completion": record(
        "A completion script.", shell=text("The shell.", "bash", "zsh", "fish"), script=text("The script.")
    ),
    "reg schema": document("A JSON Schema (draft 2020-12), or an object of command → schema."),
    "reg demo": record(
        "The result of the demo.",
        folder=text("The folder with text, checkpoints, registry and moe."),
        domains=several(text("An expert."), "The experts' names."),
        rows=several(ROW, "Scores of base, experts, averaged weights and composition."),
        orders=by(
            "order", text("SHA-256 over the composed folder."), "Order of registration → digest of the composed folder."
        ),
        opted_out=text("SHA-256 over the composition after an opt-out."),
        never_registered=text("The same for a registry that never held the expert."),
        withdrawn=text("The expert that was opted out."),
        compositions=by("members", text("Digest of a composition, as reg compose prints it.")),
    ),
}
"""Command → schema of its output with --json."""

ERROR = record(
    "Printed on stderr, on one line, if a command with --json fails.",
    error=record(
        "The error.",
        kind=text("The kind of error: NotFoundError, ConflictError, UsageError, …"),
        message=text("The message, with the id concerned."),
        next=maybe(text("The hint: what to do next.")),
        exit_code=whole("1, or 2 for a usage error."),
    ),
)


def schema_of(command: str) -> Schema:
    """Return the schema of a command's output with --json, for example of `reg list`."""
    schema = SCHEMAS[command]
    if command == "reg show":
        return whole_schema(command, {"anyOf": [schema, SHOWN_COMPOSITION]})
    return whole_schema(command, schema)
