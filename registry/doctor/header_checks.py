"""Checks that read small files and headers: files, dtypes, vocabulary, special tokens, template, sizes, keys, members.

One, `check_integrity`, reads every file of a composition.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch

from registry.checkpoint.model_files import TOKENIZER_FILES
from registry.doctor.examination import FLOATS, Examination
from registry.doctor.finding import Finding, error, passed, skipped, warning
from registry.doctor.tensor_names import in_words, is_made_up, named, numbers_of, role_of, tensors_of
from registry.errors import CheckpointError, ConflictError, RegError, first_line, is_foreign
from registry.io.display import few, printable
from registry.io.dtypes import NAMES, SAFETENSORS
from registry.io.model_folder import INDEX, MARKER
from registry.io.torch_blocks import torch_dtype
from registry.io.untrusted import own_file, read_json
from registry.names.resolve import find_by_digest
from registry.runtime.folder_checks import check_members as check_members_config
from registry.runtime.folder_checks import check_stored_sizes
from registry.runtime.loading import unfilled_model

_QUANTISED = (".qweight", ".qzeros", ".weight_scale", ".weight_scale_inv", ".absmax", ".quant_map", ".SCB")
"""Ends of the names of tensors that only quantised weights have."""


_BUFFERS = ("attention.bias", "attn.bias", ".masked_bias", "inv_freq", "position_ids", "num_batches_tracked")
"""Ends of the names of tensors that are no weights."""

_MASKS = "masks"  # the masks of a SIMoE, which are bits


def check_files(folder: Examination) -> Iterator[Finding]:
    """Check config.json, the presence of every weight file, and their headers."""
    assert folder.config is not None  # read, or an error that says why not
    tensors = folder.tensors
    if not tensors:
        yield error("its weight files hold no tensor", "save the checkpoint again")
    index = own_file(folder.path, INDEX)
    if index is None:
        return
    listed = read_json(index).get("weight_map")
    assert isinstance(listed, dict)  # its files were found by it
    if absent := [str(name) for name in listed if name not in tensors]:
        yield error(f"{few(absent)}: in {INDEX}, but in none of its files", "copy or save the checkpoint again")
    if misplaced := [name for name in tensors if name in listed and listed[name] != tensors[name].file.name]:
        yield error(f"{few(misplaced)}: {INDEX} names another file than the one it is in", "save the checkpoint again")
    if unlisted := [name for name in tensors if name not in listed]:
        yield warning(f"{few(unlisted)}: in a weight file, but not in {INDEX}", "save the checkpoint again")


def check_dtypes(folder: Examination) -> Iterator[Finding]:
    """Check that weights are numbers that a model computes with, all of the dtype that config.json says."""
    tensors = folder.tensors
    if quantisation := folder.config.get("quantization_config"):
        method = quantisation.get("quant_method") if isinstance(quantisation, dict) else None
        yield skipped(f"its weights are quantised ({str(method)[:40]}), and only those of whole numbers can be checked")
        return
    was_ours = folder.composed is not None and "auto_map" in folder.config  # with the code of an earlier release
    is_ours = folder.has_our_code or was_ours
    own = {name: one for name, one in tensors.items() if not (is_ours and is_made_up(name, folder.config))}
    whole = sorted(
        name
        for name, one in own.items()
        if one.dtype not in FLOATS and not name.endswith(_BUFFERS) and not (is_ours and name == _MASKS)
    )
    if whole:
        dtype = tensors[whole[0]].dtype
        yield error(
            f"{named(whole)} has dtype {dtype}, and no quantization_config says how to read it",
            "save the model in bfloat16: model.dequantize(), then save_pretrained",
        )
    elif leftovers := sorted(name for name in tensors if name.endswith(_QUANTISED)):
        yield error(
            f"{named(leftovers)} is of a quantised model, and no quantization_config says how to read it",
            "merge from the checkpoints before they were quantised",
        )
    counts = Counter(one.dtype for one in own.values() if one.dtype in FLOATS)
    if not counts:
        return
    most = counts.most_common(1)[0][0]
    if odd := sorted(name for name, one in own.items() if one.dtype in FLOATS and one.dtype != most):
        yield warning(f"dtypes are mixed: {named(odd)} has {tensors[odd[0]].dtype}, most tensors have {most}")
    said = folder.config.get("dtype", folder.config.get("torch_dtype"))
    if isinstance(said, str) and said in SAFETENSORS and SAFETENSORS[said] not in counts:
        yield warning(
            f"config.json says {said}, but the tensors are {most}: it takes other memory than expected",
            "save it again in the dtype that you want",
        )


def check_members(folder: Examination) -> Iterator[Finding]:
    """Look for members that were opted out since, and compare their positions with the folder's."""
    if not (folder.path / MARKER).is_file():
        yield skipped("it was not composed by this program")
        return
    if folder.composed is None:
        yield skipped(f"its {MARKER} cannot be read")
        return
    if folder.workspace is None:
        yield skipped("no registry is open: name one with reg --home DIR")
        return
    unknown = []
    for version in folder.composed.manifest.versions:
        try:
            if find_by_digest(folder.workspace.catalog, version.name, version.digest, folder.quoted) is None:
                unknown.append(version.name)
        except ConflictError as conflict:
            yield error(conflict.message.replace(f"{folder.quoted} holds", "it holds", 1), conflict.hint)
    if unknown:
        yield passed(f"{few(unknown)}: not registered here, so nothing more is known of it")
    own = folder.config.get("max_position_embeddings")
    for name, member in folder.members.items():
        longest = member.architecture.max_position_embeddings
        if isinstance(own, int) and isinstance(longest, int) and own > longest:
            yield warning(f"config.json allows {own:,} positions, its member {name} was made for {longest:,}")
            return


def check_integrity(folder: Examination) -> Iterator[Finding]:
    """Compare every file with the digests of the composition."""
    if not (folder.path / MARKER).is_file():
        yield skipped("it was not composed by this program")
        return
    if folder.composed is None:
        yield error(f"its {MARKER} cannot be read", "copy that file again, or compose the folder again")
        return
    has_errors = any(finding.severity == "error" for finding in folder.findings)
    judge = warning if has_errors else error  # another error says already what is wrong with the files
    if folder.changes:
        first = folder.changes[0].replace("since it was written", "since it was composed")
        more = f", and {len(folder.changes) - 1} more files" if len(folder.changes) > 1 else ""
        yield judge(f"{first}{more}", folder.again)


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


def _listed(value: Any) -> list[Any]:
    """Return a value of a configuration file that may be a list, of which 1,000 items are read, one item or absent."""
    return value[:1000] if isinstance(value, list) else [] if value is None else [value]


def check_special_tokens(folder: Examination) -> Iterator[Finding]:
    """Check that the tokens that begin, end and pad a text exist, and that all files agree on them."""
    rows = folder.embedding_rows or folder.config.get("vocab_size")
    configs = {"config.json": folder.config, "generation_config.json": folder.generation_config}
    for file, config in configs.items():
        for name in _SPECIAL:
            for number in _listed(config.get(name)):
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
    own = None
    with suppress(RegError):
        own = getattr(folder.tokenizer, "eos_token_id", None)
    ends = _listed(folder.generation_config.get("eos_token_id")) or _listed(folder.config.get("eos_token_id"))
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
        if with_template := next((name for name, member in folder.members.items() if _has_template(member)), None):
            yield warning(
                f"it has no chat template, though {with_template} has one: chats would be rendered otherwise than "
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


_SAVE = "save the model again: save_pretrained writes config.json and weights that belong together"
_COUNTS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")


def check_architecture(folder: Examination) -> Iterator[Finding]:
    """Check that the sizes in config.json fit one another and the tensors, before a model of them is made."""
    config, where = folder.config, str(folder.path / "config.json")
    for name in _COUNTS:
        value = config.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            yield error(f"config.json says {name} {str(value)[:40]}, it must be a whole number from 1", _SAVE)
            return
    yield from _heads(config)
    yield from _positions(config)
    if folder.has_our_code and isinstance(config.get("members"), list):
        check_members_config(folder.path, config)
    else:
        check_stored_sizes(folder.path, [config], where)


def _heads(config: dict[str, Any]) -> Iterator[Finding]:
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    groups, channels = config.get("num_key_value_heads"), config.get("head_dim")
    if not isinstance(heads, int):
        return
    if isinstance(groups, int) and (groups < 1 or heads % groups):
        yield error(f"config.json has {heads} attention heads, which {groups} key-value heads cannot share", _SAVE)
    if channels is None and isinstance(hidden, int) and hidden % heads:
        yield error(f"config.json has a hidden size of {hidden}, which {heads} attention heads cannot share", _SAVE)
    if isinstance(channels, int) and (channels < 1 or channels % 2):
        yield error(f"config.json says head_dim {channels}, and rotary positions need an even number", _SAVE)


def _positions(config: dict[str, Any]) -> Iterator[Finding]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = rope if isinstance(rope, dict) else {}
    theta = rope.get("rope_theta", config.get("rope_theta"))
    if isinstance(theta, int | float) and theta <= 0:
        yield error(f"config.json says rope_theta {theta:g}, it must be more than 0", _SAVE)
    longest, trained = config.get("max_position_embeddings"), rope.get("original_max_position_embeddings")
    if isinstance(longest, int) and isinstance(trained, int) and longest < trained:
        yield warning(
            f"config.json allows {longest:,} positions, fewer than the {trained:,} that the rope scaling starts from"
        )
    factor = rope.get("factor")
    if isinstance(factor, int | float) and factor < 1:
        yield warning(f"config.json has a rope factor of {factor:g}: below 1 it shortens what the model can read")


def check_tied(folder: Examination) -> Iterator[Finding]:
    """Check that the head is there, or is tied to the embedding."""
    tensors = folder.tensors
    if isinstance(folder.config.get("members"), list) or not tensors_of("embedding", tensors):
        return  # each member has its own; or it is of an architecture with other names
    if folder.config.get("tie_word_embeddings") is False and not tensors_of("head", tensors):
        yield error(
            "config.json says tie_word_embeddings false, but there is no lm_head.weight, so its head would be random",
            "set tie_word_embeddings to true in config.json, if the model was trained so",
        )


def check_keys(folder: Examination) -> Iterator[Finding]:
    """Compare names and shapes with those of the model that config.json describes; no weight is read."""
    if folder.config.get("auto_map") and not folder.has_our_code:
        yield skipped("it has modelling code of its author, which is never run here")
        return
    if odd := list(_odd_experts(folder)):
        yield from odd
        return
    stored = {
        name: torch.empty(one.shape, dtype=torch_dtype(NAMES[one.dtype]), device="meta")
        for name, one in folder.tensors.items()
        if one.dtype in NAMES
    }
    try:
        info = unfilled_model(folder.path, stored)
    except CheckpointError:
        raise
    except Exception as failure:  # transformers raises many kinds
        if not is_foreign(failure):
            raise
        yield error(f"transformers cannot map its keys to the architecture: {first_line(failure)}", _SAVE)
        return
    if info is None:
        yield skipped("comparing keys without loading needs accelerate: pip install accelerate")
        return
    missing, unexpected = (sorted(map(str, info[kind])) for kind in ("missing_keys", "unexpected_keys"))
    if missing:
        yield error(f"{_first_of(missing)} missing: transformers would fill it with random numbers", _SAVE)
    if unexpected:
        yield error(
            f"{_first_of(unexpected)} unknown to the architecture {folder.config.get('model_type')!s:.40}, and would "
            "be dropped",
            "check model_type in config.json, or save the model again without it",
        )
    if info["mismatched_keys"]:
        name, has, wanted = min((str(key), tuple(a), tuple(b)) for key, a, b in info["mismatched_keys"])
        yield error(f"{in_words(name)} ({name}) has shape {has}, config.json asks for {wanted}", _SAVE)


def _first_of(names: list[str]) -> str:
    more = f" and {len(names) - 1} more are" if len(names) > 1 else " is"
    return f"{in_words(names[0])} ({names[0]}){more}"


def _odd_experts(folder: Examination) -> Iterator[Finding]:
    """Find tensors that one expert of a layer lacks, or has in another shape: transformers does not name them."""
    found: dict[str, dict[tuple[int, ...], str]] = defaultdict(dict)
    for name in tensors_of("experts", folder.tensors):
        if len(numbers_of(name)) >= 2:
            found[role_of(name)][numbers_of(name)] = name
    experts = {key for names in found.values() for key in names}
    for role, names in sorted(found.items()):
        if absent := sorted(experts - names.keys()):
            numbers = iter(absent[0])
            lacking = ".".join(str(next(numbers)) if part == "*" else part for part in role.split("."))
            yield error(f"{in_words(lacking)} ({lacking}) is missing, which other experts have", _SAVE)
            return
        shapes = Counter(folder.tensors[name].shape for name in names.values())
        usual = shapes.most_common(1)[0][0]
        for name in names.values():
            if (shape := folder.tensors[name].shape) != usual:
                yield error(f"{in_words(name)} ({name}) has shape {shape}, other experts have {usual}", _SAVE)
                return
