"""A service with an attacker: a log in which a victim sends a document or another one, and what is published of it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import kvtrace
from kvtrace.ingest.keys import Key
from kvtrace.privacy.profiles import PROFILES

BLOCK, TRIALS = 16, 20
KEY = Key(bytes(range(16)))
KEYS = (Key(number.to_bytes(16, "big")) for number in count(1))  # of draws, which the attacker does not know
ROWS = sorted(name for name in PROFILES if not PROFILES[name].resample)  # whose releases have the rows of the trace
MARK = 977  # output tokens of the attacker's requests, so that the attacker finds the own rows


@dataclass(frozen=True)
class Service:
    """Who sends: the fields of each sender's requests. The attacker sends one request for each of `attacker`."""

    attacker: tuple[dict, ...]
    victim: dict = field(default_factory=dict)
    others: Callable[[int], dict] = lambda user: {}  # of user 0, 1, 2, ...
    options: dict = field(default_factory=dict)  # of `kvtrace.ingest.anonymize`
    crowd: int = 12  # others
    extends: bool = False  # whether guesses extend the victim's whole prompt

    def log(self, path: Path, *, was_sent: bool, seed: int) -> Path:
        """Write a log: the others, the victim, whose document is the guessed one or another, and the guesses."""
        draw = random.Random(seed)
        system, document, other = ([draw.randrange(9000) for _ in range(4 * BLOCK)] for _ in range(3))
        rows = []
        for user in (number % self.crowd for number in range(max(24, self.crowd))):
            own = [draw.randrange(9000) for _ in range(draw.randrange(1, 60))]
            rows.append((self.others(user), system + own, draw.randrange(1, 500)))
        rows.append(
            (self.victim, system + (document if was_sent else other) + [1] * (0 if self.extends else BLOCK), 30)
        )
        for number, sender in enumerate(self.attacker):
            rows.append((sender, system + document + [2 + number] * BLOCK, MARK))
        lines = (
            json.dumps({"timestamp": 1000 * time, "input": prompt, "output": output} | sender) + "\n"
            for time, (sender, prompt, output) in enumerate(rows)
        )
        path.write_text("".join(lines))
        return path

    def publish(self, folder: Path, *, was_sent: bool, seed: int) -> dict[str, str]:
        """The published files of one trial: trace, sidecar and card."""
        log = self.log(folder / "log.jsonl", was_sent=was_sent, seed=seed)
        options = {
            "tokenizer": None,
            "block_size": BLOCK,
            "key": KEY if self.crowd == 12 else next(KEYS),
        } | self.options
        kvtrace.privacy.publish(kvtrace.ingest.anonymize(log, **options), folder / "day.jsonl")
        names = {"trace": "day.jsonl", "sidecar": "day.jsonl.meta.json", "card": "day.jsonl.card.md"}
        return {kind: (folder / name).read_text() for kind, name in names.items()}

    def under(self, profile: str) -> Service:
        """The same service, with another profile."""
        crowd = 60 if PROFILES[profile].resample else self.crowd
        return replace(self, options=self.options | {"profile": profile}, crowd=crowd)


def account(user) -> dict:
    """The field of a row that names its account."""
    return {"account_id": f"account {user}"}


def looks_up(files: dict[str, str]) -> bool:
    """The attacker's answer: whether another row has the last block of the document."""
    rows = [json.loads(line) for line in files["trace"].splitlines()]
    if json.loads(files.get("sidecar", "{}")).get("profile") == "public":  # no row is the attacker's own
        deep = [row["hash_ids"][7] for row in rows if len(row["hash_ids"]) > 7]
        return len(set(deep)) < len(deep)
    longest = max(row["output_length"] for row in rows)  # of the attacker's rows, also if lengths are rounded
    deepest = {
        row["hash_ids"][7] for row in rows if row["output_length"] == longest
    }  # the document is in blocks 4 to 7
    return any(deepest & set(row["hash_ids"]) for row in rows if row["output_length"] != longest)


def successes(service: Service, folder: Path, attack: Callable[[dict[str, str]], bool] = looks_up) -> int:
    """Trials of TRIALS in which the attack tells whether the victim sent the document, as in half of them."""
    right = 0
    for trial in range(TRIALS):
        was_sent = bool(trial % 2)
        right += attack(service.publish(folder, was_sent=was_sent, seed=trial // 2)) == was_sent
    return right


def sections(card: str) -> tuple[str, str]:
    """What a card lists as protected, and as not protected."""
    section = card.partition("## What is protected, and what is not")[2].partition("\n## ")[0]
    protected, _, rest = section.partition("Not protected:")
    return ("" if "Nothing is protected" in protected else protected), rest
