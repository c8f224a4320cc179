"""Checks of what stands between text and tokens: the vocabulary's size, special tokens, the chat template."""

from collections.abc import Iterator
from typing import Any

from registry.checkpoint.model_files import TOKENIZER_FILES
from registry.doctor.examination import Examination, listed
from registry.doctor.finding import Finding, error, passed, skipped, warning
from registry.errors import CheckpointError, RegError, first_line, is_foreign
from registry.io.display import printable
from registry.io.files import own_file

_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")
_OWN_TOKENIZER = "put the tokenizer that the model was trained with into the folder"
_CHAT = ({"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "It is 4."})


def check_vocabulary(folder: Examination) -> Iterator[Finding]:
    """Compare the rows of the embedding with config.json and with the tokenizer."""
    rows, size = folder.embedding_rows, folder.config.get("vocab_size")
    whole_members = isinstance(folder.config.get("members"), list)
    if rows is not None and isinstance(size, int) and rows != size and not whole_members:
        yield error(
            f"config.json says vocab_size {size:,}, the embedding has {rows:,} rows",
            f"set vocab_size to {rows} in config.json, if the embedding is right",
        )
        return
    if not any(own_file(folder.path, name) for name in TOKENIZER_FILES):
        yield skipped("it has no tokenizer; to check generation too, put its tokenizer's files into the folder")
        return
    numbers = _numbers(folder)
    if rows is not None and numbers and max(numbers) >= rows:
        yield error(
            f"the tokenizer has tokens up to number {max(numbers):,}, the embedding has {rows:,} rows", _OWN_TOKENIZER
        )
    elif rows is not None and numbers and len(numbers) < rows // 2:
        yield warning(f"the tokenizer has {len(numbers):,} tokens, the embedding {rows:,} rows", _OWN_TOKENIZER)


def _numbers(folder: Examination) -> set[int]:
    try:
        return set(map(int, folder.tokenizer.get_vocab().values()))
    except RegError:
        raise
    except Exception as failure:  # tokenizers raise many kinds
        raise CheckpointError(
            f"its tokenizer does not list its tokens: {first_line(failure)}", _OWN_TOKENIZER
        ) from failure


def check_special_tokens(folder: Examination) -> Iterator[Finding]:
    """Check that the tokens that begin, end and pad a text exist, and that all files agree on them."""
    rows = folder.embedding_rows or folder.config.get("vocab_size")
    configs = {"config.json": folder.config, "generation_config.json": folder.generation_config}
    for file, config in configs.items():
        for name in _SPECIAL:
            for number in listed(config.get(name)):
                if not isinstance(number, int) or isinstance(number, bool):
                    yield error(
                        f"{file}: {name} is {str(number)[:40]!r}, it must be a token's number", f"mend it in {file}"
                    )
                elif number < 0 and name == "pad_token_id":
                    yield warning(f"{file}: {name} is {number}, which is no token", f"remove {name} from {file}")
                elif isinstance(rows, int) and not 0 <= number < rows:
                    yield error(
                        f"{file}: {name} is {number}, the vocabulary has {rows:,} tokens"
                        + (": it would never stop" if name == "eos_token_id" else ""),
                        f"set {name} in {file} to the tokenizer's own",
                    )
    own = getattr(folder.tokenizer, "eos_token_id", None) if _has_tokenizer(folder) else None
    ends = listed(folder.generation_config.get("eos_token_id")) or listed(folder.config.get("eos_token_id"))
    if not ends and own is None:
        yield warning("no file names an end token (eos_token_id), so generation never stops by itself")
    elif not ends:
        yield warning(
            f"config.json names no end token, the tokenizer's is {own}: generation may never stop",
            f"set eos_token_id to {own} in generation_config.json",
        )
    elif own is not None and own not in ends:
        yield warning(
            f"generation stops at token {', '.join(map(str, ends[:5]))}, the tokenizer's end token is {own}: it may "
            "never stop",
            f"add {own} to eos_token_id in generation_config.json",
        )


def check_chat_template(folder: Examination) -> Iterator[Finding]:
    """Render a conversation of two messages by the chat template, in the sandbox of transformers."""
    templates = getattr(folder.tokenizer, "chat_template", None)
    if not templates:
        with_template = [name for name, member in folder.members.items() if _has_template(member)]
        if with_template:
            yield warning(
                f"it has no chat template, though {with_template[0]} has one: chats would be rendered otherwise than "
                "the member was trained on",
                "copy chat_template.jinja or tokenizer_config.json from that member's checkpoint",
            )
        else:
            yield passed("it has no chat template, and needs none to continue text")
        return
    names = list(templates) if isinstance(templates, dict) else [None]
    for name in names[:8]:
        try:
            text = str(folder.tokenizer.apply_chat_template(list(_CHAT), chat_template=name, tokenize=False))
        except ImportError:
            yield skipped("rendering chat templates needs jinja2: pip install jinja2")
            return
        except BaseException as failure:  # templates are programs of the checkpoint's author
            if not is_foreign(failure):
                raise
            which = f" {name[:40]!r}" if name else ""
            yield error(
                f"its chat template{which} fails on a conversation of two messages: "
                f"{printable(first_line(failure))[:200]}",
                "mend chat_template.jinja, or copy that of the model's base",
            )
            return
        if any(str(message["content"]) not in text for message in _CHAT):
            yield warning("its chat template leaves out a part of a conversation of two messages")


def _has_template(member: Any) -> bool:
    files = member.names("file")
    if "chat_template.jinja" in files or "chat_template.json" in files:
        return True
    return "tokenizer_config.json" in files and b'"chat_template"' in member.file("tokenizer_config.json")


def _has_tokenizer(folder: Examination) -> bool:
    try:
        return folder.tokenizer is not None
    except RegError:
        return False
