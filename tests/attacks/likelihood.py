"""Attacks by a likelihood ratio: who knows all of a log but whether the victim is in it makes releases of both cases.

The attacker makes SHADOWS releases of each of the two logs, measures some features of each, and fits the ratio of two
normal distributions of one covariance (Fisher's discriminant). The answer is yes if the published release is likelier
with the victim. This is the attacker of differential privacy, who knows the method and all others, but not the draws.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np

from kvtrace.privacy.profiles import PROFILES
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace
from tests.attacks import members
from tests.attacks.members import BLOCK, SYSTEM, Files, Rows, released, shapes

SHADOWS = 200  # of each case
TRIALS_OF_A_LOG = 10  # which share their shadows
FIRST, SECOND = 16, 24  # blocks of a document's two parts
CROWD = 120  # accounts with documents of their own

Log = tuple[Trace, np.ndarray]  # requests and their contributors
Features = Callable[[Trace], np.ndarray]  # of a release
Cases = Callable[[str, int], tuple[Log, Log, Features]]  # of profile and seed: without the victim and with it


def likelihood(cases: Cases):
    """A trial of the attack: `cases` gives the two logs of a profile and a seed, and the features of a release."""

    @lru_cache(4)
    def fitted(profile: str, seed: int) -> tuple[np.ndarray, float]:
        *logs, features = cases(profile, seed)
        draws = SHADOWS if PROFILES[profile].resample else 1
        seen = [
            np.array([_measured(log, profile, [seed, case, n], features)[0] for n in range(draws)])
            for case, log in enumerate(logs)
        ]
        return discriminant(*seen)

    def trial(profile: str, folder: Path, seed: int, truth: bool) -> tuple[bool, Files]:
        group = seed // TRIALS_OF_A_LOG
        *logs, features = cases(profile, group)
        weight, middle = fitted(profile, group)
        values, files = _measured(logs[truth], profile, [seed, truth, SHADOWS], features)
        return bool(weight @ values > middle), files

    return trial


def discriminant(out: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, float]:
    """Weights of the features, and the score from which on a release is likelier to have the member."""
    means = out.mean(axis=0), member.mean(axis=0)
    spread = np.concatenate([values - mean for values, mean in zip((out, member), means, strict=True)])
    covariance = spread.T @ spread / len(spread)
    weight = np.linalg.solve(covariance + 0.01 * np.diag(covariance.diagonal() + 1e-6), means[1] - means[0])
    return weight, float(weight @ (means[0] + means[1])) / 2


def _measured(log: Log, profile: str, seed: list[int], features) -> tuple[np.ndarray, Files]:
    trace, users = log
    done, files = released(trace, profile, seed, users)
    none = trace[:1]  # nothing is left: one request of nobody
    return features(none if done is None else done), files


# -- documents ---------------------------------------------------------------------------------------------------------


def document(guessers: Callable[[str], int], *, nested: int = 0) -> Cases:
    """A victim who sends a guessed document twice, in a conversation, or another one of its length.

    The attacker's accounts (`guessers` of a profile) do what the victim does if the guess is true. As many others as
    `nested` sent the first part of the document alone.
    """

    @lru_cache(4)
    def cases(profile: str, seed: int) -> tuple[Log, Log, Features]:
        rng, rows, fresh = np.random.default_rng(seed), [], iter(range(1000, 1 << 30, 100))
        first, second = (np.arange(at, at + size) for at, size in ((100, FIRST), (200, SECOND)))

        def sends(user: int, *parts: np.ndarray) -> None:
            path = np.concatenate([np.arange(SYSTEM), *parts, next(fresh) + np.arange(2)])
            rows.extend([(user, path), (user, np.concatenate([path, next(fresh) + np.arange(3)]))])

        for user in range(CROWD):
            sends(user, next(fresh) + np.arange(int(rng.integers(2, 8))))
        count = CROWD + guessers(profile)
        for user in range(CROWD, count):
            sends(user, first, second)
        for user in range(count, count + nested):
            sends(user, first)
        others, logs = list(rows), []
        for guess in ((next(fresh) + np.arange(FIRST + SECOND),), (first, second)):
            rows[:] = others
            sends(count + nested, *guess)
            logs.append(_log([rows[at] for at in np.random.default_rng(seed).permutation(len(rows))]))
        return (*logs, shared_documents)

    return cases


def _log(rows: list[tuple[int, np.ndarray]]) -> Log:
    users, paths = zip(*rows, strict=True)
    lengths = np.array(list(map(len, paths)))
    columns = Columns(
        np.arange(len(rows)) * 1000.0, lengths * BLOCK, 20 + 0 * lengths, np.concatenate(paths),
        np.cumsum([0, *lengths]),
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=BLOCK), np.array(users)


def shared_documents(done: Trace) -> np.ndarray:
    """Of the two depths of a document: rows that go deeper, rows of the block that most of them have, and its share."""
    features = [float(len(done))]
    for depth in (SYSTEM + FIRST, SYSTEM + FIRST + SECOND):
        deep = done.hash_ids[done.offsets[:-1][done.prompt_blocks >= depth] + depth - 1]
        most = int(np.unique(deep, return_counts=True)[1].max(initial=0))
        features += [len(deep), most, np.sqrt(most), most > 1, most / max(1, len(deep))]
    return np.array(features, dtype=np.float64)


# -- sessions ----------------------------------------------------------------------------------------------------------


@lru_cache(4)
def session(profile: str, seed: int) -> tuple[Log, Log, Features]:
    """The log of all other sessions, with a victim or with another session in its place; see `members.member`."""
    trace = members.sessions(seed)
    ids = np.random.default_rng([seed, 1]).permutation(np.unique(trace.session))
    half = len(ids) // 2
    victim, inside, stand_in, outside = ids[0], ids[1:half], ids[half], ids[half + 1 :]
    logs = [trace[np.isin(trace.session, [*inside, one])] for one in (stand_in, victim)]
    copies = shapes(trace, trace.session)
    own, other, many = (copies[np.isin(trace.session, one)] for one in ([victim], [stand_in], outside))

    def features(done: Trace) -> np.ndarray:
        rows = shapes(done)
        scores = [score(one, rows, many) for score in SCORES for one in (own, other)]
        return np.array([*scores, len(rows), np.log2(1 + done.timestamp[-1]), np.median(rows[:, 4])])

    return (*((log, log.session) for log in logs), features)


SCORES: tuple[Callable[[Rows, Rows, Rows], float], ...] = (members.by_set, members.by_counts, members.by_chains)
