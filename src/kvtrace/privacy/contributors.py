"""The contributors to blocks: the accounts or users of a trace, or their best substitute if the log has neither.

A request whose contributor is not known may be anyone's. k does not count it, since one account could send any number
of such requests; and none of them shares a split block with another, since their senders may all be different. Nor does
k count the requests of an account that name no user, where it counts the users of that account; these share split
blocks with each other. Users in a file beside the trace are numbered on reading and never written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from .._base.errors import InputError, UsageError
from .._base.files import name_of
from .._base.input_files import open_read
from ..trace.columns import Columns
from ..trace.trace import Trace

WARNINGS = {
    "accounts": None,
    "users": None,
    "client_users": (
        "k counts users that the client sets, because the log has no accounts, tenants or API keys: one account can "
        "send several user names and count several times"
    ),
    "sessions": "k counts sessions because the log has no users: a user with several sessions counts several times",
    "inferred": (
        "k counts conversations inferred from the blocks because the log has neither users nor sessions: a guess that "
        "extends another sender's prompt counts as the same conversation, so its blocks are not split"
    ),
    "requests": "k counts requests: one account can send k requests and count k times",
}
WORDS = {  # kind -> its name in sentences
    "accounts": "accounts", "users": "users", "client_users": "users named by clients",
    "sessions": "sessions", "inferred": "inferred conversations", "requests": "requests",
}  # fmt: skip
SINGULAR = {kind: "user" if "user" in kind else kind.removesuffix("s") for kind in WORDS}  # what a request names


def meaning_of_k(k: int, kind: str) -> str:
    """What k is in a release that counted contributors of this kind, in a sentence.

    >>> meaning_of_k(3, "accounts")
    'k = 3 counts accounts; a request that names no account counts for nobody.'
    >>> meaning_of_k(3, "inferred")
    'k = 3 counts inferred conversations, not accounts: one account can count as 3.'
    """
    if WARNINGS[kind]:
        return f"k = {k:,} counts {WORDS[kind]}, not accounts: one account can count as {k:,}."
    return f"k = {k:,} counts {WORDS[kind]}; a request that names no {SINGULAR[kind]} counts for nobody."


@dataclass(frozen=True, eq=False)
class Users:
    """The user of each request, from a log or from a file beside a trace."""

    user: np.ndarray  # request -> number of its user or account, -1 = unknown
    kind: str = "users"  # accounts, users or client_users
    member: np.ndarray | None = None  # request -> number of a user within its account, -1 = unknown

    def __len__(self) -> int:
        return len(self.user)

    def __getitem__(self, rows: np.ndarray | slice) -> Users:
        """The users of some requests."""
        return replace(self, user=self.user[rows], member=None if self.member is None else self.member[rows])

    @property
    def are_known(self) -> bool:
        """Whether any user is known."""
        return bool((self.user >= 0).any())


@dataclass(frozen=True, eq=False, repr=False)
class Contributors:
    """The contributor of each request, numbered from 0, and their kind: one of WARNINGS."""

    contributor: np.ndarray  # request -> contributor, int64; all unknown ones have the same number
    kind: str
    member: np.ndarray | None = None  # request -> member of its contributor, numbered from 0; None = itself
    unknown: int = -1  # number in place of all unknown contributors, which count for nobody; -1 = all are known
    unnamed: np.ndarray | None = None  # request -> whether it names no user of its account; None = all name one

    def __repr__(self) -> str:  # no contributor: a notebook keeps what it shows
        return f"Contributors({len(self.contributor):,} requests, kind={self.kind})"

    def __getitem__(self, rows: np.ndarray | slice) -> Contributors:
        """The contributors of some requests."""
        member = None if self.member is None else self.member[rows]
        unnamed = None if self.unnamed is None else self.unnamed[rows]
        return replace(self, contributor=self.contributor[rows], member=member, unnamed=unnamed)

    @property
    def warning(self) -> str | None:
        """The weakness of this kind compared with accounts, in words; None if it has none."""
        return WARNINGS[self.kind]

    @property
    def unknown_requests(self) -> int:
        """The number of requests whose contributor is not known."""
        return int(np.count_nonzero(self.contributor == self.unknown))

    @property
    def units(self) -> np.ndarray:
        """The smallest units that are known to belong together, for a sample: the members, else the contributors."""
        return self.contributor if self.member is None else self.member


def contributors(
    rows: Columns, users: Users | np.ndarray | None = None, counts: str = "auto", *, infer: Callable[[], np.ndarray]
) -> Contributors:
    """The contributors that k counts: `users` (request -> user, -1 = unknown) if given, else sessions, else inferred.

    Requests without a user, or without a session if sessions are counted, have the number `unknown`; each session of
    them, and each request without one, is a member of it. `infer` gives the conversation of each request, and is called
    if there are neither users nor sessions. UsageError if `counts` is "users" and no user is known.

    >>> from kvtrace.trace.building import toy
    >>> counted = contributors(toy("0", "1", "2"), np.array([5, -1, -1]), infer=lambda: np.arange(3))
    >>> counted.kind, counted.contributor, counted.member
    ('users', array([5, 6, 6]), array([5, 6, 7]))
    """
    identities = Users(users) if isinstance(users, np.ndarray) else users
    sessions = np.full(len(rows), -1) if rows.session is None else rows.session
    kind = counted_kind(
        counts, identities.kind if identities and identities.are_known else None, bool((sessions >= 0).any())
    )
    if kind == "requests":
        return Contributors(np.arange(len(rows)), kind)
    if kind == "inferred":
        return Contributors(infer(), kind)
    if kind == "sessions":
        return _with_unknown(sessions, kind, _numbered(sessions))
    assert identities is not None
    if identities.member is None:
        return _with_unknown(identities.user, kind, _numbered(identities.user, sessions))
    members = np.where(identities.user >= 0, identities.member, -1)
    found = _with_unknown(identities.user, kind, _numbered(members, identities.user, sessions))
    unnamed = (identities.user >= 0) & (members < 0)
    return found if found.member is None or not unnamed.any() else replace(found, unnamed=unnamed)


def counted_kind(counts: str, users: str | None, sessions: bool) -> str:
    """The kind of contributors that k counts; `users` is the kind of the known users, None if no user is known.

    >>> counted_kind("auto", "accounts", True), counted_kind("auto", None, True), counted_kind("auto", None, False)
    ('accounts', 'sessions', 'inferred')
    """
    if counts == "requests":
        return counts
    if counts == "users" and users is None:
        raise UsageError(
            "--k-counts users needs the users of the requests, but none is known. Name their field (--map "
            "account=PATH, --tenant-field PATH; for a trace --users FILE), or leave out --k-counts."
        )
    if counts in ("auto", "users") and users is not None:
        return users
    return "sessions" if sessions else "inferred"


def _with_unknown(values: np.ndarray, kind: str, members: np.ndarray) -> Contributors:
    """Contributors with one number for all requests whose value is -1."""
    if (values >= 0).all():
        same = members is values or _distinct(members) == _distinct(values)
        return Contributors(values.astype(np.int64), kind, None if same else members)
    unknown = int(values.max(initial=-1)) + 1
    return Contributors(np.where(values < 0, unknown, values).astype(np.int64), kind, members, unknown)


def _distinct(values: np.ndarray) -> int:
    """The number of distinct values."""
    from .._native import numbering

    return numbering.renumber(values)[1]


def _numbered(*choices):
    """For each request the first known value of the choices, in distinct ranges; unknown requests get new numbers."""
    numbers, next_number = np.full(len(choices[0]), -1, dtype=np.int64), 0
    for values in choices:
        fresh = (numbers < 0) & (values >= 0)
        numbers[fresh] = values[fresh] + next_number
        next_number = max(next_number, int(numbers.max(initial=-1)) + 1)
    unknown = np.flatnonzero(numbers < 0)
    numbers[unknown] = next_number + np.arange(len(unknown))
    return numbers


COLUMN = "\0user"  # an extra column during reading, so that users stay with their rows


def read_with_users(
    trace: str | Path, users: str | Path | None, *, block_size: int | None = None
) -> tuple[Trace, np.ndarray | None]:
    """Read a trace and the users of its requests (request -> number, -1 = unknown; None without `users`).

    `users` is a file with one line for each row of the trace; InputError if their numbers differ.
    """
    from ..formats import reading

    if users is None:
        return reading.read(trace, block_size=block_size), None
    whole = reading.read(trace, block_size=block_size, add_columns=lambda rows: {COLUMN: numbered(users, rows)})
    user_numbers = whole.extra.pop(COLUMN)
    return whole, user_numbers


def numbered(users: str | Path, rows: int) -> np.ndarray:
    """The user number of each line of a file, -1 for an empty line; InputError if it does not have `rows` lines."""
    with open_read(users) as stream:
        lines = stream.read().split(b"\n")
    if lines and not lines[-1]:
        del lines[-1]
    if len(lines) != rows:
        raise InputError(
            f"{name_of(users)}: the file has {len(lines):,} lines, but the trace has {rows:,} rows. Give one line for "
            "each row."
        )
    number: dict[bytes, int] = {}
    names = (line.strip() for line in lines)
    return np.array([number.setdefault(name, len(number)) if name else -1 for name in names], dtype=np.int64)
