"""Command of files for llama.cpp: export-gguf."""

from pathlib import Path

import click

from cli.option_groups import GGUF, command
from cli.options import Choice, composed_path, file, flag, option
from cli.output import done, next_step, printed_json
from cli.session import Session, pass_session
from registry.gguf.types import TYPES
from registry.io.display import few
from registry.io.model_folder import require_composed


@command(
    "reg export-gguf moe/ --out moe.gguf --llama-cpp llama.cpp/",
    "reg export-gguf moe/ --out moe-q4.gguf --type q4_K_M",
    "reg export-gguf adapters/ --out gguf/",
    headings=GGUF,
)
@click.argument("folder", metavar="FOLDER", type=composed_path)
@file("--out PATH", "The file; of FOLDER with adapters a folder.", required=True)
@option(
    "--type TYPE",
    f"{', '.join(TYPES[:-1])} or {TYPES[-1]}. [default: the one that holds the weights exactly]",
    type=Choice(TYPES, case_sensitive=False),
)
@file("--llama-cpp DIR", "The folder of llama.cpp's source. [default: that of convert_hf_to_gguf.py on PATH]")
@flag("--no-importance", "Do not weigh errors of q6_K and fewer bits by the members' statistics.")
@option("--pre-tokenizer NAME", "llama.cpp's rules that cut text as an unknown tokenizer does, such as llama-bpe.")
@flag("--force", "Replace --out, a file.")
@pass_session
def export_gguf(
    session: Session,
    folder: Path,
    out: Path,
    type: str | None,  # noqa: A002 - llama.cpp's word
    llama_cpp: Path | None,
    no_importance: bool,
    pre_tokenizer: str | None,
    force: bool,
) -> None:
    """Write a composed FOLDER as GGUF, by llama.cpp's own converter and llama-quantize.

    Errors of few bits are weighed by the members' statistics, each expert's by its own: an importance matrix without a
    pass over text. Tokens of llama.cpp are compared with the tokenizer's where there is a llama-tokenize. Of FOLDER
    with adapters, the base model and each expert become a file, a LoRA that llama-server loads with --lora.
    """
    require_composed(folder)  # before a registry is opened
    with session.registry(create=True) as registry:  # none is needed where no statistics are
        made = registry.export_gguf(
            folder, out, type,
            llama_cpp=llama_cpp, importance=not no_importance, pre_tokenizer=pre_tokenizer, replace=force,
        )  # fmt: skip
    if printed_json(made):
        return
    model, *experts = made.files
    lines = [f"wrote {one.file}  {one.type}, {one.nbytes / 1e6:,.1f} MB" for one in made.files]
    if made.importance is not None:
        found = made.importance
        lines.append(f"  weighed {found.weighed} of {found.matrices} matrices by statistics of {few([*found.members])}")
    if made.tokens is not None:
        lines.append(f"  tokens of sample text are the tokenizer's: {made.tokens:,} of {made.tokens:,}")
    done(str(model.file), *lines)
    loras = "".join(f" --lora {one.file}" for one in experts)  # of which a request names its own
    next_step(f"llama-server -m {model.file}{loras}{' --lora-init-without-apply' if experts else ''}")
