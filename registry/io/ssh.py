"""SSH signatures, made and checked by OpenSSH's ssh-keygen."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from registry.errors import CheckpointError, SignatureError, StorageError
from registry.io.limits import SIGNER_BYTES
from registry.io.untrusted import read_small
from registry.io.work_dirs import temporary_folder

NAMESPACE = "expert-registry"
"""The purpose that signatures state; ssh-keygen refuses those of another one."""

_SECONDS = 60  # that ssh-keygen may take where nobody can answer it
_BESIDE_THE_POINT = re.compile(r"@|Signing file|Write signature|$")
_ALLOWED = re.compile(rb"^[ \t]*[^#\s].*[ \t](ssh|ecdsa|sk)-\S+[ \t]+AAAA", re.MULTILINE)
_SIGNERS = "name a file of allowed signers, with lines: NAME ssh-ed25519 AAAA…, a name and then the signer's public key"
_KEY = "name an OpenSSH private key, such as ~/.ssh/id_ed25519; to make one: ssh-keygen -t ed25519"


def read_keys(path: Path, hint: str) -> bytes:
    """Return a file of keys (SignatureError: it is absent, too large, or cannot be read)."""
    try:
        if not path.exists():
            raise SignatureError(f"{path} does not exist", hint)
        return read_small(path, SIGNER_BYTES)
    except CheckpointError as error:
        raise SignatureError(error.message, hint) from error
    except OSError as error:
        raise SignatureError(f"{path} cannot be read: {error.strerror}", hint) from error


def read_signers(path: Path, is_key: Callable[[bytes], bool] = lambda _: False) -> bytes:
    """Return a file of allowed signers, or one that `is_key` (SignatureError: neither, or as `read_keys`)."""
    data = read_keys(path, _SIGNERS)
    if not is_key(data) and not _ALLOWED.search(data):
        raise SignatureError(f"{path} is not a file of allowed signers", _SIGNERS)
    return data


def read_key(path: Path) -> bytes:
    """Return the file of a key to sign with (errors as `read_keys`)."""
    return read_keys(path, _KEY)


def sign(data: bytes, key: Path) -> bytes:
    """Sign bytes with a key file, or with ssh-agent; only on a terminal ssh-keygen asks for a passphrase.

    Raises StorageError if there is no ssh-keygen, and SignatureError with its reason if it cannot sign.
    """
    with temporary_folder() as work:
        (work / "data").write_bytes(data)
        is_signed, told = _keygen("-Y", "sign", "-n", NAMESPACE, "-f", str(key.absolute()), str(work / "data"))
        if is_signed:
            return (work / "data.sig").read_bytes()
    name = shlex.quote(str(key))
    hint = f"chmod 600 {name}" if "too open" in told else _KEY
    if "passphrase" in told:
        hint = f"keep it in ssh-agent: ssh-add {name}; or type its passphrase on a terminal"
        if not _is_asked():
            told = "it has a passphrase, which is not given"
            hint += "; REG_KEY_PASSPHRASE is for PEM keys alone"
    raise SignatureError(f"{key} cannot sign: {told}", hint)


def fingerprint(data: bytes, signature: bytes, what: str) -> str:
    """Return the fingerprint of the key that signed bytes (SignatureError: the signature is not of these bytes)."""
    with temporary_folder() as work:
        (work / "sig").write_bytes(signature)
        fits, told = _keygen("-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(work / "sig"), data=data)
    if not fits:
        raise SignatureError(f"{what}: {told}", "fetch both again from the signer, and use neither until they agree")
    return told.split()[-1]


def verify(data: bytes, signature: Path, signers: Path) -> tuple[str, str]:
    """Return who signed bytes, a name among the allowed signers, and the key's fingerprint.

    Raises SignatureError if the signature is not of these bytes, or `signers` does not allow the key.
    """
    signed = read_small(signature, SIGNER_BYTES)
    key = fingerprint(data, signed, f"{signature} is not a signature of {signature.with_suffix('')} as it is now")
    with temporary_folder() as work:
        (work / "sig").write_bytes(signed)
        (work / "signers").write_bytes(read_small(signers, SIGNER_BYTES))
        files = ("-s", str(work / "sig"), "-f", str(work / "signers"))
        is_allowed, told = _keygen("-Y", "find-principals", *files)
        name = told.partition("\n")[0]
        if is_allowed:
            is_allowed, told = _keygen("-Y", "verify", "-n", NAMESPACE, "-I", name, *files, data=data)
        told = told.replace(str(work / "signers"), str(signers))
    if not is_allowed:
        raise SignatureError(
            f"{signature} was made with key {key}, which {signers} does not allow: {told}",
            f"if you trust that key, add a line to {signers}: NAME, then the signer's public key",
        )
    return name, key


def _is_asked() -> bool:
    """Tell whether somebody can be asked for a passphrase: on a terminal, or by the program in SSH_ASKPASS."""
    return "SSH_ASKPASS" in os.environ or (sys.stdin is not None and sys.stdin.isatty())


def _keygen(*words: str, data: bytes | None = None) -> tuple[bool, str]:
    """Run ssh-keygen with `data` as its input; return whether it succeeded, and what it printed or complained of."""
    asks = data is None and sys.stdin is not None and sys.stdin.isatty()
    silent = {} if asks or "SSH_ASKPASS" in os.environ else {"SSH_ASKPASS_REQUIRE": "never"}
    try:
        ended = subprocess.run(
            ["ssh-keygen", *words],
            input=None if asks else data or b"",
            capture_output=True,
            start_new_session=not asks,  # without a terminal it does not ask
            timeout=None if asks else _SECONDS,
            env=os.environ | silent,
        )
    except subprocess.TimeoutExpired:
        return False, f"ssh-keygen did not answer within {_SECONDS} seconds"
    except OSError as error:
        raise StorageError(
            f"ssh-keygen cannot be run: {error.strerror}",
            "install OpenSSH 8.2 or newer: apt-get install openssh-client",
        ) from error
    if ended.returncode == 0:
        return True, ended.stdout.decode(errors="replace").strip()
    lines = ended.stderr.decode(errors="replace").replace("Enter passphrase: ", "").splitlines()
    return False, next((line.strip() for line in lines if not _BESIDE_THE_POINT.match(line)), "it does not say why")
