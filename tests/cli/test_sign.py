"""Proves: `reg sign`, `reg verify-signature` and `reg push --sign` say who signed and exit 1 for everything else."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Reg
from tests.running import ROOT
from tests.writable_hub import WritableHub, writable_hub

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen")

ON_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WritableHub]:
    yield from writable_hub(monkeypatch, tmp_path / "huggingface")


def new_key(path: Path, passphrase: str = "") -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", path], check=True)
    return path


def test_signatures_are_told(reg: Reg, hub: WritableHub, tmp_path: Path) -> None:
    moe, signers, key = tmp_path / "moe", tmp_path / "signers", new_key(tmp_path / "key")
    signers.write_text(f"ada@example.org {(tmp_path / 'key.pub').read_text()}")
    reg("compose", "--experts", "code,math", "--trunk", "mean", "--out", moe)
    unsigned = reg("verify-signature", moe, "--signers", signers, code=1)
    assert unsigned.stdout == ""
    assert f"error: {moe} is not signed" in unsigned.stderr
    assert f"next: its signer runs: reg sign {moe} --key KEY" in unsigned.stderr
    signed = reg("sign", moe, "--key", key)
    assert signed.stdout.startswith(f"signed {moe}  {moe}/composition.json.sig, key SHA256:")
    assert f"verify-signature {moe} --signers FILE" in signed.stderr
    assert reg("verify-signature", moe, "--signers", signers).stdout.startswith(
        f"{moe} is as ada@example.org signed it"
    )
    assert reg("verify-signature", moe, "--signers", signers, "--quiet").stdout == "ada@example.org\n"
    (moe / "composition.json.sig").unlink()
    reg("push", moe, "org/moe", "--license", "mit", "--sign", key)
    assert hub.files("org/moe")["composition.json.sig"] == (moe / "composition.json.sig").read_bytes()
    new = ("compose", "--experts", "code,math", "--trunk", "mean", "--top-k", 1, "--out", tmp_path / "new")
    push = ("--push", "org/new", "--license", "mit", "--sign")
    assert "nosuch" in reg(*new, *push, tmp_path / "nosuch", code=1).stderr
    assert not (tmp_path / "new").exists()
    reg(*new, *push, key)
    assert reg("verify-signature", tmp_path / "new", "--signers", signers, "--quiet").stdout == "ada@example.org\n"
    assert "composition.json.sig" in hub.files("org/new")
    (moe / "config.json").write_text("{}")
    for words in (("verify-signature", moe, "--signers", signers), ("sign", moe, "--key", key)):
        assert f"error: {moe}/config.json was changed" in reg(*words, code=1).stderr
    assert "--key" in reg("sign", moe, code=2).stderr


@pytest.mark.check
def test_who_signed_an_expert_is_told(reg: Reg, hub: WritableHub, tmp_path: Path) -> None:
    signers, key = tmp_path / "signers", new_key(tmp_path / "key")
    signers.write_text(f"ada@example.org {(tmp_path / 'key.pub').read_text()}")
    reg("push-expert", "math", "org/math", "--calibration", "--sign", key)
    told = reg("add-expert", "other", "hf://org/math").stderr
    assert "hf://org/math: signed (expert.json.sig), which reg add-expert --signers FILE verifies" in told
    told = reg("add-expert", "new", "hf://org/math", "--signers", signers).stderr
    assert "hf://org/math: signed by ada@example.org, key SHA256:" in told
    assert reg.json("show", "new")["tags"]["signer"] == "ada@example.org"
    reg("push-expert", "code", "org/code")
    refused = reg("add-expert", "bad", "hf://org/code", "--signers", signers, code=1).stderr
    assert "error: hf://org/code is not signed: it has no expert.json.sig" in refused
    assert "next: its owner runs: reg push-expert NAME REPO --sign KEY" in refused
    assert "bad" in reg("show", "bad", code=1).stderr
    public = (tmp_path / "key.pub").read_text()
    for content in (
        b"",
        bytes(range(256)),
        public.encode(),
        b"-----BEGIN PUBLIC KEY-----\nAAAA\n",
        b"# ada ssh-rsa AAAA",
    ):
        signers.write_bytes(content)
        for words in (("add-expert", "bad", "hf://org/absent"), ("verify-signature", signers)):
            if content.startswith(b"-----") and words[0] == "verify-signature":
                continue
            refused = reg(*words, "--signers", signers, code=1).stderr
            assert f"error: {signers} is not a file of allowed signers" in refused, content
            assert "NAME ssh-ed25519 AAAA" in refused
    told = reg("push-expert", "math", "org/new", "--sign", "/nosuch", code=1).stderr
    assert "error: /nosuch does not exist" in told


@pytest.mark.check
def test_a_folder_that_is_signed_says_so_and_is_not_to_be_used_if_it_was_changed(
    reg: Reg, hub: WritableHub, tmp_path: Path
) -> None:
    reg("push-expert", "math", "org/math", "--calibration", "--sign", new_key(tmp_path / "key"))
    folder = tmp_path / "fetched"
    folder.mkdir()
    for name, data in hub.files("org/math").items():
        (folder / name).write_bytes(data)
    told = reg("add-expert", "new", folder).stderr
    assert f"{folder}: signed (expert.json.sig), which reg add-expert --signers FILE verifies" in told
    weights = folder / "model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    refused = reg("add-expert", "new", folder, code=1).stderr
    assert "next: it is not as it was signed: do not use it" in refused


def test_receipts_are_statements_and_can_be_signed(reg: Reg, tmp_path: Path) -> None:
    receipt, key = tmp_path / "receipt.json", new_key(tmp_path / "key")
    reg("opt-out", "law", "--yes", "--receipt", receipt)
    printed = json.loads(reg("receipt", "statement", receipt).stdout)
    assert printed["predicate"] == json.loads(receipt.read_text())
    assert [subject["name"] for subject in printed["subject"]] == ["law@1"]
    assert reg.json("sign", receipt, "--key", key)["file"] == f"{receipt}.sig"


def answered(answer: str, *words: object) -> tuple[int, bytes]:
    """Run `reg` on a terminal, answer when it asks for a passphrase, and return its exit code and what it printed."""
    with subprocess.Popen(
        [sys.executable, "-c", ON_TERMINAL, sys.executable, "-m", "cli", *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"SSH_AUTH_SOCK": ""},
    ) as terminal:
        assert terminal.stdin is not None
        assert terminal.stdout is not None
        asked = b""
        while b"assphrase" not in asked:  # what is typed before it asks is discarded
            asked += (more := os.read(terminal.stdout.fileno(), 4096))
            assert more, asked
        terminal.stdin.write(f"{answer}\n".encode())
        terminal.stdin.flush()
        said = asked + terminal.stdout.read()
        return terminal.wait(), said


def test_a_passphrase_is_asked_on_a_terminal_alone(reg: Reg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_ASKPASS", raising=False)
    receipt, key = tmp_path / "receipt.json", new_key(tmp_path / "key", "a passphrase")
    reg("opt-out", "law", "--yes", "--receipt", receipt)
    refused = reg("sign", receipt, "--key", key, code=1).stderr
    assert "it has a passphrase, which is not given" in refused
    assert f"ssh-add {key}" in refused
    for answer, expected in (("wrong", 1), ("a passphrase", 0)):
        code, said = answered(answer, "sign", receipt, "--key", key)
        assert code == expected, said
    assert (tmp_path / "receipt.json.sig").is_file()


@pytest.mark.check
@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_so_is_that_of_a_pem_key(reg: Reg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("model_signing")
    monkeypatch.delenv("REG_KEY_PASSPHRASE", raising=False)
    moe, key = tmp_path / "moe", tmp_path / "key.pem"
    made = "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -aes256 -pass pass:secret -out"
    subprocess.run([*made.split(), str(key)], check=True)
    reg("compose", "--experts", "code,math", "--trunk", "mean", "--out", moe)
    refused = reg("sign", moe, "--key", key, code=1).stderr
    assert f"error: {key} has a passphrase, which is not given" in refused
    for answer, expected in (("wrong", 1), ("secret", 0)):
        code, said = answered(answer, "sign", moe, "--key", key)
        assert code == expected, said
        assert b"secret" not in said
    assert (moe / "model.sig").is_file()
    for kind in ("RSA", "ED25519", "EC -pkeyopt ec_paramgen_curve:secp256k1"):
        subprocess.run(["openssl", "genpkey", "-algorithm", *kind.split(), "-out", tmp_path / "other"], check=True)
        refused = reg("sign", moe, "--key", tmp_path / "other", code=1).stderr
        assert f"error: {tmp_path / 'other'} cannot sign: of PEM keys, EC keys on P-256, P-384 or P-521 do" in refused
    made = "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-384 -out"
    subprocess.run([*made.split(), tmp_path / "large"], check=True)
    reg("sign", moe, "--key", tmp_path / "large")
