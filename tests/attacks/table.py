"""Who can learn what: the attacks on published files under each profile, and the table of docs/privacy/privacy.md.

python -m tests.attacks.table                    all cells, 200 trials each, written into the page
python -m tests.attacks.table --trials 20 --show print the table; the page stays

In half of the trials of a cell the victim did what the attacker guesses, so half of the answers are right by chance.
A row is one line of ATTACKS, a column one profile of PROFILES. `test_table.py` holds each cell with fewer trials.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

from kvtrace.privacy.profiles import PROFILES
from tests.privacy.senders import Service, account, looks_up

PAGE = Path(__file__).resolve().parents[2] / "docs/privacy/privacy.md"
TABLE = re.compile(r"(?<=<!-- attacks -->\n).*?(?=<!-- end of attacks -->)", re.S)
TRIALS = 200

Files = dict[str, str]  # what one trial published: trace, sidecar, card
Trial = Callable[[str, Path, int, bool], tuple[bool, Files]]  # of profile, folder, seed, truth: the answer, the files
Cell = Callable[[str, int, Path], str]  # of profile, trials, folder


@dataclass(frozen=True)
class Attack:
    """A row of the table."""

    attacker: str
    goal: str  # what the attacker tries to learn
    cell: Cell


def in_trials(trial: Trial) -> Cell:
    """The cell of an attack with a yes or no as its answer."""

    def cell(profile: str, trials: int, folder: Path) -> str:
        right, published = 0, {}
        is_same = True
        for number in range(trials):
            seed, truth = number // 2, bool(number % 2)
            answer, files = trial(profile, folder, seed, truth)
            right += answer == truth
            is_same &= published.setdefault(seed, files) == files
        return in_words(right, trials, is_same=is_same)

    return cell


def in_words(right: int, trials: int, *, is_same: bool = False) -> str:
    """The text of a cell: the right answers, with the 95 % interval of their share where it says more.

    >>> in_words(20, 20), in_words(10, 20, is_same=True), in_words(12, 20)
    ('**20 of 20**', '10 of 20, the same files', '12 of 20 (39 to 78 %)')
    """
    if right == trials:
        return f"**{right} of {trials}**"
    if is_same:
        return f"{right} of {trials}, the same files"
    low, high = interval(right, trials)
    return f"{right} of {trials} ({100 * low:.0f} to {100 * high:.0f} %)"


def interval(right: int, trials: int) -> tuple[float, float]:
    """The 95 % interval (Wilson) of the share of right answers."""
    z, share = 1.96, right / trials
    middle, half = share + z * z / (2 * trials), z * sqrt(share * (1 - share) / trials + z * z / (4 * trials**2))
    scale = 1 + z * z / trials
    return (middle - half) / scale, (middle + half) / scale


def guesses(service: Callable[[int], Service]) -> Cell:
    """A guessed document, sent as the service for this k says, and looked for in the other rows."""

    def trial(profile: str, folder: Path, seed: int, truth: bool) -> tuple[bool, Files]:
        files = service(PROFILES[profile].k).under(profile).publish(folder, was_sent=truth, seed=seed)
        return looks_up(files), files

    return in_trials(trial)


def accounts(count: int) -> tuple[dict, ...]:
    """So many accounts of one attacker."""
    return tuple(account(100 + number) for number in range(count))


ANONYMOUS: dict[str, str] = {}  # names no account
VICTIM = account("v")

ATTACKS = [
    Attack("one account", "whether another account sent a guessed document",
           guesses(lambda k: Service(accounts(1), VICTIM, account))),
    Attack("one account and an anonymous request", "the same",
           guesses(lambda k: Service((*accounts(1), ANONYMOUS), VICTIM, account))),
]  # fmt: skip


def rows(trials: int, folder: Path, attacks: list[Attack] = ATTACKS) -> Iterator[tuple[str, ...]]:
    """The rows of the table."""
    before = ""
    for attack in attacks:
        cells = [attack.cell(profile, trials, folder) for profile in PROFILES]
        yield ("" if attack.attacker == before else attack.attacker, attack.goal, *cells)
        before = attack.attacker


def table(trials: int, folder: Path) -> str:
    """The table in Markdown."""
    head = ("attacker", "tries to learn", *(f"`{name}`" for name in PROFILES))
    lines = [head, ("---",) * len(head), *rows(trials, folder)]
    return "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--show", action="store_true", help="print the table; do not write the page")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = table(options.trials, Path(folder))
    if options.show:
        print(made, end="")
    else:
        PAGE.write_text(TABLE.sub(lambda _: made, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
