"""Names of the commands: their functions, the jobs they are for, shorter names, and words of other programs."""

import re
from pathlib import Path

COMMANDS = {
    name: f"{module}.{'list_' if name == 'list' else name.replace('-', '_')}"
    for module, names in (
        ("register", "add-expert add-experts add-base check collect"),
        ("compose", "compose instantiate"),
        ("routing", "preview"),
        ("suggest", "suggest"),
        ("train_experts", "train-expert train-soup train-simoe"),
        ("train_mixtures", "proxy train train-router"),
        ("evaluate", "evaluate scores"),
        ("routing", "report route"),
        ("doctor", "audit-extraction doctor"),
        ("evaluate", "continual"),
        ("opt_out", "opt-out receipt"),
        ("versions", "list show"),
        ("compositions", "compositions"),
        ("log", "log"),
        ("versions", "alias export"),
        ("push", "push push-expert"),
        ("sign", "sign verify-signature"),
        ("bom", "bom"),
        ("export_gguf", "export-gguf"),
        ("quantize", "quantize"),
        ("doctor", "reproduce"),
        ("maintain", "verify gc"),
        ("ui", "ui"),
        ("serve", "serve gateway"),
        ("maintain", "arrays db"),
        ("setup", "config completion schema"),
        ("demo", "demo"),
    )
    for name in names.split()
}
"""Command → its module in `cli.commands` and its function, in the order of the documentation."""

JOBS = {
    job: tuple(names.split())
    for job, names in {
        "Start": "demo config completion",
        "Register": "add-expert add-experts add-base check collect alias",
        "Train": "train-expert train train-router proxy train-soup train-simoe",
        "Compose": "suggest compose instantiate preview reproduce",
        "Look": "list show compositions log ui evaluate report route doctor scores continual audit-extraction",
        "Share": "push push-expert export export-gguf quantize bom serve gateway sign verify-signature",
        "Withdraw": "opt-out receipt",
        "Maintain": "verify gc arrays db schema",
    }.items()
}
"""Job → commands, in the order of the help; every command stands in one of them."""

ALIASES = {"ls": "list", "rm": "opt-out", "add": "add-expert"}  # shorter name → command

_MEANINGS = {
    ("opt-out", "gc"): "delete",
    ("opt-out",): "remove del drop forget unlearn unregister withdraw uninstall purge erase",
    ("gc",): "clean cleanup prune",
    ("add-expert", "add-base"): "register import load pull download fetch clone install",
    ("compose",): "merge combine mix fuse build make blend join",
    ("list",): "ll experts models status search find",
    ("show",): "info describe inspect cat get view details",
    ("log",): "history events",
    ("push", "push-expert"): "upload publish share deploy",
    ("export",): "save extract dump write",
    ("ui",): "web gui dashboard browse open",
    ("serve", "gateway"): "server host api endpoint",
    ("demo",): "tutorial tour quickstart example start",
    ("add-base", "demo"): "init new create setup",
    ("evaluate",): "eval benchmark bench test perplexity measure",
    ("preview",): "predict simulate",
    ("suggest",): "recommend choose",
    ("route",): "trace explain",
    ("train-expert", "train"): "finetune fine-tune learn tune",
    ("db",): "migrate upgrade migration",
    ("config",): "settings env version configure",
    ("alias",): "tag rename name",
    ("verify",): "fsck validate integrity audit",
}

SYNONYMS = {word: commands for commands, words in _MEANINGS.items() for word in words.split()}
"""Word → commands, the likeliest first."""

BY_WORD = f"{__name__}.by_word"  # key of the remark that `help` stands before the command


def first_sentence(text: str) -> str:
    """Return the first sentence of a help text."""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", paragraph)[0]


def summary_of(command: str) -> str:
    """Return the first sentence of a command's help, from the source: to import all commands takes long."""
    module, _, function = COMMANDS[command].partition(".")
    source = (Path(__file__).parent / "commands" / f"{module}.py").read_text(encoding="utf-8")
    found = re.search(rf'^def {function}\(.*?"""(.*?)"""', source, re.DOTALL | re.MULTILINE)
    assert found is not None
    return first_sentence(found[1])
