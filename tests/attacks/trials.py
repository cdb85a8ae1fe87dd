"""Attacks on published files, a trial at a time: what is published if the guess is true or false, and what is answered.

A trial takes the profile, a folder, a seed and the truth, and gives the attacker's answer and the published files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import kvtrace
from kvtrace.privacy.profiles import PROFILES
from kvtrace.trace.columns import Columns
from kvtrace.trace.session_trees import recorded_dependencies
from kvtrace.trace.trace import Trace
from tests.privacy.senders import Service, account, looks_up

Files = dict[str, str]  # trace, sidecar and card of one trial
Trial = Callable[[str, Path, int, bool], tuple[bool, Files]]
NAMES = {"trace": "day.jsonl", "sidecar": "day.jsonl.meta.json", "card": "day.jsonl.card.md"}
ONE_ACCOUNT = Service((account("a"),), account("v"), account)


def guesses(service: Callable[[int], Service], attack: Callable[[Files], bool] = looks_up) -> Trial:
    """A guess about what the victim of a service sent; the service may depend on the profile's k."""

    def trial(profile: str, folder: Path, seed: int, truth: bool) -> tuple[bool, Files]:
        files = service(PROFILES[profile].k).under(profile).publish(folder, was_sent=truth, seed=seed)
        return attack(files), files

    return trial


# -- the last tokens -------------------------------------------------------------------------------------------------


class Tails(Service):
    """A victim whose last five tokens are guessed: they are in a partial block, which the attacker sends."""

    def log(self, path: Path, *, was_sent: bool, seed: int) -> Path:
        path = super().log(path, was_sent=was_sent, seed=seed)
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows[-2:]:
            row["input"] = rows[0]["input"][:64] + [7, 7, 7, 7, 7 if row is rows[-1] or was_sent else 8]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path


def looks_up_tails(files: Files) -> bool:
    """The attacker's answer: whether another row has the last block of the own row."""
    rows = [json.loads(line)["hash_ids"] for line in files["trace"].splitlines()]
    return sum(rows[-1][-1] in ids for ids in rows) > 1


TAILS = Tails((account("a"),), account("v"), account)


# -- the figures beside a trace --------------------------------------------------------------------------------------


def numbers_in(files: Files) -> list[float]:
    """All numbers that the sidecar and the card state."""
    found: list[float] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            for one in value:
                walk(one)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found.append(value)

    walk(json.loads(files["sidecar"]))
    return found + [float(word) for word in files["card"].replace(",", "").split() if word.replace(".", "").isdigit()]


def figures_beside(profile: str, folder: Path, seed: int, truth: bool) -> tuple[bool, Files]:
    """The attacker knows all of the log but the victim's document, and so the figures if it is the guessed one."""
    service = ONE_ACCOUNT.under(profile)
    expected = numbers_in(service.publish(folder, was_sent=True, seed=seed))
    files = service.publish(folder, was_sent=truth, seed=seed)
    return numbers_in(files) == expected, files


# -- the size of the whole -------------------------------------------------------------------------------------------


def published(trace: Any, folder: Path) -> Files:
    """The files of a released trace."""
    kvtrace.privacy.publish(trace, folder / "day.jsonl")
    return {kind: (folder / name).read_text() for kind, name in NAMES.items()}


def whole_of_a_sample(profile: str, folder: Path, seed: int, truth: bool) -> tuple[bool, Files]:
    """A sample of about 40 sessions in 10 minutes, of 200 (true) or of 100: a rate that is a fraction of one tells."""
    sizes, rng = (600, 300), np.random.default_rng(seed)
    log, count, share = folder / "log.jsonl", sizes[not truth], 0.2 if truth else 0.4
    starts = rng.integers(0, 600_000, count)
    rows = [
        {"timestamp": int(starts[n // 3]) + 5000 * (n % 3), "input": [1] * 32 + [n] * 16 * (n % 3),
         "output": n % 7 + 1, "session_id": n // 3}
        for n in range(count)
    ]  # fmt: skip
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole = kvtrace.ingest.anonymize(log, tokenizer=None, block_size=16, profile="exact")
    files = published(kvtrace.privacy.release(whole, PROFILES[profile], session_share=share, rng=rng).trace, folder)
    blocks = [sum(2 + n % 3 for n in range(size)) for size in sizes]
    rates = [one for one in numbers_in(files) if 0 < one < 1 and len(repr(one)) > 9]
    own = json.loads(files["sidecar"])["figures"]
    rates = [one for one in rates if abs(one * own["blocks"] - round(one * own["blocks"])) > 1e-6]
    stated = {size for size in blocks if any(abs(one * size - round(one * size)) < 1e-6 for one in rates)}
    return stated == {blocks[0]}, files


# -- a time within its step ------------------------------------------------------------------------------------------


def time_within_its_step(profile: str, folder: Path, seed: int, truth: bool) -> tuple[bool, Files]:
    """The attacker guesses that a request started late in its second, and adds up all times that the rows state."""
    draw = np.random.default_rng(seed)
    starts = np.cumsum(draw.integers(4_000, 9_000, 12)) // 1000 * 1000 + draw.integers(0, 1000, 12)
    ends = starts + draw.integers(1_000, 3_000, 12)
    starts[0], victim = 0, 6
    starts[victim] = starts[victim] // 1000 * 1000 + draw.integers(0, 500) + (500 if truth else 0)
    rows = len(starts)
    columns = Columns(
        starts * 1.0, np.full(rows, 32), np.full(rows, 5), np.tile([0, 1], rows), np.arange(rows + 1) * 2,
        session=np.zeros(rows, dtype=np.int64), service_ms=(ends - starts) * 1.0,
    )  # fmt: skip
    columns.dependencies = recorded_dependencies(columns)
    released = kvtrace.privacy.release(
        Trace.from_columns(columns, block_size=16), PROFILES[profile], users=np.zeros(rows, int)
    )
    kvtrace.privacy.publish(released.trace, folder / "day.dataset")
    trace = kvtrace.read(folder / "day.dataset")
    stated = [trace.timestamp[victim]]
    if trace.service_ms is not None and trace.dependencies is not None:
        before, after = victim - 1, trace.dependencies.offsets[victim]
        stated.append(trace.timestamp[before] + trace.service_ms[before] + trace.dependencies.delay_ms[after])
        stated.append(trace.timestamp[victim + 1] - trace.service_ms[victim])
    files = {path.name: path.read_bytes().hex() for path in sorted((folder / "day.dataset").iterdir())}
    return any(time % 1000 >= 500 for time in stated[:2]), files


# -- rows of a known request, on the conversation trace of Mooncake ---------------------------------------------------


def located(whole: Trace, profile: str) -> float:
    """The share of requests that an observer of their time and lengths finds in the release."""
    from kvtrace.privacy.checks.anonymity import alone_near

    done = kvtrace.privacy.release(whole, PROFILES[profile], users=np.arange(len(whole)) % 500).trace
    lengths = np.unique(np.stack([done.input_length, done.output_length]), axis=1, return_inverse=True)[1]
    return alone_near(lengths.ravel(), done.timestamp, 60_000)


def linked(whole: Trace, profile: str) -> float:
    """The share of requests that two releases show as the same one, by time and lengths."""
    done = kvtrace.privacy.release(whole, PROFILES[profile], users=np.arange(len(whole)) % 500).trace
    known = np.stack([done.timestamp, done.input_length, done.output_length], axis=1)
    return np.count_nonzero(np.unique(known, axis=0, return_counts=True)[1] == 1) / len(whole)
