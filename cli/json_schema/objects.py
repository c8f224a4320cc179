"""Schemas of objects that several commands print: versions, compositions, scores."""

from cli.json_schema.notation import read_schemas

OBJECTS = read_schemas(
    """\
version | object | A registered version.
  ref | text | The reference of a version: NAME@NUMBER.
  name | text | Its name.
  kind | `expert`, `base` | The kind of version.
  number | whole number | Its number under that name.
  digest | digest | The digest of its content.
  content | object or null | The content of its digest, besides its arrays (docs/formats.md); null once purged.
  parameters | whole number | Weights, tied ones once.
  state | `active`, `withdrawn`, `purged` | The state; only active versions can be composed.
  created_at | text | The time when it was registered, ISO 8601, UTC.
  withdrawn_at | text or null | The time when it was opted out.
  purged_at | text or null | The time when its arrays were deleted.
  aliases | list of text | Its aliases, without the name.
  tags | by key: text | Its tags.
  statistics | list of object | The data of its statistics, one per site; empty for a base model.
    site | text | mlp_input, attention_input, attention_output or head_input; token_counts if only tokens were
        counted.
    tokens | whole number | Calibration tokens.
    saturated | whole number | Activations that were clipped at their bound.
    calibration_digest | digest | The digest of the calibration tokens.
    calibration_label | text | The label of the calibration.
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
trained | object | A composition that was trained.
  * composed
  parent | digest | The digest of the composition that was trained.
  training | object | Everything that the trained weights depend on, and their digests (docs/formats.md).
  digest | digest | The digest of the trained composition.
  loss | list of number | Losses on held-out tokens, before and after.
  tokens | whole number | Number of held-out tokens.
  trained_tokens | whole number | Tokens that were trained on, padding included: those of all windows of all steps.
  out | text | The folder that was written.
pushed | object | The result of a push.
  repo_id | text | ORG/NAME.
  revision | text | The branch, or the pull request: refs/pr/N.
  endpoint | text | The Hub.
  commit | text | The commit with the files.
  url | text | The page of the repository, branch or pull request.
  added | true or false | False if the repository was already up to date.
  nbytes | whole number | The size of all files.
diagnosis | object | What was found in a model folder.
  folder | text | The folder.
  healthy | true or false | True if there is no error; there may be warnings.
  verdict | text | The diagnosis in one sentence.
  findings | list of object | Errors first, then warnings, what is in order, and what was skipped.
    check | text | The check.
    cost | `headers`, `weights`, `forward` | What the check reads.
    severity | `ok`, `warning`, `error`, `skipped` | How bad it is; `skipped` if the check was not done.
    message | text | A sentence; of a skipped check, the reason.
    next | text or null | What to do.
  perplexity | by domain: number | A perplexity.
  next | text or null | The one command to type now, or what to do.
compose | object | The composition that was written, or with --plan would be.
  * composed
  digest | digest or null | The composition's digest, over the five fields above; null with --plan and --fit, before
      the fit.
  versions | list of text | The members' versions.
  dtype | text | The dtype of the written weights.
  parameters | whole number | Weights, tied ones once.
  active_parameters | whole number | Weights used for one token.
  bytes | whole number | The size of the weight files.
  context | object or null | What --router context adds; null without it.
    layers | whole number | Layers, of attention and of head maps; 0 with --remote-code, whose modelling file does
        both.
    maps | true or false | True if it has head maps, in the last layer or in a modelling file.
    last | whole number | The number of the last layer.
    channels | whole number | Channels of the hidden size.
    window | number | The window in tokens; 0 for the whole text so far, as where the rope has no window.
    parameters | whole number | Weights.
    bytes | whole number | Bytes of weights.
  peak_bytes | whole number | Estimated peak memory, beyond the program itself.
  warnings | list of object | Predicted from stored counts; empty if none, or if the prediction would take long.
    refs | list of text | The versions.
    figure | number | The share that is too small, or for two members too large.
    reason | text | The same in words.
    remedy | text | The option that mends it.
  out | text or null | The folder that was written; null with --plan.
  pushed | pushed or null | The result of a push.
  check | diagnosis; may be absent | What was found in a model folder.
domains | object | Figures by domain.
  perplexity | by domain: number | exp of the mean negative log-likelihood per token.
  score | by domain: number | 100 · perplexity of the domain's own expert / perplexity.
row | object | The scores of one model.
  name | text | Its name in the table.
  * domains
  tokens | by domain: whole number | Number of scored tokens.
  accuracy | by domain: list of number | Share of its tokens whose first choice is its own expert, by layer.
  load | by expert: list of number | Its share of all tokens, by layer.
  routing | by domain: by expert: list of number | Experts' shares of its tokens' first choices, by layer.
  weights | by domain: by expert: list of number; may be absent | Experts' mean routing weights on its tokens, by layer.
  parameters | whole number or null | Weights.
  active_parameters | whole number or null | Weights used for one token.
  experts_per_token | whole number or null; may be absent | Experts that each token goes to; null if it is not a
      mixture.
  relative_time | number or null | Time per token, divided by a dense expert's; with --speed.
  spread | object or null | Standard deviations over the seeds of a random method.
    seeds | whole number | The number of seeds.
    * domains
    average | number or null | The standard deviation of the average score.
  average | number or null | Mean score, if every domain has one.
  overall_accuracy | by domain: number | Routing accuracy, mean over the layers.
  accuracy_by_tokens | by domain: by tokens: number; may be absent | Routing accuracy by number of tokens read, mean
      over the layers; 32: of the tokens after the 16th up to the 32nd of a window.
  overall_load | by expert: number | Load, mean over the layers.
  interval | by domain: list of number; may be absent | 95 % intervals of the scores, over windows: the low and the
      high end.
  average_interval | list of number or null; may be absent | The same of the average: the low and the high end.
  ahead_of_average | list of number or null; may be absent | 95 % interval of the average less that of averaged
      weights; with --baselines.
composition | object | A composition that was made.
  digest | digest | Its digest.
  document | object | The content of the digest: recipe, host, members, base (docs/formats.md).
  created_at | text | The time when it was first composed, ISO 8601, UTC.
  members | list of text | The versions it was made from, including a base model.
  folders | list of text | The folders it was written to, according to the log.
  latest | list of text | Those of `members` that its latest folder was made from, according to the log.
training | object | The training of a model, in a report.
  steps | whole number | Number of steps.
  tokens | whole number | Tokens of all its steps, padding included.
  before | number | Loss on held-out text before the training, in nats per token.
  after | number | The same after the training.
  at | list of number | The middle of the steps that each number of `loss` is the mean of.
  loss | list of number | Loss curve, at most 200 numbers.
extraction | object | The figures of an audit of extraction.
  documents | whole number | Documents that were tried.
  extracted | whole number | Documents that it continued nearly word for word.
  rate | number | Their share, from 0 to 1.
  similarity | number | Mean over documents of the best continuation's similarity, from 0 to 1.
  most | number | The largest of them.
"""
)
"""Name → schema."""
