"""Commands for the words of other programs, which people type first."""

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
    ("ui",): "serve server web gui dashboard browse open",
    ("demo",): "tutorial tour quickstart example start",
    ("add-base", "demo"): "init new create setup",
    ("evaluate",): "eval benchmark bench test perplexity measure",
    ("preview",): "predict simulate",
    ("route",): "trace explain",
    ("train-expert", "train"): "finetune fine-tune learn tune",
    ("db",): "migrate upgrade migration",
    ("config",): "settings env version configure",
    ("alias",): "tag rename name",
    ("verify",): "fsck validate integrity audit",
}

SYNONYMS = {word: commands for commands, words in _MEANINGS.items() for word in words.split()}
"""Word → commands, the likeliest first."""
