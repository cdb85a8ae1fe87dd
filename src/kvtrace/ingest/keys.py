"""The secret key of a run: random, or read from a key file. It is never printed."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from .._base.errors import UsageError
from .._base.output_files import unwritable
from .._native.siphash import siphash128


class Key:
    """A 128-bit secret. Its repr does not show it."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes):
        self._secret = bytes(secret)
        if len(self._secret) != 16:
            raise UsageError(f"a key must have 16 bytes, not {len(self._secret)}.")

    @classmethod
    def random(cls) -> Key:
        """A new random key, in memory only."""
        return cls(secrets.token_bytes(16))

    def subkey(self, purpose: str) -> bytes:
        """The key for one purpose. Digests under different subkeys are unrelated."""
        return siphash128(self._secret, purpose.encode())

    def number(self, purpose: str) -> int:
        """A seed for one purpose, as hard to guess as the key."""
        return int.from_bytes(self.subkey(purpose), "little")

    def __repr__(self) -> str:
        return "Key(secret)"

    def __reduce__(self) -> tuple[type[Key], tuple[bytes]]:
        # workers get the key through a pipe of the operating system
        return Key, (self._secret,)


def load_key(path: str | Path, *, make: bool = True) -> Key:
    """Read the key in a file of 32 hexadecimal digits that only its owner can read.

    Args:
        path: The key file, mode 0600.
        make: Make a missing file, with a new random key.

    Raises:
        UsageError: The file cannot be read, others may read it, or it is missing and `make` is False.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     key, again = load_key(f"{folder}/key"), load_key(f"{folder}/key")
    >>> key, key.subkey("sample") == again.subkey("sample")
    (Key(secret), True)
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if make:
            return _make(path)
        raise UsageError(f"{path}: the key file does not exist on this host. Copy it there, with mode 0600.") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}).") from None
    if not stat.S_ISREG(mode):
        raise UsageError(f"{path}: not a regular file. A key file holds 32 hexadecimal digits.")
    if mode & 0o077:
        raise UsageError(f"{path}: other users may read or write this key file. Run `chmod 600 {path}`.")
    try:
        with suppress(ValueError, UsageError):
            return Key(bytes.fromhex(path.read_text("ascii").strip()))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}).") from None
    # raised outside the handlers, so that no chained error holds the file's text
    if not path.stat().st_size:
        raise UsageError(
            f"{path}: the key file is empty (a run was killed while creating it). Delete it and run again; a new key "
            "will be created."
        )
    raise UsageError(f"{path}: not a key file. A key file holds 32 hexadecimal digits and nothing else.")


def _make(path: Path) -> Key:
    """Create a key file. It is synced to disk before the key is used, since digests may outlive a crash.

    It is written under its final name, so that no temporary copy can be left behind.
    """
    secret = secrets.token_bytes(16)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise UsageError(f"{path}: cannot be created ({error.strerror}).") from None
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(secret.hex() + "\n")
            file.flush()
            os.fsync(handle)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise unwritable(path, error) from None
    return Key(secret)
