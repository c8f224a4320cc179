"""JSON Schemas of every command's output with --json. A command without one fails the tests."""

from cli.json_schema.notation import Schema, read_schemas

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_FOUND = read_schemas("""\
version | object | A registered version.
  ref | text
  * store.catalog.records.VersionRecord - id - statistics
  statistics | list of object | The data of its statistics, one per site; empty for a base model.
    * store.catalog.records.StatisticsRecord
    site | | mlp_input, attention_input, attention_output or head_input; token_counts if only tokens were counted.
relation | object | The distance to a registered version of the same shape.
  ref | text | The reference of a version: NAME@NUMBER.
  kind | `expert`, `base` | The kind of that version.
  verdict | `same weights`, `same base`, `unrelated` | The conclusion from the distance.
  distance | number | The median over the matrices; 0 is identical, 1 is chance level.
  tensors | by tensor: number | The distance of each tensor, from 0 to √2.
overlap | object | The overlap of its tokens with those of a registered expert.
  ref | text | The reference of a version: NAME@NUMBER.
  routing | number | Share of tokens that no linear router can separate, mean over the layers, from 0 to 1.
  layers | list of object | The compared layers.
    layer | whole number | The layer.
    distance | number or null | Mahalanobis distance of the means, in standard deviations; null if infinite.
    routing | number | Share of tokens that no linear router can separate.
    subspace | number | Mean squared cosine of the angles between the leading directions, from 0 to 1.
composed | object | A composition's own document.
  format | whole number | The format of the composition's document (docs/formats.md).
  host | text | The `model_type` of the composed model.
  recipe | object | The recipe, with all defaults (docs/formats.md).
  members | list of object | The members, in the order of the experts.
    name | text | Its name.
    digest | digest | The digest of its content.
  from_base | whole number; may be absent | With --from-base: the members are so many copies of the base model.
  base | object or null | The base model, if used.
    name | text | Its name.
    digest | digest | Its digest.
training result | object | The result of a training.
  training | object | How it was trained, and its loss curve (docs/formats.md).
  loss | list of number | Losses on held-out tokens, before and after.
  tokens | whole number | Number of held-out tokens.
  trained_tokens | whole number | Tokens that were trained on, padding included: those of all windows of all steps.
trained | composed | A composition that was trained.
  parent | digest | The digest of the composition that was trained.
  * training result
  training | | Everything that the trained weights depend on, and their digests (docs/formats.md).
  digest | digest | The digest of the trained composition.
  out | text | The folder that was written.
pushed | registry.hub.target.Pushed
diagnosis | object | What was found in a model folder.
  folder | text | The folder.
  healthy | true or false | True if there is no error; there may be warnings.
  verdict | text | The diagnosis in one sentence.
  findings | list of registry.doctor.finding.Finding | Errors first, then warnings, what is in order, and what was
      skipped.
  perplexity | by domain: number | A perplexity.
  next | text or null | The one command to type now, or what to do.
compose | composed | The composition that was written, or with --plan would be.
  digest | digest or null | The composition's digest, over the five fields above; null with --plan and --fit, before
      the fit.
  versions | list of text | The members' versions.
  dtype | text | The dtype of the written weights.
  parameters | whole number | Weights, tied ones once.
  active_parameters | whole number | Weights used for one token.
  bytes | whole number | The size of the weight files.
  context | registry.composition.plan.RoutingCost or null | What --router context adds; null without it.
  peak_bytes | whole number | Estimated peak memory, beyond the program itself.
  warnings | list of registry.composition.plan.PlanWarning | Predicted from stored counts; empty if none, or if the
      prediction would take long.
  out | text or null | The folder that was written; null with --plan.
  pushed | pushed or null | The result of a push.
  check | diagnosis; may be absent | What was found in a model folder.
row | registry.evaluation.results.Row + average + overall_accuracy + overall_load - losses | The scores of one model.
  accuracy | | Share of its tokens whose first choice is its own expert, by layer.
  load | | Its share of all tokens, by layer.
  routing | | Experts' shares of its tokens' first choices, by layer.
  weights | ; may be absent | Experts' mean routing weights on its tokens, by layer.
  experts_per_token | ; may be absent
  spread | | Standard deviations over the seeds of a random method.
    seeds | | The number of seeds.
    perplexity | by domain: number | That of the perplexity.
    score | by domain: number | That of the score.
    average | | That of the average score.
  accuracy_by_tokens | by domain: by tokens: number; may be absent | Routing accuracy by number of tokens read, mean
      over the layers; 32: of the tokens after the 16th up to the 32nd of a window.
  interval | ; may be absent
  average_interval | ; may be absent
  ahead_of_average | ; may be absent
composition | object | A composition that was made.
  * store.catalog.records.CompositionRecord
extraction | object | The figures of an audit of extraction.
  documents | whole number | Documents that were tried.
  extracted | whole number | Documents that it continued nearly word for word.
  rate | number | Their share, from 0 to 1.
  similarity | number | Mean over documents of the best continuation's similarity, from 0 to 1.
  most | number | The largest of them.
registration | version
  added | true or false | False if this content was registered already.
  self_sampled | true or false | True if no data was given and the expert generated its calibration text.
  relations | list of relation | Distances to registered versions of the same shape, nearest first.
  overlaps | list of overlap | Overlaps with registered experts, largest first.
reg add-expert | registration
reg add-experts | object | The experts of a list.
  experts | list of object | The registered experts, in the order of the list.
    name | text | Its name.
    ref | text | The reference of a version: NAME@NUMBER.
    digest | digest | The digest of its content.
    added | true or false | False if this content was registered already.
  failed | list of object | The others; the exit code is 1 if there are any.
    name | text | Its name.
    kind | text | The kind of error.
    message | text | What failed.
    next | text or null | The next command.
reg add-base | registration
reg check | registry.registration.register.Check
  relations | list of relation
  overlaps | list of overlap or null
reg collect | object | The collected statistics.
  file | text | The file of statistics.
  weights | text | The digest of the weights that computed them.
  tokens | by site: whole number | Calibration tokens.
  calibration_digest | digest | The digest of the calibration tokens.
  calibration_label | text | The label of the calibration.
reg compose | compose
reg instantiate | compose
  domain_weights | by domain: number | Shares of the domains; empty with --fit.
  coefficients | by expert: number | Its coefficient.
reg preview | object | The predicted routing of a composition.
  members | list of registry.composition.preview.PreviewedMember | The experts, in their order.
  accuracy | number | Mean accuracy of the experts.
  confusion | list of list of number | Rows: text of each expert; columns: first choices. Mean over the layers.
  layers | list of object | The predicted layers; with --router context the first stands for all, which route alike.
    layer | whole number | The layer.
    confusion | list of list of number | Rows: text of each expert; columns: first choices.
  overlap | list of object | Overlaps of experts' text.
    experts | list of text | Their versions.
    routing | number | The overlap of activations, mean over the layers; with --router context the overlap of token
        counts.
  by_tokens | list of registry.composition.preview.PreviewedLength + accuracy | With --router context, the prediction by
      number of tokens read; else empty.
  notes | list of text | Limits of the prediction.
reg suggest | registry.composition.suggestion.suggest.Suggestion + known + nobody
reg train-expert | object | The expert that was trained.
  version | version or null | A registered version.
  out | text or null | The folder that was written, with --out.
  * training result
reg train-soup | object | The soup that was trained.
  shared | version | A registered version.
  experts | list of version | Its experts, by number.
  * training result
  loss | | Losses on held-out tokens, before and after, of each domain's with all weight on the domain.
reg train-simoe | object | The SIMoE that was trained.
  experts | list of version | Its experts, by number.
  * training result
  training | | How it was trained, its curves and its masks (docs/formats.md).
  loss | | Losses on held-out tokens after the prompt, before and after.
  sparsity | number | Share of zeros in the final masks.
  closed | whole number | Number of open gates that were closed at the end, for the sparsity.
  overlap | number | Mean overlap of two final masks, from 0 to 1; 0 of one mask.
reg proxy | list of registry.training.proxy_text.ProxyText | Public documents that were chosen for an expert.
  best | | The highest score of a document: the discriminant of the expert's text against the public text, mean over
      layers. Below 0 a document is nearer to the public text.
reg train | trained | The composition that was trained.
reg train-router | trained | The composition whose routers were trained.
reg evaluate | list of row | The scores of one model.
reg scores | list of registry.evaluation.accuracy_scores.AccuracyRow + average | The accuracies of one model.
  accuracy | by domain: by task: number | Accuracies in its tasks, from 0 to 1.
reg report | registry.report.data.ReportData - colours
  scores | | The composition first.
    kind | `composition`, `oracle`, `average`, `base`, `expert` | The kind of model.
    interval | by domain: list of number | 95 % intervals of the scores, over windows: the low and the high end.
  audits | | Those that are stored, the latest first.
    * extraction
  verdict | registry.report.data.Verdict | What the report says first.
reg route | object | A text and the routing of its tokens; with --pick its expert alone.
  expert | text; may be absent | With --pick, the expert that goes on with the text.
  experts | list of text; may be absent | The experts' names, in their order.
  shares | by expert: number; may be absent | Share of the tokens that it handles, over all layers.
  tokens | list of registry.composition.route.RoutedToken; may be absent | In the order of the text.
    expert | text | The expert with the most weight over all layers.
reg audit-extraction | list of object | A model, and how much of the text it gave away.
  folder | text | The model's folder.
  * extraction
reg doctor | diagnosis | What was found in a model folder.
reg continual | object | The results of a schedule.
  schedule | list of text | The experts, in the order in which they joined.
  perplexity | list of list of number | After each step, one per domain so far.
  score | list of list of number | After each step, one per domain so far.
  average | number | Mean score after the last step.
  forgetting | number or null | Mean of a domain's best earlier score minus its last.
  backward_transfer | number or null | Mean of a domain's last score minus its score when it joined.
reg opt-out | object | The opted-out versions, and the copies that remain.
  dry_run | true or false | True with --dry-run: nothing was changed, and the rest says what would be.
  * registry.opt_out.withdraw.OptOut + deleted_arrays + shared_arrays - deleted_digests - shared_digests - old_versions
  versions | list of object | The versions, in their current state.
    ref | text | The reference of a version: NAME@NUMBER.
    digest | digest | The digest of its content.
    withdrawn_at | text | The time when it was withdrawn.
    purged_at | text or null | The time when its arrays were deleted.
  compositions | list of composition
  heirs | | The members of its latest mixtures that would get its tokens; only with --dry-run.
    composition | digest | The mixture.
  remains | | Files that could not be deleted yet, and old versions that a bucket keeps; empty if none.
  receipt | text or null | The receipt's file.
reg receipt verify | registry.opt_out.verify_receipt.ReceiptCheck | A receipt, compared with the registry.
  receipt | object | The content of the receipt (docs/formats.md).
reg receipt statement | object | A receipt as an in-toto Statement.
  _type | text | The kind of document.
  subject | list of object | The withdrawn versions.
    name | text | The reference of a version: NAME@NUMBER.
    digest | object | The digest of its content.
      sha256 | digest | The same, by its algorithm.
  predicateType | text | The kind of predicate.
  predicate | object | The content of the receipt (docs/formats.md).
reg bom | registry.report.bom.BillOfMaterials
reg export-gguf | registry.gguf.export.GgufExport
reg quantize | registry.quantization.quantize.Quantized
reg sign | registry.signing.signature.Signature
reg verify-signature | registry.signing.signature.Signature
reg list | list of version | A registered version.
reg show | version
  bytes | by role: whole number | Bytes of its arrays of that role.
  compositions | list of digest | The compositions made from it.
  relations | list of relation | Distances to registered versions of the same shape, nearest first.
  training | registry.checkpoint.version_files.TrainingRecord or null | How reg train-expert trained it;
      null if it was not trained so.
shown composition | composition
  made_from | list of cli.commands.compositions.Source | The versions, as in `members`, with their state now.
  evaluations | list of object | Its evaluations, latest first.
    asked | digest | The digest of data and settings.
    evaluated_at | text | The time, ISO 8601, UTC.
    data | by domain: object | Its text: label, digest, tokens.
    settings | object | The settings of scoring: windows, seq_len, batch_size, device, dtype.
    figures | row | The scores of one model.
    losses | by domain: object; may be absent | Losses in nats, by block of windows: tokens, composition, own (the
        domain's expert).
    oracle | object or null | The same fields, with every token sent to its domain's own expert.
    active_experts | list of row; may be absent | With other numbers of experts per token, ascending; with
        --active-experts.
    plain_average | object; may be absent | The same fields of the members' averaged weights, with --baselines.
    single_models | list of object; may be absent | The same fields of a base model or an expert, with --baselines.
    bases | by version: digest; may be absent | The digest of a base model of `single_models`.
  audits | list of object | Its audits of extraction, latest first.
    asked | digest | The digest of data and settings.
    evaluated_at | text | The time, ISO 8601, UTC.
    data | object | The text: label, digest of the tokens that were tried, number of documents.
    experts | by expert: digest | The digest of a version whose calibration text it is.
    settings | object | The settings: documents, prefix, continued, top_k, samples, threshold, seed, device.
    extraction | object | The figures: extracted, rate, similarity, most, as of reg audit-extraction.
reg compositions | list of composition | A composition that was made.
reg log | list of object | An event of the log.
  * store.catalog.records.EventRecord
reg alias | object | An alias.
  alias | text | NAME@ALIAS.
  version | text or null | The version it points at; null after --delete.
  before | text or null | The version it pointed at before.
reg export | object | An exported version.
  ref | text | The reference of a version: NAME@NUMBER.
  digest | digest | Its digest.
  out | text | The folder.
reg push | pushed | The result of a push.
reg push-expert | pushed | The result of a push.
reg reproduce | object | The comparison of a folder with its recomposition.
  folder | text | The folder.
  digest | digest | The digest of the recomposition.
  versions | list of text | The versions it was recomposed from, the base model last.
  same | true or false | True if every byte is the same, except for the additions of a push to the card.
  files | list of registry.composition.reproduce.Compared | Every file of either folder.
  bytes | whole number | Number of bytes compared.
  out | text or null | The folder in which the recomposition is kept.
reg verify | registry.maintenance.verify.Verification
reg gc | object | The deleted files, or with --dry-run those that would be deleted.
  * registry.maintenance.garbage.Garbage - nbytes - pieces
  bytes | whole number | The size of these arrays on disk.
  pieces | list of object | Everything above, each with its size: arrays, then files and folders.
    name | text | Its path; of an array its digest.
    bytes | whole number | Its size on disk.
  dry_run | true or false | True if nothing was deleted.
reg ui | object | Printed when the server is ready.
  url | text | The address.
  home | text | The registry's folder.
reg serve | object | Printed when the server is ready.
  url | text | The value for HF_ENDPOINT.
  home | text | The registry's folder.
reg gateway | object | Printed when the gateway is ready.
  url | text | The address, without /v1.
  server | text | The server of adapters.
  experts | by expert: text | The name that the server knows it by.
reg arrays copy | registry.maintenance.array_copy.ArrayCopy
reg db current | object | Revisions of the catalog's schema.
  current | text or null | The catalog's revision; null if there is no catalog.
  head | text | The revision that this program works with.
reg db upgrade | store.catalog.schema.Upgrade
reg db copy | store.catalog.copying.Copied
reg config | object | Settings with their sources, and versions of packages.
  settings | by setting: object | A setting.
    value | text | The value for display; never a password or a token.
    source | text | option --NAME, environment variable NAME, file PATH, default, or in the home.
  versions | by package: text | The installed version.
reg completion | object | A completion script.
  shell | `bash`, `zsh`, `fish` | The shell.
  script | text | The script.
reg schema | object | A JSON Schema (draft 2020-12), or an object of command → schema.
reg demo | registry.demo.run.DemoResult
  orders | by order: text | Order of registration → digest of the composed folder.
  rows | list of row
  compositions | by members: text
error | object | Printed on stderr, on one line, if a command with --json fails.
  error | object | The error.
    kind | text | The kind of error: NotFoundError, ConflictError, UsageError, …
    message | text | The message, with the id concerned.
    next | text or null | The hint: what to do next.
    exit_code | whole number | 1, or 2 for a usage error.
""")
ERROR, SHOWN_COMPOSITION = _FOUND["error"], _FOUND["shown composition"]

SCHEMAS = {name: schema for name, schema in _FOUND.items() if name.startswith("reg ")}
"""Command → schema of its output with --json."""


def schema_of(command: str) -> Schema:
    """Return the schema of a command's output with --json, for example of `reg list`."""
    schema = {"anyOf": [SCHEMAS[command], SHOWN_COMPOSITION]} if command == "reg show" else SCHEMAS[command]
    return {"$schema": _DIALECT, "title": command, **schema}
