"""Opting versions out under the registry's lock, with an optional receipt."""

from contextlib import ExitStack
from pathlib import Path

from registry.names.resolve import versions_matching
from registry.opt_out.consequences import consequences
from registry.opt_out.receipt import make_receipt, receipt_file
from registry.opt_out.withdraw import OptOut, withdraw
from registry.workspace import PathLike, Workspace


def opt_out(
    workspace: Workspace, ref: str, *, purge: bool = False, receipt: PathLike | None = None, dry_run: bool = False
) -> OptOut:
    """Withdraw the versions that `ref` matches (arguments and errors as in `Registry.opt_out`)."""
    versions = versions_matching(workspace.catalog, ref)
    if dry_run:
        return consequences(workspace, versions, purge=purge)
    with ExitStack() as stack:
        write = None if receipt is None else stack.enter_context(receipt_file(Path(receipt), ref))
        stack.enter_context(workspace.catalog.lock(f"opting {ref} out"))
        result = withdraw(workspace, versions, purge=purge)
        if write is not None:
            write(make_receipt(workspace, result))
    return result
