"""The secret key of a run: from the operating system's randomness or a key file, and never shown elsewhere."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from .._base.errors import UsageError
from .._base.files import unwritable
from .._native.siphash import siphash128


class Key:
    """A 128-bit secret; what it prints as does not reveal it."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes):
        self._secret = bytes(secret)
        if len(self._secret) != 16:
            raise UsageError("a key has 16 bytes.")

    @classmethod
    def random(cls) -> Key:
        """A new key, which exists in memory only."""
        return cls(secrets.token_bytes(16))

    def subkey(self, purpose: str) -> bytes:
        """A key of its own for one purpose: digests made for one say nothing about another's."""
        return siphash128(self._secret, purpose.encode())

    def number(self, purpose: str) -> int:
        """A number for one purpose, to seed a generator with: as hard to guess as the key."""
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
        raise UsageError(f"{path}: there is no such key file on this host. Copy it there, mode 0600.") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}).") from None
    if not stat.S_ISREG(mode):
        raise UsageError(f"{path}: not a regular file; a key file holds 32 hexadecimal digits.")
    if mode & 0o077:
        raise UsageError(f"{path}: others may read or write this key file. Try `chmod 600 {path}`.")
    try:
        with suppress(ValueError, UsageError):
            return Key(bytes.fromhex(path.read_text("ascii").strip()))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}).") from None
    # raised out here, so that no error that holds the file's text hangs on ours
    empty = " This one is empty, as a run leaves it that was killed while it made it: remove it, and one is made."
    raise UsageError(
        f"{path}: a key file holds 32 hexadecimal digits and nothing else.{'' if path.stat().st_size else empty}"
    )


def _make(path: Path) -> Key:
    """A new key in a new file, on the disk before anything is hashed with it: what is hashed may be kept.

    It is written under its name and no other, so that no copy of it can stay behind.
    """
    secret = secrets.token_bytes(16)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise UsageError(f"{path}: cannot be made ({error.strerror}).") from None
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(secret.hex() + "\n")
            file.flush()
            os.fsync(handle)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise unwritable(path, error) from None
    return Key(secret)
