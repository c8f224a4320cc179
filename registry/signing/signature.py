"""Signing and verifying: of a folder its `composition.json`, which has the other files' digests; or a receipt.

The bill of materials of a folder, which `composition.json` does not list, has an SSH signature of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from registry.composition.manifest import ComposedFolder
from registry.errors import InvalidInputError, SignatureError
from registry.io import ssh
from registry.io.disk import atomic_file
from registry.io.limits import JSON_BYTES
from registry.io.model_folder import BOM, BOM_SIGNATURE, BUNDLE, MARKER, SIGNATURE, signable
from registry.io.untrusted import json_object, read_small
from registry.opt_out.receipt import Receipt
from registry.progress import Progress, silent
from registry.signing import bundle
from registry.workspace import PathLike
from store.permissions import writing

_KEY = "name a private key file: --key ~/.ssh/id_ed25519"


@dataclass(frozen=True)
class Signature:
    """A signature that fits what it is of."""

    file: Path  # the file of the signature
    key: str  # the fingerprint of the key; of a PEM key the SHA-256 of the public key's file
    signer: str | None = None  # the name of the signer among those allowed; None of a PEM key, and when signing


def sign(path: PathLike, key: PathLike, progress: Progress = silent) -> Signature:
    """Sign a composed folder that is intact, or a receipt; an earlier signature by the same kind of key is replaced.

    Args:
        path: the folder, or the file of the receipt.
        key: an OpenSSH private key, or a public one whose private half ssh-agent holds; for a folder also an EC
            key in PEM (P-256, P-384 or P-521), which makes a bundle of OpenSSF Model Signing.

    Raises:
        NotFoundError, InvalidInputError: there is no such path; it is a receipt, and the key in PEM.
        SignatureError: the key cannot be read or cannot sign.
        CheckpointError: the folder was changed since it was composed, or the file is not a receipt.
        StorageError: ssh-keygen or model-signing is not installed, or the signature cannot be written.
    """
    path, key = signable(path), Path(key)
    if path.is_dir():
        write, composed = signer(key), ComposedFolder.read(path)  # a key that cannot be read is told first
        composed.check(progress)
        return write(composed)
    if bundle.is_private(ssh.read_keys(key, _KEY)):
        raise InvalidInputError(
            f"{key} is a PEM key, which signs folders alone", "sign the receipt with an OpenSSH key"
        )
    data = read_small(path, JSON_BYTES)
    _check_receipt(path, data)
    return _sign_bytes(data, path, key)


def signer(key: PathLike) -> Callable[[ComposedFolder], Signature]:
    """Return the function that signs a folder whose files were checked (errors of the key as `sign`)."""
    file = Path(key)
    data = ssh.read_keys(file, _KEY)
    if not bundle.is_private(data):
        return lambda composed: _sign_documents(composed, file)
    bundle.require_library()
    password = bundle.passphrase(data, file)
    bundle.check_key(data, file, password)
    return lambda composed: _sign_files(composed, file, password)


def verify(path: PathLike, signers: PathLike, progress: Progress = silent) -> Signature:
    """Verify the signature of a composed folder with all its files, or of a receipt; return who signed.

    Args:
        path: the folder, or the file of the receipt.
        signers: OpenSSH's file of allowed signers (`man ssh-keygen`), or for a bundle the public key in PEM.

    Raises:
        NotFoundError, InvalidInputError: as `sign`.
        SignatureError: there is no signature, it is of other bytes, or the key is not allowed.
        CheckpointError: a file differs from what was signed, is missing, or was added.
        StorageError: ssh-keygen or model-signing is not installed.
    """
    path, signers = signable(path), Path(signers)
    by_key = bundle.is_public(ssh.read_signers(signers, bundle.is_public))
    if path.is_file():
        if by_key:
            raise InvalidInputError(f"{signers} is a PEM key, which signs folders alone", "name allowed signers")
        data, file = read_small(path, JSON_BYTES), _present(path.with_name(f"{path.name}.sig"), path)
        name, key = ssh.verify(data, file, signers)
        _check_receipt(path, data)
        return Signature(file, key, name)
    data, file = read_small(path / MARKER, JSON_BYTES), _present(path / (BUNDLE if by_key else SIGNATURE), path)
    if by_key:
        bundle.require_library()
        found = Signature(file, bundle.verify(path, file, signers))
    else:
        found = _verify_documents(path, data, file, signers)
    ComposedFolder.of(path, data).check(progress, "fetch the folder again, and do not use it before it is as signed")
    return found


def _sign_documents(composed: ComposedFolder, key: Path) -> Signature:
    if (bom := composed.bom()) is not None:
        _sign_bytes(bom, composed.path / BOM, key)
    else:
        (composed.path / BOM_SIGNATURE).unlink(missing_ok=True)  # of an earlier one
    return _sign_bytes(composed.data, composed.path / MARKER, key)


def _verify_documents(path: Path, data: bytes, file: Path, signers: Path) -> Signature:
    name, key = ssh.verify(data, file, signers)
    if (bom := ComposedFolder.of(path, data).bom()) is not None:
        other = ssh.verify(bom, _present(path / BOM_SIGNATURE, path, f"{path / BOM}, which was added,"), signers)
        if other != (name, key):
            raise SignatureError(
                f"{path / BOM} is signed by {other[0]}, key {other[1]}, and the folder by {name}, key {key}",
                f"fetch the folder again, or delete {path / BOM}",
            )
    elif (path / BOM_SIGNATURE).exists():
        raise SignatureError(f"{path / BOM} was signed, and is missing", "fetch the folder again")
    return Signature(file, key, name)


def _sign_bytes(data: bytes, path: Path, key: Path) -> Signature:
    signature, file = ssh.sign(data, key), path.with_name(f"{path.name}.sig")
    _write(file, signature)
    return Signature(file, ssh.fingerprint(data, signature, str(file)))


def _sign_files(composed: ComposedFolder, key: Path, password: bytes | None) -> Signature:
    signature, file = bundle.sign(composed.path, key, password), composed.path / BUNDLE
    _write(file, signature)
    return Signature(file, bundle.fingerprint(signature, str(file)))


def _write(path: Path, data: bytes) -> None:
    with writing(path), atomic_file(path) as fresh:
        fresh.write_bytes(data)


def _present(signature: Path, path: Path, what: str = "") -> Path:
    if not signature.is_file():
        raise SignatureError(
            f"{what or path} is not signed: there is no {signature}", f"its signer runs: reg sign {path} --key KEY"
        )
    return signature


def _check_receipt(path: Path, data: bytes) -> None:
    Receipt.from_document(json_object(data, str(path)), str(path))
