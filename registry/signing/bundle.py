"""Bundles of OpenSSF Model Signing, made and checked by the optional package model-signing with PEM keys."""

import os
import re
import sys
from getpass import getpass
from pathlib import Path
from typing import Any

from registry.composition.card import CARD
from registry.errors import RegError, SignatureError, StorageError, first_line
from registry.io.limits import JSON_BYTES
from registry.io.model_folder import SIGNATURES
from registry.io.untrusted import json_object, read_small
from registry.io.work_dirs import temporary_folder

UNSIGNED = (CARD, *SIGNATURES, ".cache/huggingface")
"""What a bundle leaves out, beside git's own files: a push rewrites the card, and a download adds that folder."""

PASSPHRASE_VARIABLE = "REG_KEY_PASSPHRASE"
_CURVES, _CURVES_NAMED = ("secp256r1", "secp384r1", "secp521r1"), "P-256, P-384 or P-521"
_MAKE = "name an OpenSSH key, or make one: openssl ecparam -name prime256v1 -genkey -noout -out KEY"


def is_private(key: bytes) -> bool:
    """Tell whether a key file is a private key in PEM, not in OpenSSH's format nor one of RSA alone."""
    return re.search(rb"-----BEGIN (EC |ENCRYPTED )?PRIVATE KEY-----", key) is not None


def is_public(key: bytes) -> bool:
    """Tell whether a key file is a public key in PEM."""
    return key.lstrip().startswith(b"-----BEGIN PUBLIC KEY-----")


def require_library() -> None:
    """Check that model-signing is installed with all that it needs (StorageError: it is not)."""
    try:
        import model_signing  # noqa: F401
    except ImportError as error:
        raise StorageError(
            f"signatures with PEM keys need model-signing and pyopenssl: {error}",
            "run: pip install 'expert-registry[sign]', or sign with an OpenSSH key",
        ) from error


def passphrase(data: bytes, key: Path) -> bytes | None:
    """Return the passphrase of a private key, of which `data` is the file `key`; None of a key without one.

    It is that of the environment, else only on a terminal it is asked for (SignatureError: there is none, or another).
    """
    if b"ENCRYPTED" not in data:  # in its first line, or in a header of an older format
        return None
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    hint = f"type its passphrase on a terminal, or set {PASSPHRASE_VARIABLE}"
    given = os.environ.get(PASSPHRASE_VARIABLE)
    if given is None and sys.stdin is not None and sys.stdin.isatty():
        given = getpass(f"passphrase of {key}: ")
    if not given:
        raise SignatureError(f"{key} has a passphrase, which is not given", hint)
    try:
        load_pem_private_key(data, given.encode())
    except Exception as error:
        raise SignatureError(f"{key} cannot be read with this passphrase: {first_line(error)}", hint) from error
    return given.encode()


def check_key(data: bytes, key: Path, password: bytes | None) -> None:
    """Check that a private key, of which `data` is the file `key`, makes bundles (SignatureError: another kind)."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        curve = getattr(load_pem_private_key(data, password), "curve", None)
    except Exception as error:
        raise SignatureError(f"{key} cannot be read: {first_line(error)}", _MAKE) from error
    if curve is None or curve.name not in _CURVES:
        raise SignatureError(f"{key} cannot sign: of PEM keys, EC keys on {_CURVES_NAMED} do", _MAKE)


def sign(folder: Path, key: Path, password: bytes | None) -> bytes:
    """Sign every file of a folder but `UNSIGNED` (SignatureError: not with this key, or a file cannot be read)."""
    from model_signing import signing

    with temporary_folder() as work:
        try:
            signer = _config(signing).use_elliptic_key_signer(private_key=key, password=password)
            signer.set_hashing_config(_hashing()).sign(folder, work / "sig")
        except Exception as error:
            raise SignatureError(f"{key} cannot sign {folder}: {first_line(error)}", _MAKE) from error
        return (work / "sig").read_bytes()


def fingerprint(signature: bytes, where: str) -> str:
    """Return the SHA-256 of the public key in PEM that a bundle names (SignatureError: it is not such a bundle)."""
    try:
        hint = json_object(signature, where)["verificationMaterial"]["publicKey"]["hint"]
    except (RegError, KeyError, TypeError) as error:
        raise SignatureError(f"{where} is not a bundle that names its public key", "sign again: reg sign") from error
    return f"SHA256:{str(hint)[:64]}"


def verify(folder: Path, signature: Path, key: Path) -> str:
    """Verify a folder by a public key, and return the key's fingerprint (SignatureError: another key or content)."""
    from model_signing import verifying

    found = fingerprint(read_small(signature, JSON_BYTES), str(signature))
    try:
        verifier = _config(verifying).use_elliptic_key_verifier(public_key=key).set_hashing_config(_hashing())
        verifier.verify(folder, signature)
    except Exception as error:
        raise SignatureError(
            f"{signature} is not a signature of {folder} as it is now by {key}: {first_line(error)}",
            "fetch the folder and the signer's key again, and use neither until they agree",
        ) from error
    return found


def _hashing() -> Any:
    from model_signing import hashing

    return _config(hashing).set_ignored_paths(paths=UNSIGNED).set_allow_symlinks(True)


def _config(module: Any) -> Any:
    """Return the settings of one of the library's modules, whose maker has no types."""
    return module.Config()
