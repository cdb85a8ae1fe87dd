"""The secret key of a run: random, or read from a key file. It is never printed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from .._base.errors import FULL, UsageError, unwritable
from .._base.files import PLAIN
from .._base.output_files import count_results
from .._base.own_files import open_own
from .._native.numbering import siphash128

KEY_BYTES = 16
DIGITS = 2 * KEY_BYTES
MAX_FILE_BYTES = 1 << 12  # a log given by mistake is not read to its end
MAX_REPETITIVE = 8  # different bytes of a secret that is not random; 16 random bytes have 9 or more


class Key:
    """A 128-bit secret. Its repr does not show it."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes):
        self._secret = bytes(secret)
        if len(self._secret) != KEY_BYTES:
            raise UsageError(f"a key must have {KEY_BYTES} bytes, not {len(self._secret)}.")

    @classmethod
    def random(cls) -> Key:
        """A new random key, in memory only."""
        return cls(secrets.token_bytes(KEY_BYTES))

    def subkey(self, purpose: str) -> bytes:
        """The key for one purpose. Digests under different subkeys are unrelated."""
        return siphash128(self._secret, purpose.encode())

    def number(self, purpose: str) -> int:
        """A seed for one purpose, as hard to guess as the key."""
        return int.from_bytes(self.subkey(purpose), "little")

    def reveal(self) -> str:
        """The key as hexadecimal digits, only for a pipe to another process of this program."""
        return self._secret.hex()

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
        UsageError: The file cannot be read, or is not this user's alone (`open_own`); its key is not random; or it is
            missing and `make` is False.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     key, again = load_key(f"{folder}/key"), load_key(f"{folder}/key")
    >>> key, key.subkey("sample") == again.subkey("sample")
    (Key(secret), True)
    """
    path = Path(path)
    try:
        text = _read(path)
    except FileNotFoundError:
        if make:
            return _make(path)
        raise UsageError(f"{path}: the key file does not exist on this host. Copy it there, with mode 0600.") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}).") from None
    secret = b""
    with suppress(ValueError):
        secret = bytes.fromhex(text.decode("ascii").strip())
    # raised outside the handlers, so that no chained error holds the file's text
    if not text:
        raise UsageError(
            f"{path}: the key file is empty (a run was killed while creating it). Delete it and run again; a new key "
            "will be created."
        )
    if len(secret) != KEY_BYTES:
        raise UsageError(f"{path}: not a key file. A key file holds {DIGITS} hexadecimal digits and nothing else.")
    if is_weak(secret):
        raise UsageError(
            f"{path}: this key can be guessed: it is not random. Name a file that does not exist, and a random key "
            "will be created."
        )
    return Key(secret)


@contextmanager
def run_key(path: str | Path | None, is_needed: Callable[[], bool] = lambda: False) -> Iterator[Key | None]:
    """The key of a run, as `load_key`; None without a path.

    A key file that was made here is deleted if the block fails, unless an output has its name or saved work needs it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with suppress(OSError), run_key(f"{folder}/key"):
    ...         raise OSError("a run that could not start")
    ...     os.listdir(folder)
    []
    """
    is_new, results = path is not None and not os.path.lexists(path), count_results()
    key = None if path is None else load_key(path)
    try:
        yield key
    except BaseException:
        if path is not None and is_new and not (is_needed() or count_results() > results):
            Path(path).unlink(missing_ok=True)
        raise


def is_weak(secret: bytes) -> bool:
    """Whether a secret looks made up: few different bytes, decimal digits, a sequence, or text.

    Less than one of a million random secrets does.

    >>> [is_weak(bytes.fromhex(text)) for text in ("0123456789abcdef" * 2, "3243f6a8885a308d313198a2e0370734")]
    [True, False]
    """
    steps = {(after - before) % 256 for before, after in pairwise(secret)}
    return (
        len(set(secret)) <= MAX_REPETITIVE
        or len(steps) <= 2
        or secret.hex().isdecimal()
        or all(32 <= byte < 127 for byte in secret)
    )


OWN = f"A key file holds {DIGITS} hexadecimal digits, and only its owner can read it: chmod 600."


def _read(path: Path) -> bytes:
    """The first bytes of a key file; UsageError if it is not a file of this user's alone."""
    handle = open_own(path, os.O_RDONLY, remedy=OWN)
    try:
        return os.read(handle, MAX_FILE_BYTES)
    finally:
        os.close(handle)


def _make(path: Path) -> Key:
    """Create a key file. It is synced to disk before the key is used, since digests may outlive a crash.

    It is written under its final name, so that no temporary copy can be left behind.
    """
    secret = secrets.token_bytes(KEY_BYTES)
    while is_weak(secret):
        secret = secrets.token_bytes(KEY_BYTES)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | PLAIN, 0o600)
    except OSError as error:
        if error.errno in FULL:
            raise unwritable(path, error) from None
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
