"""Attacks on sessions of real logs, and what profiles cost in hits: the other two tables of docs/privacy/privacy.md.

python -m tests.attacks.table --real ../shared/data     both tables, 200 trials each (but see FEW)

In a trial, half of a log's sessions are released, and a victim is one of them or not. The attacker has copies of it and
of the sessions of the other half, and answers by a score: `members.by_set`, `members.by_chains`, or a likelihood ratio
of both and of all cells, for which the attacker also knows all other released sessions, and learns from other trials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np

import kvtrace
from kvtrace.privacy.profiles import profile
from kvtrace.privacy.releases import release
from kvtrace.privacy.trace_draft import TraceDraft
from kvtrace.trace.trace import Trace
from tests.attacks import members
from tests.attacks.likelihood import discriminant
from tests.attacks.members import OTHERS, Rows, shapes

RELEASES = {"`strict`": profile("strict"), "`public`": profile("public")}
POWERS = profile("strict", round_input="pow2", alike=10)
SEEDS = 8  # of the releases under `public` whose cost is averaged
SHARES = np.geomspace(0.01, 1, 25)  # of the working set


# -- logs --------------------------------------------------------------------------------------------------------------


def chats(path: Path) -> Trace:
    return kvtrace.anonymize(path, arrivals="rate=1/s", profile="exact", block_size=16)


def agents(path: Path) -> Trace:
    return kvtrace.anonymize(path, use_template=False, profile="exact", block_size=16)


Read = Callable[[Path], Trace]
FEW = {"Claude Code": 5}  # log of 19,951,113 blocks: one in so many trials is made
ATTACKED: dict[str, tuple[str, Read]] = {
    "τ-bench, airline": ("chats/tau_airline_gpt4o.jsonl", chats),
    "Claude Code": ("agents/claude-code", kvtrace.read),
    "mini-SWE": ("agent_logs/miniswe.jsonl", agents),
    "magagent": ("agent_logs/magagent.jsonl", agents),
}
COSTED: dict[str, tuple[str, Read]] = {
    "Mooncake's conversation trace": ("mooncake/conversation_trace.jsonl", kvtrace.read),
    "InterCode": ("chats/intercode.jsonl", chats),
    "τ-bench, airline": ATTACKED["τ-bench, airline"],
    "Claude Code": ATTACKED["Claude Code"],
}


@lru_cache(1)
def read(path: Path, how: Read) -> Trace:
    return how(path)


# -- attacks -----------------------------------------------------------------------------------------------------------


def attacks(data: Path, trials: int) -> Iterator[list[str]]:
    """Log and a cell for each of RELEASES, of the logs in this folder: right answers by each score."""
    for log, (name, how) in ATTACKED.items():
        if (data / name).exists():
            of_log = trials // FEW.get(log, 1)
            right = [answers(read(data / name, how), one, of_log) for one in RELEASES]
            yield [f"{log} ({of_log})", *("nothing" if one is None else ", ".join(map(str, one)) for one in right)]


def answers(trace: Trace, name: str, trials: int) -> list[int] | None:
    """Right answers by each score; None if nothing is released in any trial."""
    copies, truth = shapes(trace, trace.session), np.arange(trials) % 2 == 1
    known = np.unique(trace.session[trace.session >= 0])
    rows = {one: copies[trace.session == one] for one in known.tolist()}
    right, features, refused = [0, 0], [], 0
    for trial in range(trials):
        ids = np.random.default_rng(trial).permutation(known).tolist()
        half = len(ids) // 2
        victim, inside, stand_in, outside = ids[0], ids[1:half], ids[half], ids[half + 1 :]
        log = trace[np.isin(trace.session, [*inside, victim if truth[trial] else stand_in])]
        done = members.released(log, RELEASES[name], trial)[0]
        if done is None:
            refused += 1
            right = [one + (not truth[trial]) for one in right]
            features.append(np.zeros(7))
            continue
        seen, many = shapes(done), np.concatenate([rows[one] for one in outside])
        values = []
        for number, score in enumerate((members.by_set, members.by_chains)):
            own, *others = (score(rows[one], seen, many) for one in (victim, *outside[:OTHERS]))
            right[number] += (own >= float(np.quantile(others, 0.9))) == truth[trial]
            values += [own - float(np.mean(others)), own - score(rows[stand_in], seen, many)]
        counts = [members.by_counts(rows[one], seen, many) for one in (victim, stand_in)]
        cases = ([*(rows[one] for one in inside), rows[one]] for one in (victim, stand_in))
        features.append(np.array([*values, *counts, log_ratio(seen, *cases)]))
    if refused == trials:
        return None
    return [*right, sum(map(bool, learnt(np.array(features), truth) == truth))]


def log_ratio(seen: Rows, member: list[Rows], out: list[Rows]) -> float:
    """The log-likelihood ratio of two sets of sessions, of each of which one request is drawn on average."""
    cells = [members.cells(rows) for rows in (seen, *member, *out)]
    names = np.unique(np.concatenate(cells))
    rates = []
    for sessions in (cells[1 : 1 + len(member)], cells[1 + len(member) :]):
        weight = np.concatenate([np.full(len(one), 1 / len(one)) for one in sessions])
        rate = np.bincount(np.searchsorted(names, np.concatenate(sessions)), weight, len(names)) + 0.5 / len(names)
        rates.append(np.log(rate / rate.sum()))
    return float((rates[0] - rates[1])[np.searchsorted(names, cells[0])].sum())


def learnt(features: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """The answer in each trial, by a discriminant that the other trials give."""
    answers = np.zeros(len(truth), dtype=bool)
    for trial in range(len(truth)):
        others = np.arange(len(truth)) != trial
        weight, middle = discriminant(features[others & ~truth], features[others & truth])
        answers[trial] = weight @ features[trial] > middle
    return answers


# -- costs -------------------------------------------------------------------------------------------------------------


def costs(data: Path) -> Iterator[list[str]]:
    """Log, contributors and a cell for each profile, of the logs in this folder."""
    chosen = profile("exact"), profile("standard"), profile("strict"), POWERS, profile("public")
    for log, (name, how) in COSTED.items():
        if not (data / name).exists():
            continue
        trace = read(data / name, how)
        users = None if trace.session is not None else TraceDraft.of(trace).conversations()
        count = len(np.unique(trace.session[trace.session >= 0])) if users is None else int(users.max()) + 1
        whole, cells = curve(trace), []
        for one in chosen:
            seeds = range(SEEDS if one.resample else 1)
            made = [curve(release(trace, one, users=users, rng=np.random.default_rng(n)).trace) for n in seeds]
            away = float(np.mean([np.abs(values - whole).mean() for values in made]))
            rate = f"{np.mean([values[-1] for values in made]):.3f}".removeprefix("0")
            cells.append(rate if one.name == "exact" else f"{rate} ({away:.3f})".replace("(0", "("))
        yield [log, f"{count:,}", *cells]


def curve(trace: Trace) -> np.ndarray:
    """The block hit rates of an LRU cache of each of SHARES of the working set."""
    hits = kvtrace.analysis.hit_curve(trace)
    sizes = np.maximum(1, np.round(SHARES * hits.working_set)).astype(int)
    return np.array([one.block_hit_rate for one in hits.hits(sizes)])
