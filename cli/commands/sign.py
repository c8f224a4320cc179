"""Commands of signatures: sign, verify-signature."""

from pathlib import Path

import click

from cli.option_groups import command
from cli.options import composed_path, file, file_path
from cli.output import done, next_step, printed_json, progress
from registry.io.model_folder import signable


@command("reg sign moe/ --key ~/.ssh/id_ed25519", "reg sign math-receipt.json --key ~/.ssh/id_ed25519.pub")
@click.argument("path", metavar="PATH", type=file_path)
@file("--key KEY", "A private key, or a public one whose private half ssh-agent holds.", required=True)
def sign(path: Path, key: Path) -> None:
    """Sign PATH, a composed folder that is intact or the receipt of an opt-out, with an SSH key.

    The signature, PATH/composition.json.sig or PATH.sig, is that of ssh-keygen -Y sign; the digests in composition.json
    cover all other files. An EC key in PEM (P-256, P-384, P-521) makes PATH/model.sig instead, a bundle of
    OpenSSF Model Signing; its passphrase is REG_KEY_PASSPHRASE, else asked for on a terminal.
    """
    signable(path)  # before torch is loaded
    from registry import signing

    made = signing.sign(path, key, progress())
    if printed_json(made):
        return
    done(str(made.file), f"signed {path}  {made.file}, key {made.key}")
    next_step(["verify-signature", str(path), "--signers", "FILE"])


@command(
    "reg verify-signature moe/ --signers allowed_signers",
    "reg verify-signature math-receipt.json --signers allowed_signers",
    "reg verify-signature moe/ --signers key.pub",
)
@click.argument("path", metavar="PATH", type=composed_path)
@file(
    "--signers FILE", "Allowed signers, as man ssh-keygen describes; of model.sig a public key in PEM.", required=True
)
def verify_signature(path: Path, signers: Path) -> None:
    """Check who signed PATH, a composed folder or a receipt, and that every file is as it was signed; else exit 1.

    What a push adds to the model card is not signed.
    """
    signable(path)
    from registry import signing

    found = signing.verify(path, signers, progress())
    if not printed_json(found):
        who = found.signer or str(signers)
        done(who, f"{path} is as {who} signed it  {found.file}, key {found.key}")
