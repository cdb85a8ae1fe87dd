"""The words in the bytes of a file that is read, and the digest of bytes that cannot be read again."""

from __future__ import annotations

import numpy as np

from .._base.input_files import ByteDigest, SeenBytes

IN_WORDS = np.arange(256) >= 128  # byte -> whether words have it
IN_WORDS[[*b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_\\"]] = True
MAX_WORD = 1000  # bytes of a word that are kept


class Words:
    """The distinct words in bytes: two letters or more, other bytes above 127, and escapes.

    >>> words = Words()
    >>> words.write(b'{"hash_ids": [1], "no'), words.write(b'te": "a"}'), sorted(words.words)
    (21, 9, [b'hash_ids', b'note'])
    """

    MAX_WORDS = 10_000

    def __init__(self) -> None:
        from .._native.texts import WordFinder

        self._finder = WordFinder(IN_WORDS)
        self._words: set[bytes] = set()
        self._rest = b""  # a word that may go on in the next bytes

    def write(self, data) -> int:
        """Add bytes."""
        view = memoryview(data).cast("B")
        spans, end = self._finder.find(view)
        if end == 0:  # no bytes, or one word alone
            self._rest = (self._rest + bytes(view))[-MAX_WORD:]
            return len(view)
        words = [bytes(view[start:stop]) for start, stop in spans.tolist()]
        if len(spans) and spans[0, 0] == 0:
            words[0] = self._rest + words[0]
        else:
            words.append(self._rest)
        self._rest = bytes(view[end:])[-MAX_WORD:]
        if len(self._words) < self.MAX_WORDS:
            self._words.update(words)
        return len(view)

    @property
    def words(self) -> set[bytes]:
        """The words so far, at least MAX_WORDS of them if there are more."""
        return {word for word in (*self._words, self._rest) if len(word) > 1}


class SeenWords(SeenBytes):
    """The words in the bytes of a file; digests are kept of bytes that cannot be read again."""

    packed: _Seen
    plain: _Seen

    def __init__(self, *, repeats: bool = False) -> None:
        super().__init__(_Seen(not repeats), _Seen(not repeats))

    @property
    def words(self) -> set[bytes]:
        """The words of the decompressed bytes."""
        return (self.plain if self.form else self.packed).words.words


class _Seen:
    """The words of bytes, and perhaps their digest."""

    def __init__(self, is_digested: bool) -> None:
        self.words, self.digest = Words(), ByteDigest() if is_digested else None

    def write(self, data) -> int:
        """Add bytes."""
        if self.digest is not None:
            self.digest.write(data)
        return self.words.write(data)
