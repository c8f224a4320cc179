"""Checking an error about the Hub."""

from registry.errors import RegError


def check_told(error: RegError, *parts: str) -> None:
    """Check that an error says `parts`, has a hint, and shows no token."""
    told = f"{error.message} | {error.hint}"
    assert error.hint
    assert told.isprintable()
    assert "hf_secret" not in told
    for part in parts:
        assert part in told, told
