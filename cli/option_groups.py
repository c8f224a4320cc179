"""Help of a command: options grouped by what they belong to where there are many, and examples."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import click

from cli.command_names import BY_WORD
from cli.errors import CliError
from cli.options import Option, bring_copies, split
from cli.output import output_options, reg_line
from registry.composition.found import OUTPUTS
from registry.composition.recipe.fields import FIELDS
from registry.names.suggest import suggest

FEW = 8  # number of options up to which a command's help has no headings
MOST = 15  # number of options up to which a command's help lists all of them
_TYPED = f"{__name__}.typed"  # key of the words after the command
_EVERY, _OUTPUT = f"{__name__}.every", f"{__name__}.output"
"""Keys of what help lists in place of the options that most people need: all, or those of one output."""

COMMON = "Common"  # heading of the options that belong to no other
Headings = Mapping[str, Sequence[str]]  # heading → names of parameters, in the order of the help

_COMPUTATION = ("batch_size", "device", "dtype", "max_memory", "ray", "num_gpus")
_VERSION = ("tags", "license", "alias")
_FIT = ("fit", "fit_tokens", "fit_steps", "fit_lr", "fit_seed", "fit_device")

RECIPE: Headings = {
    "Experts": ("experts", "schedule", "recipe_path", "base", "from_base", "public", "like", "weights", "balance"),
    "Output": (
        *("out", "ray", "to", "dtype", "host", "remote_code", "save_recipe", "plan_only", "check", "force"),
        *("as_markdown", "as_csv"),
    ),
    "Trunk": (),
    "Fit of coefficients to text": _FIT,
    "Router": ("top_k", "temperature"),
    "Refinement, on kept tokens": ("refine", "device"),
    "With --to ensemble, hetero or adapters": (),
    "Test text": ("data", "windows", "seq_len", "batch_size"),
    "Hub": ("repo", "private", "license_id", "sign"),
}
"""Headings of the commands that compose; the fields of a recipe are placed by what they are."""

STATISTICS: Headings = {
    "Checkpoint": ("base", "allow_unrelated", "remote_code", "tokenizer_of", "signers"),
    "Calibration text": ("data", "tokens", "document_tokens", "seq_len", "keep_calibration"),
    "Statistics": ("sites", "out"),
    "Computation": _COMPUTATION,
    "Version": _VERSION,
}

TRAINING: Headings = {
    "Model": ("base", "train", "trunk", "lora", "experts", "rank", "hidden"),
    "Training text": ("data", "domains", "clusters", "support"),
    "Training beside a public expert": ("coordinate", "router_bias", "public_data"),
    "Masks": ("sparsity", "overlap", "gate_lr", "dual_lr"),
    "Router": ("prompt_tokens", "top_k_train", "temperature", "no_whitening"),
    "Amount": ("tokens", "steps", "seq_len", "batch_size", "accumulate"),
    "Optimiser": ("lr", "warmup", "weight_decay", "balance", "seed"),
    "Computation": ("device", "dtype", "fsdp"),
    "Output": ("out", "force", "keep_calibration"),
    "Version": _VERSION,
}

EVALUATION: Headings = {
    "Test text": ("data", "windows", "seq_len"),
    "Rows": ("baselines", "oracle", "speed", "active_experts"),
    "Experts to compose": ("experts", "methods", "sweep", "recipe_path", "base", "seeds"),
    "Computation": _COMPUTATION,
    "Output": ("out", "force", "as_markdown", "as_csv"),
}

AUDIT: Headings = {
    "Text": ("data", "documents", "prefix", "continued"),
    "Sampling": ("samples", "top_k", "top_p", "threshold", "seed"),
    "Computation": ("device",),
}

PUSH: Headings = {
    "Repository": ("revision", "private", "create_pr", "force"),
    "Content": ("license_id", "calibration", "sign"),
}

GGUF: Headings = {"Output": ("out", "type", "force"), "llama.cpp": ("llama_cpp", "no_importance", "pre_tokenizer")}

INSTANTIATION: Headings = {
    "Output": ("out", "force"),
    "Mix of domains": ("weights", "like"),
    "Fit of coefficients to text": _FIT,
}


class GroupedCommand(click.Command):
    """A command with --json and --quiet, whose help lists many options under headings and ends with examples."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), headings: Headings = RECIPE, **settings: Any) -> None:
        super().__init__(*args, **settings)
        if not any(one.name == "as_json" for one in self.params):
            self.params += output_options()
        self.examples = tuple(examples)
        self.headings = headings
        own = _visible(self.params)
        self.is_long = len(own) + 1 > MOST  # with --help
        self.outputs = FIELDS["to"].choices if any(one.name == "to" for one in own) else ()
        self._help_all = Option(
            ["--help-all"], is_flag=True, is_eager=True, expose_value=False, hidden=not self.is_long, advanced=True,
            callback=_show_all, help="Show this message with every option and exit.",
        )  # fmt: skip

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, with --help and --help-all."""
        return [*super().get_params(ctx), self._help_all]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words after the command, and keep them for the line that follows it."""
        ctx.meta[_TYPED] = tuple(args)
        if self.outputs and ctx.meta.get(BY_WORD) and (words := " ".join(args[:-1])):
            if words not in self.outputs:
                among = f"among {', '.join(self.outputs)}{suggest(words, self.outputs)}"
                raise click.UsageError(f"there is no output {words!r} {among}", ctx)
            ctx.meta[_OUTPUT] = words
        _check_lists(self, args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, with local copies of the composed folders that it reads from buckets."""
        bring_copies(ctx)
        return super().invoke(ctx)

    def shown(self, ctx: click.Context) -> list[click.Option]:
        """Return the options that the help lists: the most needed ones, all, or those of an output."""
        options = _visible(self.get_params(ctx))
        output = ctx.meta.get(_OUTPUT)
        if ctx.meta.get(_EVERY) or not (output or self.is_long):
            return options
        return [one for one in options if not isinstance(one, Option) or _is_for(one, output)]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the words after the command's name, with the output that help is asked for."""
        output = ctx.meta.get(_OUTPUT)
        return [*([f"--to {output}"] if output else []), *super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, under headings where they are many, and how to see those that are left out."""
        shown, output = self.shown(ctx), ctx.meta.get(_OUTPUT)
        for heading, options in grouped(shown, self.headings):
            with formatter.section(heading):
                formatter.write_dl([*filter(None, (option.get_help_record(ctx) for option in options))])
        left = sum("--help-all" not in one.opts for one in _visible(self.get_params(ctx)) if one not in shown)
        if left:
            of_one = f"; of one output alone: reg help {ctx.info_name} dense" if self.outputs and not output else ""
            of_others = " of other outputs" if output else ""
            formatter.write(f"\n{left} more{of_others}: {ctx.command_path} --help-all{of_one}\n")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, each on a line of its own as it is typed."""
        if self.examples and _OUTPUT not in ctx.meta:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in self.examples))


def command(
    *examples: str, name: str | None = None, headings: Headings = RECIPE
) -> Callable[[Callable[..., Any]], GroupedCommand]:
    """Return a decorator that makes a command of a function, with lines to type as `examples`."""
    return click.command(name, cls=GroupedCommand, examples=examples, headings=headings)


def _show_all(ctx: click.Context, _option: click.Parameter, given: bool) -> None:
    if given and not ctx.resilient_parsing:
        ctx.meta[_EVERY] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def _visible(parameters: Iterable[click.Parameter]) -> list[click.Option]:
    return [one for one in parameters if isinstance(one, click.Option) and not one.hidden]


def _is_for(option: Option, output: str | None) -> bool:
    """Return whether an option has a part in an output; without one, in the default, as one that is not advanced."""
    has_part = not option.outputs or (output or FIELDS["to"].default) in option.outputs
    return has_part and (output is not None or not option.advanced)


def _check_lists(command: click.Command, words: Sequence[str]) -> None:
    """Refuse a list that is typed with spaces, `--experts code, math`; the next command is the same without them."""
    lists = {name for one in command.params if isinstance(one, click.Option) and "," in (one.metavar or "")
             for name in one.opts}  # fmt: skip
    takes_words = any(isinstance(one, click.Argument) for one in command.params)
    for index, word in enumerate(words[:-1]):
        option, equals, value = word.partition("=")
        if option not in lists or word == "--":
            continue
        last = begin = index if equals else index + 1
        while last + 1 < len(words) and not words[last + 1].startswith("-"):
            if takes_words and not (words[last].endswith(",") or words[last + 1].startswith(",")):
                break
            last += 1
        if last > begin:
            listed = ",".join(split([value if equals else words[begin], *words[begin + 1 : last + 1]]))
            again = [*words[:index], option, listed, *words[last + 1 :]]
            message = f"{option}: separate by commas, without spaces: {option} {listed}"
            raise CliError(message, reg_line([*filter(None, [command.name]), *again]), "UsageError", 2)


def typed_words(*, without: Collection[str] = (), renamed: Mapping[str, str] | None = None) -> list[str]:
    """Return the words of this command as they were typed, without some parameters, and with options `renamed`."""
    context = click.get_current_context()
    parser = context.command.make_parser(context)
    values, _, order = parser.parse_args([*context.meta.get(_TYPED, ())])
    arguments: list[str] = []
    options: list[str] = []
    for parameter in dict.fromkeys(order):
        name, value = str(parameter.name), values.get(str(parameter.name))
        if name in without or value is None or getattr(parameter, "hidden", False):
            continue
        several = list(value) if isinstance(value, (list, tuple)) else [value]
        if not isinstance(parameter, click.Option):
            arguments += several
        elif parameter.is_flag:
            options.append(parameter.opts[-1] if value else parameter.secondary_opts[-1])
        else:
            option = (renamed or {}).get(name, parameter.opts[-1])
            options += [word for one in several for word in (option, one)]
    return arguments + options


class CommandGroup(click.Group):
    """A group whose help lists its commands by their first paragraphs, none of them cut."""

    command_class = GroupedCommand

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, " ".join((own.help or "").split("\n\n")[0].split())) for name, own in self.commands.items()]
            )


def grouped(
    parameters: Iterable[click.Parameter], headings: Headings = RECIPE
) -> list[tuple[str, list[click.Parameter]]]:
    """Return each heading that has options, with these, in the order of the help; few options have one heading."""
    options = _visible(parameters)
    if len(options) <= FEW:
        return [("Options", [*options])]
    found: dict[str, list[click.Parameter]] = {}
    for option in options:
        found.setdefault(heading_of(str(option.name), headings), []).append(option)
    return [(heading, found[heading]) for heading in (*headings, COMMON) if heading in found]


def heading_of(name: str, headings: Headings = RECIPE) -> str:
    """Return the heading of an option, by its parameter's name; that of a recipe's field follows from the field."""
    for heading, names in headings.items():
        if name in names:
            return heading
    if headings is not RECIPE or name not in FIELDS:
        return COMMON
    field = FIELDS[name]
    if name == "trunk" or "trunk" in field.only_with:
        return "Trunk"
    is_combined = any(OUTPUTS[output].is_combined for output in field.outputs)
    return "Router" if is_combined else "With --to ensemble, hetero or adapters"
