"""Checks of files: they are there, whole, in a format that is safe to read, and of dtypes that can be computed with."""

from collections import Counter
from collections.abc import Iterator

from registry.checkpoint.adapter import is_adapter
from registry.checkpoint.weights import INDEX
from registry.doctor.examination import FLOATS, Examination
from registry.doctor.finding import Finding, error, passed, skipped, warning
from registry.doctor.tensor_names import named
from registry.errors import ConflictError
from registry.io.display import few
from registry.io.dtypes import SAFETENSORS
from registry.io.files import own_file, read_json
from registry.io.model_folder import MARKER
from registry.names.resolve import find_by_digest

_QUANTISED = (".qweight", ".qzeros", ".weight_scale", ".weight_scale_inv", ".absmax", ".quant_map", ".SCB")
"""Ends of the names of tensors that only quantised weights have."""


_MASKS = "masks"
"""The masks of a SIMoE, which are bits."""


def check_files(folder: Examination) -> Iterator[Finding]:
    """Check config.json, the presence of every weight file, and their headers."""
    if is_adapter(folder.path):
        yield error(
            "it holds an adapter, not a whole model",
            f"register it, which merges it: reg add-expert NAME {folder.quoted} --base BASE",
        )
        return
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
    whole = sorted(
        name
        for name, one in tensors.items()
        if one.dtype not in FLOATS and not _is_buffer(name) and not (folder.has_our_code and name == _MASKS)
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
    counts = Counter(one.dtype for one in tensors.values() if one.dtype in FLOATS)
    if not counts:
        return
    most = counts.most_common(1)[0][0]
    if odd := sorted(name for name, one in tensors.items() if one.dtype in FLOATS and one.dtype != most):
        yield warning(f"dtypes are mixed: {named(odd)} has {tensors[odd[0]].dtype}, most tensors have {most}")
    said = folder.config.get("dtype", folder.config.get("torch_dtype"))
    if isinstance(said, str) and said in SAFETENSORS and SAFETENSORS[said] not in counts:
        yield warning(
            f"config.json says {said}, but the tensors are {most}: it takes other memory than expected",
            "save it again in the dtype that you want",
        )


def _is_buffer(name: str) -> bool:
    return name.endswith(
        ("attention.bias", "attn.bias", ".masked_bias", "inv_freq", "position_ids", "num_batches_tracked")
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
    yield from _positions(folder)


def _positions(folder: Examination) -> Iterator[Finding]:
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
    judge = warning if folder.has_errors else error  # another error says already what is wrong with the files
    if folder.changes:
        first = folder.changes[0].replace("since it was written", "since it was composed")
        more = f", and {len(folder.changes) - 1} more files" if len(folder.changes) > 1 else ""
        yield judge(f"{first}{more}", folder.again)
