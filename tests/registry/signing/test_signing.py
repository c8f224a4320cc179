"""Proves: who signed a folder or a receipt is told, and no change of a byte, file or key passes for theirs.

OpenSSH's own ssh-keygen, and OpenSSF's own program where it is installed, accept the signatures.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import snapshot_download

from registry import Recipe, Registry
from registry.composition.card import with_additions
from registry.composition.manifest import ComposedFolder
from registry.errors import CheckpointError, InvalidInputError, NotFoundError, RegError, SignatureError, StorageError
from registry.io.model_folder import BOM, BOM_SIGNATURE
from registry.opt_out.receipt import read_receipt
from registry.progress import silent
from registry.signing import sign, verify
from tests.conftest import files_of
from tests.writable_hub import WritableHub, writable_hub

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen")
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")


def run(*words: object, data: bytes | None = None) -> str:
    """Run a program that must succeed, and return what it prints."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([*map(str, words)], input=data or b"", capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def new_key(path: Path, passphrase: str = "") -> Path:
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "", "-f", path)
    return path


def allowed(path: Path, **keys: Path) -> Path:
    """Write a file of allowed signers, name → private key."""
    path.write_text("".join(f"{name}@example.org {Path(f'{key}.pub').read_text()}" for name, key in keys.items()))
    return path


def flip(path: Path, at: int = -2) -> None:
    changed = bytearray(path.read_bytes())
    changed[at] ^= 1
    path.write_bytes(changed)


@pytest.fixture(scope="module")
def _made(_filled_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a composition, a receipt, and keys of two people."""
    work = tmp_path_factory.mktemp("signed")
    with Registry(shutil.copytree(_filled_home, work / "home")) as registry:
        registry.compose(["code", "math"], work / "moe", Recipe(trunk="mean", router="ridge"))
        registry.compose(["code", "math"], work / "two", Recipe(trunk="mean", router="ridge", top_k=1))
        registry.opt_out("law", purge=True, receipt=work / "receipt.json")
    new_key(work / "ada")
    new_key(work / "eve")
    allowed(work / "signers", ada=work / "ada")
    return work


@pytest.fixture
def made(_made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SSH_ASKPASS", raising=False)
    return shutil.copytree(_made, tmp_path / "made", ignore=lambda *_: ["home"])


def refused(kind: type[RegError], *texts: str, path: Path, signers: Path) -> None:
    with pytest.raises(kind) as raised:
        verify(path, signers)
    for text in texts:
        assert text in raised.value.message, raised.value.message
    assert raised.value.hint


def test_a_signed_folder_tells_its_signer_and_is_as_intact_as_before(made: Path) -> None:
    moe, marker = made / "moe", made / "moe" / "composition.json"
    refused(SignatureError, "is not signed", "composition.json.sig", path=moe, signers=made / "signers")
    before = files_of(moe)
    signed = sign(moe, made / "ada")
    assert files_of(moe) == before | {"composition.json.sig": signed.file.read_bytes()}
    found = verify(moe, made / "signers")
    assert (found.file, found.key, found.signer) == (signed.file, signed.key, "ada@example.org")
    assert found.key == run("ssh-keygen", "-l", "-f", made / "ada").split()[1]
    told = run(
        *("ssh-keygen", "-Y", "verify", "-f", made / "signers", "-I", "ada@example.org", "-n", "expert-registry"),
        *("-s", signed.file),
        data=marker.read_bytes(),
    )
    assert told.startswith('Good "expert-registry" signature for ada@example.org')
    assert list(ComposedFolder.read(moe).problems(silent)) == []
    assert sign(moe / "composition.json", made / "eve").key != found.key  # in place of the first
    allowed(made / "signers", ada=made / "ada", eve=made / "eve")
    assert verify(moe, made / "signers").signer == "eve@example.org"


def test_whatever_changed_is_named(made: Path) -> None:
    moe, signers = made / "moe", made / "signers"
    sign(moe, made / "ada")

    def changed(name: str) -> Path:
        folder = made / name
        shutil.rmtree(folder, ignore_errors=True)
        return shutil.copytree(moe, folder)

    for at in (0, 1000, -1):
        flip(changed("flipped") / "composition.json", at)
        refused(SignatureError, "incorrect signature", "as it is now", path=made / "flipped", signers=signers)
    for name in sorted(files_of(moe).keys() - {"composition.json", "composition.json.sig"}):
        flip(changed("other") / name)
        refused(CheckpointError, f"{name} was changed", path=made / "other", signers=signers)
        (changed("without") / name).unlink()
        refused(CheckpointError, f"{name} is missing", path=made / "without", signers=signers)
    (changed("more") / "more.py").write_text("")
    refused(CheckpointError, "more.py is not a file of the composition", path=made / "more", signers=signers)
    flip(changed("torn") / "composition.json.sig", 150)
    refused(SignatureError, "is not a signature of", path=made / "torn", signers=signers)
    (made / "torn" / "composition.json.sig").write_bytes(bytes(2**20 + 1))
    refused(CheckpointError, "more than 1,048,576 bytes", path=made / "torn", signers=signers)
    for folder in ("other", "more"):
        with pytest.raises(CheckpointError):
            sign(made / folder, made / "ada")


def bill(folder: Path, words: str = "") -> Path:
    """Write what stands for the bill of materials of a folder."""
    document = {"serialNumber": ComposedFolder.read(folder).serial_number, "description": words}
    (folder / BOM).write_text(json.dumps(document))
    return folder / BOM


def test_a_bill_of_materials_is_signed_too(made: Path) -> None:
    moe, two, signers = made / "moe", made / "two", allowed(made / "signers", ada=made / "ada", eve=made / "eve")
    sign(moe, made / "ada")
    bill(moe)
    refused(SignatureError, f"{BOM}, which was added, is not signed", path=moe, signers=signers)
    assert sign(moe, made / "ada").file == moe / "composition.json.sig"
    assert (moe / BOM_SIGNATURE).is_file()
    assert verify(moe, signers).signer == "ada@example.org"
    assert list(ComposedFolder.read(moe).problems(silent)) == []
    bill(moe, "other words")
    refused(SignatureError, "incorrect signature", BOM, path=moe, signers=signers)
    run("ssh-keygen", "-Y", "sign", "-n", "expert-registry", "-f", made / "eve", moe / BOM, data=b"y\n")
    refused(SignatureError, "is signed by eve@example.org", "the folder by ada", path=moe, signers=signers)
    bill(two)
    sign(two, made / "ada")
    for name in (BOM, BOM_SIGNATURE):
        shutil.copy(two / name, moe)
    refused(CheckpointError, f"{BOM} is not of this composition", path=moe, signers=signers)
    with pytest.raises(CheckpointError, match="is not of this composition") as other:
        sign(moe, made / "ada")
    assert "reg bom" in str(other.value.hint)
    (moe / BOM).unlink()
    refused(SignatureError, f"{BOM} was signed, and is missing", path=moe, signers=signers)
    sign(moe, made / "ada")
    assert verify(moe, signers).signer == "ada@example.org"
    assert not (moe / BOM_SIGNATURE).exists()


def test_only_keys_that_are_allowed_for_this_purpose_count(made: Path) -> None:
    moe, line = made / "moe", f"ada@example.org %s {(made / 'ada.pub').read_text()}"
    signed = sign(moe, made / "ada")
    strangers = allowed(made / "strangers", eve=made / "eve")
    refused(SignatureError, signed.key, "which", "does not allow", path=moe, signers=strangers)
    for option, why in (('namespaces="git"', "not permitted"), ('valid-before="20200101"', "expired")):
        strangers.write_text(line % option)
        refused(SignatureError, f"{strangers}:1: key", why, path=moe, signers=strangers)
    strangers.write_bytes(os.urandom(300))
    refused(SignatureError, "is not a file of allowed signers", path=moe, signers=strangers)
    refused(SignatureError, "nosuch does not exist", path=moe, signers=made / "nosuch")
    run("ssh-keygen", "-Y", "sign", "-n", "git", "-f", made / "ada", moe / "composition.json", data=b"y\n")
    refused(SignatureError, "namespace does not match", path=moe, signers=made / "signers")


def test_keys_that_cannot_sign_say_why(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moe = made / "moe"
    new_key(made / "locked", "a passphrase")
    shutil.copy(made / "ada", made / "open")
    (made / "open").chmod(0o644)
    (made / "junk").write_text("no key\n")
    (made / "junk").chmod(0o600)
    for name, why, following in (
        ("nosuch", "nosuch does not exist", "private key"),
        ("locked", "it has a passphrase, which is not given", "ssh-add"),
        ("locked", "passphrase", "REG_KEY_PASSPHRASE is for PEM keys alone"),
        ("open", "too open", "chmod 600"),
        ("junk", "junk", "ssh-keygen -t ed25519"),
    ):
        with pytest.raises(SignatureError, match=why) as raised:
            sign(moe, made / name)
        assert following in str(raised.value.hint)
    assert not (moe / "composition.json.sig").exists()
    for path, kind in ((made / "nowhere", NotFoundError), (made, CheckpointError), (made / "ada.pub", CheckpointError)):
        with pytest.raises(kind):
            sign(path, made / "ada")
    monkeypatch.setenv("PATH", str(made))
    with pytest.raises(StorageError, match="ssh-keygen cannot be run") as missing:
        sign(moe, made / "ada")
    assert "openssh-client" in str(missing.value.hint)


def test_receipts_are_signed_too_and_are_statements(made: Path) -> None:
    receipt = made / "receipt.json"
    signed = sign(receipt, made / "ada")
    assert signed.file == made / "receipt.json.sig"
    assert verify(receipt, made / "signers").signer == "ada@example.org"
    document = json.loads(receipt.read_text())
    statement = read_receipt(receipt).statement()
    assert json.loads(json.dumps(statement["predicate"])) == document
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["subject"] == [
        {"name": version["ref"], "digest": {"sha256": version["digest"]}} for version in document["versions"]
    ]
    flip(receipt)
    refused(SignatureError, "incorrect signature", path=receipt, signers=made / "signers")
    signed.file.unlink()
    refused(SignatureError, "is not signed", path=receipt, signers=made / "signers")


@pytest.mark.check
@needs_openssl
@pytest.mark.filterwarnings("default")  # of libraries that model-signing imports
def test_pem_keys_make_bundles_of_openssf_model_signing(made: Path) -> None:
    pytest.importorskip("model_signing.signing")
    moe, key, public = made / "moe", made / "ec.pem", made / "ec.pub"
    for name in ("ec", "other"):
        run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", made / f"{name}.pem")
        run("openssl", "ec", "-in", made / f"{name}.pem", "-pubout", "-out", made / f"{name}.pub")
    bill(moe)
    sign(moe, made / "ada")
    refused(SignatureError, "is not signed", "model.sig", path=moe, signers=public)
    signed = sign(moe, key)
    assert verify(moe, public) == signed
    bill(shutil.copytree(moe, made / "reworded"), "other words")
    refused(SignatureError, BOM, path=made / "reworded", signers=public)
    assert signed.key == f"SHA256:{hashlib.sha256(public.read_bytes()).hexdigest()}"
    (moe / "README.md").write_bytes(with_additions((moe / "README.md").read_bytes(), "", "## Pushed"))
    for cache in (moe / ".cache" / "huggingface", moe / ".git"):
        cache.mkdir(parents=True)
        (cache / "file").write_text("")
    assert verify(moe, public) == signed
    upstream = (sys.executable, "-m", "model_signing", "verify", "key", moe, "--signature", signed.file)
    run(*upstream, "--public_key", public)
    refused(SignatureError, "is not a signature", "Key mismatch", path=moe, signers=made / "other.pub")
    for name, kind in (
        ("config.json", SignatureError),
        ("composition.json", SignatureError),
        ("README.md", CheckpointError),
    ):
        flip(shutil.copytree(moe, made / name) / name, 50)
        refused(kind, name, path=made / name, signers=public)
    (moe / "more.py").write_text("")
    refused(SignatureError, "more.py", path=moe, signers=public)
    (moe / "more.py").unlink()
    (moe / "model.sig").write_text(json.dumps(json.loads((moe / "model.sig").read_text()) | {"dsseEnvelope": None}))
    refused(SignatureError, "is not a signature", path=moe, signers=public)
    (moe / "model.sig").write_text("{}")
    refused(SignatureError, "is not a bundle", path=moe, signers=public)
    run("openssl", "genpkey", "-algorithm", "RSA", "-out", made / "rsa.pem")
    with pytest.raises(SignatureError, match="cannot sign"):
        sign(moe, made / "rsa.pem")
    with pytest.raises(InvalidInputError, match="folders alone"):
        sign(made / "receipt.json", key)


@pytest.mark.check
@needs_openssl
@pytest.mark.filterwarnings("default")  # of libraries that model-signing imports
@pytest.mark.parametrize("encrypt", ["pkcs8 -topk8 -v2 aes256", "ec -aes256"], ids=["pkcs8", "ec"])
def test_the_passphrase_of_a_pem_key_is_in_the_environment(
    made: Path, encrypt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("model_signing.signing")
    moe, key, locked, public = made / "moe", made / "ec.pem", made / "locked.pem", made / "ec.pub"
    run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key)
    run("openssl", "ec", "-in", key, "-pubout", "-out", public)
    run("openssl", *encrypt.split(), "-in", key, "-out", locked, "-passout", "pass:a passphrase")
    monkeypatch.delenv("REG_KEY_PASSPHRASE", raising=False)
    for given, why in ((None, "not given"), ("", "not given"), ("wrong", "cannot be read with this passphrase")):
        if given is not None:
            monkeypatch.setenv("REG_KEY_PASSPHRASE", given)
        with pytest.raises(SignatureError, match=why) as raised:
            sign(moe, locked)
        assert "REG_KEY_PASSPHRASE" in str(raised.value.hint)
    assert not (moe / "model.sig").exists()
    monkeypatch.setenv("REG_KEY_PASSPHRASE", "a passphrase")
    assert sign(moe, locked) == verify(moe, public) == sign(moe, key)


@needs_openssl
def test_without_its_package_a_pem_key_names_the_extra(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", made / "ec.pem")
    monkeypatch.setitem(sys.modules, "model_signing", None)
    with pytest.raises(StorageError, match="model-signing") as missing:
        sign(made / "moe", made / "ec.pem")
    assert "expert-registry[sign]" in str(missing.value.hint)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WritableHub]:
    yield from writable_hub(monkeypatch, tmp_path / "huggingface")


@pytest.mark.check(after=1)
@pytest.mark.parametrize("cached", [False, True], ids=["folder", "cache"])
def test_a_pushed_folder_verifies_after_its_download(
    made: Path, filled: Registry, hub: WritableHub, cached: bool
) -> None:
    filled.compose(["code", "math"], made / "new", Recipe(trunk="mean"))
    with pytest.raises(SignatureError):
        filled.push(made / "new", "org/moe", license="mit", sign=made / "nosuch")
    assert "org/moe" not in hub.repositories
    data = bill(made / "new").read_bytes()
    filled.push(made / "new", "org/moe", license="mit", sign=made / "ada")
    assert hub.files("org/moe")[BOM] == data
    assert hub.files("org/moe")["README.md"] != (made / "new" / "README.md").read_bytes()
    at = made / "back"
    back = Path(snapshot_download("org/moe", cache_dir=at) if cached else snapshot_download("org/moe", local_dir=at))
    assert verify(back, made / "signers").signer == "ada@example.org"
    assert filled.reproduce(back).is_same
    assert not filled.push(made / "new", "org/moe", license="mit").added  # the signature is still there
    (made / "new" / "composition.json.sig").unlink()
    (made / "new" / "composition.json.sig").symlink_to(made / "ada")
    with pytest.raises(CheckpointError, match="symbolic link out of the folder"):
        filled.push(made / "new", "org/moe", license="mit")
    (made / "new" / "composition.json.sig").unlink()
    filled.push(made / "new", "org/moe", license="mit")
    assert "composition.json.sig" not in hub.files("org/moe")
