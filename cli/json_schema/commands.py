"""JSON Schemas of every command's output with --json. A command without one fails the tests."""

from cli.json_schema.notation import Schema, read_schemas
from cli.json_schema.objects import OBJECTS

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_FOUND = read_schemas(
    """\
reg add-expert | object | A registered version.
  * version
  added | true or false | False if this content was registered already.
  self_sampled | true or false | True if no data was given and the expert generated its calibration text.
  relations | list of relation | Distances to registered versions of the same shape, nearest first.
  overlaps | list of overlap | Overlaps with registered experts, largest first.
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
reg add-base | object | A registered version.
  * version
  added | true or false | False if this content was registered already.
  self_sampled | true or false | True if no data was given and the expert generated its calibration text.
  relations | list of relation | Distances to registered versions of the same shape, nearest first.
  overlaps | list of overlap | Overlaps with registered experts, largest first.
reg check | object | A report on a checkpoint.
  label | text | The checkpoint.
  family | text | Its `model_type`.
  hosts | list of text | Hosts that support it, the preferred one first.
  notes | list of text | Remarks on compositions in the preferred host.
  dtype | text | The dtype of most weights.
  parameters | whole number | Weights, tied ones once.
  tokens | whole number or null | Size of its tokenizer's vocabulary; null if it is not comparable.
  relations | list of relation | Distances to registered versions of the same shape, nearest first.
  text | text or null | Label of the text of its statistics; null without text or statistics.
  overlaps | list of overlap or null | Overlaps, largest first; null without text or statistics.
reg collect | object | The collected statistics.
  file | text | The file of statistics.
  weights | text | The digest of the weights that computed them.
  tokens | by site: whole number | Calibration tokens.
  calibration_digest | digest | The digest of the calibration tokens.
  calibration_label | text | The label of the calibration.
reg compose | object | The composition that was written, or with --plan would be.
  * compose
reg instantiate | object | The composition that was written, or with --plan would be.
  * compose
  domain_weights | by domain: number | Shares of the domains; empty with --fit.
  coefficients | by expert: number | Its coefficient.
reg preview | object | The predicted routing of a composition.
  members | list of object | The experts, in their order.
    ref | text | The reference of a version: NAME@NUMBER.
    tokens | whole number | Its calibration tokens.
    part | number | Its weight in the routers' solve, from 0 to 1; with --router context the same for all.
    accuracy | number | Predicted share of its tokens whose first choice is it, mean over the layers.
    share | number | Predicted share of first choices, if each expert's text has the same number of tokens.
    drowned | text or null | The reason why it is drowned out by the others; null if it is not.
  accuracy | number | Mean accuracy of the experts.
  confusion | list of list of number | Rows: text of each expert; columns: first choices. Mean over the layers.
  layers | list of object | The predicted layers; with --router context the first stands for all, which route alike.
    layer | whole number | The layer.
    confusion | list of list of number | Rows: text of each expert; columns: first choices.
  overlap | list of object | Overlaps of experts' text.
    experts | list of text | Their versions.
    routing | number | The overlap of activations, mean over the layers; with --router context the overlap of token
        counts.
  by_tokens | list of object | With --router context, the prediction by number of tokens read; else empty.
    tokens | whole number | The number of tokens.
    accuracy | number | Mean accuracy of the experts.
    confusion | list of list of number | Rows: text of each expert; columns: first choices.
  notes | list of text | Limits of the prediction.
reg train-expert | object | The expert that was trained.
  version | version or null | A registered version.
  out | text or null | The folder that was written, with --out.
  training | object | How it was trained, and its loss curve (docs/formats.md).
  loss | list of number | Losses on held-out tokens, before and after.
  tokens | whole number | Number of held-out tokens.
  trained_tokens | whole number | Tokens that were trained on, padding included: those of all windows of all steps.
reg train-soup | object | The soup that was trained.
  shared | version | A registered version.
  experts | list of version | Its experts, by number.
  training | object | How it was trained, and its loss curve (docs/formats.md).
  loss | list of number | Losses on held-out tokens, before and after, of each domain's with all weight on the domain.
  tokens | whole number | Number of held-out tokens.
  trained_tokens | whole number | Tokens that were trained on, padding included: those of all windows of all steps.
reg train-simoe | object | The SIMoE that was trained.
  experts | list of version | Its experts, by number.
  training | object | How it was trained, its curves and its masks (docs/formats.md).
  loss | list of number | Losses on held-out tokens after the prompt, before and after.
  tokens | whole number | Number of held-out tokens.
  trained_tokens | whole number | Tokens that were trained on, padding included: those of all windows of all steps.
  sparsity | number | Share of zeros in the final masks.
  closed | whole number | Number of open gates that were closed at the end, for the sparsity.
  overlap | number | Mean overlap of two final masks, from 0 to 1; 0 of one mask.
reg proxy | list of object | Public documents that were chosen for an expert.
  name | text | The expert's name.
  path | text | Their file, a document a row.
  documents | whole number | Number of documents chosen.
  candidates | whole number | Number of documents that they were chosen from.
  best | number | The highest score of a document: the discriminant of the expert's text against the public text, mean
      over layers. Below 0 a document is nearer to the public text.
  least | number | The lowest score of a chosen one.
reg train | object | The composition that was trained.
  * trained
reg train-router | object | The composition whose routers were trained.
  * trained
reg evaluate | list of row | The scores of one model.
reg scores | list of object | The accuracies of one model.
  name | text | Its name.
  accuracy | by domain: by task: number | Accuracies in its tasks, from 0 to 1.
  score | by domain: number | 100 · accuracy / accuracy of the domain's own expert, mean over the tasks.
  metric | by domain: by task: text | Metrics of its tasks.
  average | number or null | Mean score, if every domain has one.
reg report | object | The content of a report; parts without data are null or empty, and the notes give the reasons.
  name | text | The composition's folder, or its members.
  digest | digest | The composition's digest.
  to | text | The output of its recipe: moe, dense, ensemble, hetero or simoe.
  folder | text or null | A folder that it is in.
  verdict | object | What the report says first.
    text | text | One or two sentences.
    command | text or null | The command that says more.
  warnings | list of object | The gravest first.
    text | text | Sentences.
    mend | text | What mends it.
    command | text or null | The command that mends it.
  host | text | Its `model_type`.
  made | text or null | The time when it was first composed here, ISO 8601.
  recipe | by setting: text | Its value.
  members | list of object | The experts, in their order.
    name | text | The expert.
    ref | text or null | Its version in this registry; null if it is not registered, or was opted out.
    digest | digest | The digest of its content.
    tokens | whole number or null | Calibration tokens.
    license | text or null | Its license.
    drowned | text or null | The reason why it is predicted to be drowned out.
    opted_out | text or null | The version that was opted out since.
  parameters | whole number or null | Weights.
  active_parameters | whole number or null | Weights used for one token.
  top_k | whole number or null | Experts per token.
  routing | object or null | The first choices of the tokens of each domain.
    measured | true or false | True if counted on test text, false if predicted from statistics.
    layers | list of whole number | Layer numbers.
    shares | by domain: by expert: list of number | Shares of its tokens, by layer.
    load | by expert: list of number | Share of all tokens, by layer.
    weights | by domain: by expert: list of number | Mean routing weights on them, by layer.
  overlap | list of list of text or number | Expert, expert, overlap of activations; routed by context, overlap of
      token counts.
  indistinct | number | The share from which on routing hardly separates two experts.
  scores | list of object | The composition first.
    name | text | The model.
    kind | `composition`, `oracle`, `average`, `base`, `expert` | The kind of model.
    score | by domain: number | Normalised: 100 is the domain's own expert.
    perplexity | by domain: number | Its perplexity.
    average | number or null | Mean score, if every domain has one.
    interval | by domain: list of number | 95 % intervals of the scores, over windows: the low and the high end.
    average_interval | list of number or null | The same of the average: the low and the high end.
    ahead_of_average | list of number or null | 95 % interval of its average less that of averaged weights.
  evaluated | object or null | The data of scores and measured routing.
    at | text or null | The time, ISO 8601; null for now.
    tokens | by domain: whole number | Predicted tokens.
    labels | by domain: text | The label of its text.
  active_experts | list of object | Ascending, from the latest evaluation with --active-experts; empty without one.
    experts_per_token | whole number | The number.
    active_parameters | whole number | Weights used for one token.
    score | by domain: number | Normalised: 100 is the domain's own expert.
    perplexity | by domain: number | Its perplexity.
    average | number or null | Mean score, if every domain has one.
  trainings | list of object | Of the members that were trained so.
    name | text | The expert.
    * training
  audits | list of object | Those that are stored, the latest first.
    text | text | The label of its text.
    * extraction
    prefix | whole number | Tokens that it was given.
    continued | whole number | Tokens that it continued by.
    at | text | The time, ISO 8601, UTC.
  lineage | list of object | Sources of the composition, and compositions trained from it.
    id | text | Its identifier, which others name as a source.
    label | text | Its label.
    kind | text | Its kind: base, expert, composition or trained.
    of | list of text | The models it comes from.
    told | text | Its caption.
  notes | list of text | Missing parts, with reasons.
  training | object or null | The latest training of the composition by reg train.
    name | text | What was trained.
    * training
  from_base | whole number or null | The number of members, where they are copies of a base model.
  mask_overlap | list of list of text or number | Of a SIMoE: expert, expert, overlap of their masks, from 0 to 1.
  mask_joins | list of object | Of a SIMoE: average linkage over 1 - overlap, the most alike first; the last one has
      all experts.
    first | list of text | The experts of one group.
    second | list of text | Those of the other.
    overlap | number | Mean overlap of a mask of one with a mask of the other.
reg route | object | A text and the routing of its tokens.
  experts | list of text | The experts' names, in their order.
  shares | by expert: number | Share of the tokens that it handles, over all layers.
  tokens | list of object | In the order of the text.
    id | whole number | Its number in the vocabulary.
    text | text | Its characters; empty if it completes a character that an earlier token began.
    special | true or false | True if the tokenizer added it.
    experts | list of text | Its first choice, by layer.
    weights | list of by expert: number | Routing weights, by layer.
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
  versions | list of object | The versions, in their current state.
    ref | text | The reference of a version: NAME@NUMBER.
    digest | digest | The digest of its content.
    withdrawn_at | text | The time when it was withdrawn.
    purged_at | text or null | The time when its arrays were deleted.
  withdrew | list of text | The versions that were active before.
  deleted | list of text | The versions that were not purged before.
  compositions | list of composition | The compositions ever made from any of them.
  heirs | list of object | The members of its latest mixtures that would get its tokens; only with --dry-run.
    composition | digest | The mixture.
    ref | text | The reference of a version: NAME@NUMBER.
    shares | by expert: number | Shares, predicted from counts of tokens.
  trained_together | list of text | Active versions whose weights were trained together with it, as of a soup.
  pushes | list of object | The pushes of versions and compositions to the Hub.
    repo | text | ORG/NAME.
    revision | text | The branch, or the pull request.
    endpoint | text | The Hub.
    commit | text or null | The commit; null if the push is not known to have ended.
  purged | true or false | True with --purge.
  deleted_arrays | whole number | Number of deleted arrays.
  deleted_bytes | whole number | Their size on disk.
  shared_arrays | whole number | Number of arrays that stay because another version uses them.
  cleared | list of text | Paths of other deleted files.
  remains | list of text | Files that could not be deleted yet, and old versions that a bucket keeps; empty if none.
  beyond | text or null | Where deleted rows of the catalog may be, out of the registry's reach.
  receipt | text or null | The receipt's file.
reg receipt verify | object | A receipt, compared with the registry.
  receipt | object | The content of the receipt (docs/formats.md).
  problems | list of text | Contradictions to the receipt; empty if it holds.
  remedies | list of text | Remedies of the problems.
  notes | list of text | Later changes that do not contradict the receipt.
reg list | list of version | A registered version.
reg show | object | A registered version.
  * version
  bytes | by role: whole number | Bytes of its arrays of that role.
  compositions | list of digest | The compositions made from it.
  relations | list of relation | Distances to registered versions of the same shape, nearest first.
  training | object or null | How reg train-expert trained it; null if it was not trained so.
    steps | whole number | Number of steps.
    tokens | whole number | Tokens that it was trained on, padding included.
    before | number | Loss on held-out text before the training, in nats per token.
    after | number | The same after the training.
    every | whole number | Number of steps that each number of `loss` is the mean of.
    loss | list of number | Loss curve on the training text.
shown composition | object | A composition that was made.
  * composition
  made_from | list of object | The versions, as in `members`, with their state now.
    ref | text | The reference of a version: NAME@NUMBER.
    state | `active`, `withdrawn`, `purged` | Its state now.
    opted_out_at | text or null | The time when it was withdrawn or purged; null if it is active.
    public | true or false | True if it is the public expert of --router anchored.
    bias | number or null | With --router anchored, the bias that was asked for; null without one.
    trained_bias | list of number or null | The bias trained beside its router rows, by layer; null without one.
    bias_after_training | list of number or null | Its bias after the training of the composition, by layer; null
        without.
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
  id | whole number | Its number.
  at | text | The time, ISO 8601, UTC.
  action | text | The action.
  subject | text | A version, a composition's digest, or empty.
  details | object | Details, depending on the action; `actor` says who did it.
  digest | digest | The digest of the event and the event before it.
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
  files | list of object | Every file of either folder.
    name | text | Its path in the folder.
    state | `same`, `differs`, `missing`, `added`, `pushed` | The result of the comparison.
    at | whole number or null | The first byte that differs.
  bytes | whole number | Number of bytes compared.
  out | text or null | The folder in which the recomposition is kept.
reg verify | object | The result of a verification.
  versions | whole number | Number of versions checked.
  arrays | whole number | Number of arrays hashed.
  nbytes | whole number | Their uncompressed size.
  problems | list of text | Damaged content; empty if all is intact.
  orphans | whole number | Number of arrays that nothing uses; reg gc deletes them.
  events | whole number | Number of intact events of the log.
  head | text | The digest of the last intact event.
reg gc | object | The deleted files, or with --dry-run those that would be deleted.
  digests | list of digest | Arrays that nothing uses.
  bytes | whole number | Their size on disk.
  passes | whole number | Running or interrupted passes.
  pass_bytes | whole number | Their size.
  merged | whole number | Merged adapters.
  merged_bytes | whole number | Their size.
  work | whole number | Temporary models of interrupted compositions.
  work_bytes | whole number | Their size.
  cached | whole number | Cached statistics of compositions.
  cached_bytes | whole number | Their size.
  pieces | list of object | Everything above, each with its size: arrays, then files and folders.
    name | text | Its path; of an array its digest.
    bytes | whole number | Its size on disk.
  dry_run | true or false | True if nothing was deleted.
reg ui | object | Printed when the server is ready.
  url | text | The address.
  home | text | The registry's folder.
reg arrays copy | object | The result of copying arrays.
  source | text | Where they were, and still are.
  target | text | Where they are now too.
  copied | whole number | Number of arrays that were written and read back.
  kept | whole number | Number of arrays that were there already, intact.
  nbytes | whole number | Uncompressed size of those that were written.
  problems | list of text | Arrays that are damaged and were not copied; empty if none.
reg db current | object | Revisions of the catalog's schema.
  current | text or null | The catalog's revision; null if there is no catalog.
  head | text | The revision that this program works with.
reg db upgrade | object | The result of an upgrade.
  before | text or null | The catalog's revision before.
  after | text | The catalog's revision now.
  backup | text or null | The copy made before the upgrade.
reg db copy | object | The copy of a catalog.
  source | text | The URL it was copied from, with any password hidden.
  target | text | The URL it was copied to, with any password hidden.
  id | text | The registry's id, the same in both.
  rows | by table: whole number | Number of rows.
  events | whole number | Number of events of the log.
  head | text | The digest of the last event.
reg config | object | Settings with their sources, and versions of packages.
  settings | by setting: object | A setting.
    value | text | The value for display; never a password or a token.
    source | text | option --NAME, environment variable NAME, file PATH, default, or in the home.
  versions | by package: text | The installed version.
reg completion | object | A completion script.
  shell | `bash`, `zsh`, `fish` | The shell.
  script | text | The script.
reg schema | object | A JSON Schema (draft 2020-12), or an object of command → schema.
reg demo | object | The result of the demo.
  folder | text | The folder with text, checkpoints, registry and moe.
  domains | list of text | The experts' names.
  rows | list of row | Scores of base, experts, averaged weights and composition.
  orders | by order: text | Order of registration → digest of the composed folder.
  opted_out | text | SHA-256 over the composition after an opt-out.
  never_registered | text | The same for a registry that never held the expert.
  withdrawn | text | The expert that was opted out.
  compositions | by members: text | Digest of a composition, as reg compose prints it.
error | object | Printed on stderr, on one line, if a command with --json fails.
  error | object | The error.
    kind | text | The kind of error: NotFoundError, ConflictError, UsageError, …
    message | text | The message, with the id concerned.
    next | text or null | The hint: what to do next.
    exit_code | whole number | 1, or 2 for a usage error.
""",
    OBJECTS,
)
ERROR, SHOWN_COMPOSITION = _FOUND["error"], _FOUND["shown composition"]

SCHEMAS = {name: schema for name, schema in _FOUND.items() if name.startswith("reg ")}
"""Command → schema of its output with --json."""


def schema_of(command: str) -> Schema:
    """Return the schema of a command's output with --json, for example of `reg list`."""
    schema = {"anyOf": [SCHEMAS[command], SHOWN_COMPOSITION]} if command == "reg show" else SCHEMAS[command]
    return {"$schema": _DIALECT, "title": command, **schema}
