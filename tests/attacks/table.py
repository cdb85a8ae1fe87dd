"""Who can learn what: the attacks on published files under each profile, and the table of docs/privacy/privacy.md.

python -m tests.attacks.table                    all cells, 200 trials each, written into the page
python -m tests.attacks.table --trials 20 --show print the table; the page stays
python -m tests.attacks.table --only strict      a column, or a row by its words; new cells are always measured
python -m tests.attacks.table --real ../shared/data   the page's other two tables instead, on real logs (see real.py)

In half of the trials of a cell the victim did what the attacker guesses, so half of the answers are right by chance.
Two trials share a log, so that (=) can show that the victim changes no byte; where rows are new, each has its own.
A row is one line of ATTACKS, a column one profile of PROFILES. `test_table.py` holds each cell with fewer trials.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import kvtrace
from kvtrace._base.errors import UsageError
from kvtrace.privacy.profiles import PROFILES
from kvtrace.trace.trace import Trace
from tests.attacks import likelihood, members, real
from tests.attacks.trials import (
    ONE_ACCOUNT,
    TAILS,
    Files,
    Trial,
    figures_beside,
    guesses,
    linked,
    located,
    looks_up_tails,
    time_within_its_step,
    whole_of_a_sample,
)  # fmt: skip
from tests.conftest import SHARED
from tests.privacy.senders import Service, account

PAGE = Path(__file__).resolve().parents[2] / "docs/privacy/privacy.md"
REAL = SHARED / "data/mooncake/conversation_trace.jsonl"
REFUSED = "refused"
ON_PAGE = ""  # a cell that cannot be measured here: that of the page stays
TRIALS = 200

Cell = Callable[[str, int, Path], str]  # of profile, trials, folder


@dataclass(frozen=True)
class Attack:
    """A row of the table."""

    attacker: str
    goal: str  # what the attacker tries to learn
    cell: Cell
    needs_data: bool = False  # whether it is measured on a real trace


def in_trials(trial: Trial) -> Cell:
    """The cell of an attack with a yes or no as its answer."""

    def cell(profile: str, trials: int, folder: Path) -> str:
        in_pairs = not PROFILES[profile].resample
        right, refused, is_same = 0, 0, in_pairs
        published: dict[int, Files] = {}
        for number in range(trials):
            seed, truth = number // 2 if in_pairs else number, bool(number % 2)
            try:
                answer, files = trial(profile, folder, seed, truth)
            except UsageError:  # too few contributors have anything in common: a no
                answer, files = False, {}
                refused += 1
            right += answer == truth
            is_same &= published.setdefault(seed, files) == files
        return REFUSED if refused == trials else in_words(right, trials, is_same=is_same)

    return cell


def in_words(right: int, trials: int, *, is_same: bool = False) -> str:
    """The text of a cell: the right answers, and (=) if the files are the same.

    >>> in_words(20, 20), in_words(10, 20, is_same=True), in_words(12, 20)
    ('**20/20**', '10/20 (=)', '12/20')
    """
    if right == trials:
        return f"**{right}/{trials}**"
    return f"{right}/{trials} (=)" if is_same else f"{right}/{trials}"


def interval(right: int, trials: int) -> tuple[float, float]:
    """The 95 % interval (Wilson) of the share of right answers."""
    z, share = 1.96, right / trials
    middle, half = share + z * z / (2 * trials), z * sqrt(share * (1 - share) / trials + z * z / (4 * trials**2))
    scale = 1 + z * z / trials
    return (middle - half) / scale, (middle + half) / scale


def held(words: str) -> Cell:
    """A cell that tests elsewhere hold, for all profiles: the page names them."""
    return lambda profile, trials, folder: words


def on_a_real_trace(share: Callable[[Trace, str], float]) -> Cell:
    """The share of the requests of Mooncake's conversation trace; what the page says where the trace is missing."""

    def cell(profile: str, trials: int, folder: Path) -> str:
        if PROFILES[profile].resample:
            return "new rows"
        if not REAL.exists():
            return ON_PAGE
        return f"{100 * share(kvtrace.read(REAL), profile):.4g} %"

    return cell


def guess(service: Callable[[int], Service]) -> Cell:
    """The cell of a guess about a document that the victim of a service sent."""
    return in_trials(guesses(service))


def guessers(profile: str) -> int:
    """The accounts of one attacker with which a guess tells most."""
    return MOST if PROFILES[profile].resample else max(1, PROFILES[profile].k - 1)


def ratio(cases: likelihood.Cases) -> Cell:
    """The cell of an attack by a likelihood ratio."""
    return in_trials(likelihood.likelihood(cases))


def accounts(count: int) -> tuple[dict, ...]:
    """So many accounts of one attacker, at least one."""
    return tuple(account(100 + number) for number in range(max(1, count)))


def member(user: object = None) -> dict:
    """The fields of a row of the one account that all share, with the name of a user."""
    return account("x") | ({} if user is None else {"user": f"user {user}"})


NOBODY: dict[str, str] = {}  # fields of an anonymous request
NINE = (NOBODY,) * 9
MOST = 25  # accounts, of which about k = 10 are drawn: tried with 10 to 30
VICTIM = account("v")
COPY = "holder of a copy of a session"
ALL_BUT = "k - 1 accounts (2; 9; 25)*"
READER, ONE, FOLDER = "reader of the release", "one account", "colleague in a shared folder"
MEMBER = "user of an account, also without a name"
DOCUMENT, SENT, ANONYMOUS = (
    "whether another account sent a guessed document",
    "whether an account did",
    "whether an anonymous sender did",
)

ATTACKS = [
    Attack(READER, "prompts from ids, with a dictionary of openings", held("none found")),
    Attack(READER, "the last tokens of a prompt", in_trials(guesses(lambda k: TAILS, looks_up_tails))),
    Attack(READER, "the row of a request with known time and lengths", on_a_real_trace(located),
           needs_data=True),
    Attack(READER, "whether that request is in the log", in_trials(members.single_request)),
    Attack(COPY, "whether it is in the log, by its set of lengths", in_trials(members.member(members.by_set, 0.9))),
    Attack(COPY, "the same, by its chain of lengths and pauses", in_trials(members.member(members.by_chains, 0.9))),
    Attack(COPY, "the same, knowing all other sessions*", ratio(likelihood.session)),
    Attack(READER, "a time within its second, from service times and delays", in_trials(time_within_its_step)),
    Attack(READER, "the size of the whole, from a sample", in_trials(whole_of_a_sample)),
    Attack(ONE, DOCUMENT, guess(lambda k: ONE_ACCOUNT)),
    Attack(ONE, "the same, from the figures beside the trace", in_trials(figures_beside)),
    Attack(ONE, "the same, if the log has no accounts", guess(lambda k: Service((NOBODY,), extends=True))),
    Attack("nine anonymous requests", SENT, guess(lambda k: Service(NINE, VICTIM, account))),
    Attack("nine anonymous requests", ANONYMOUS, guess(lambda k: Service(NINE, NOBODY, account))),
    Attack("one account and an anonymous request", SENT,
           guess(lambda k: Service((*accounts(1), NOBODY), VICTIM, account))),
    Attack("k - 2 accounts and nine", SENT, guess(lambda k: Service((*accounts(k - 2), *NINE), VICTIM, account))),
    Attack("k - 1 accounts and nine", ANONYMOUS, guess(lambda k: Service((*accounts(k - 1), *NINE), NOBODY, account))),
    Attack("k - 1 accounts (2; 9)", SENT, guess(lambda k: Service(accounts(k - 1), VICTIM, account))),
    Attack("k accounts (3; 10)", ANONYMOUS, guess(lambda k: Service(accounts(k), NOBODY, account))),
    Attack(MEMBER, "whether another of its users did",
           guess(lambda k: Service((member("a"), member()), member("v"), member))),
    Attack(MEMBER, "the same, without names", guess(lambda k: Service((member(),), member(), member))),
    Attack(ALL_BUT, "whether an account did", ratio(likelihood.document(guessers))),
    Attack(ALL_BUT, "the same, if 12 sent its first part", ratio(likelihood.document(guessers, nested=12))),
    Attack(FOLDER, "text, keys or users, from the files of a run", held("none found")),
    Attack(FOLDER, "to lead the run to another file, or read its checkpoint", held("refused")),
    Attack("holder of two releases", "which rows are the same request, by time and lengths", on_a_real_trace(linked),
           needs_data=True),
]  # fmt: skip


Cells = dict[tuple[str, str, str], str]  # (attacker, goal, profile) -> text


def place_of(name: str) -> re.Pattern[str]:
    """The place of a table of the page."""
    return re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end of {name} -->)", re.S)


def lines_on_page(name: str) -> list[list[str]]:
    """The cells of each line of a table of the page."""
    match = place_of(name).search(PAGE.read_text(encoding="utf-8"))
    assert match, f"the page has no place for the table {name!r}"
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in match[0].splitlines()]


def write(name: str, made: str) -> None:
    """Put a table into the page."""
    PAGE.write_text(place_of(name).sub(lambda _: made, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def on_page() -> Cells:
    """The cells of the page."""
    head, _, *lines = ([cell.strip(" `") for cell in line] for line in lines_on_page("attacks"))
    cells, attacker = {}, ""
    for who, goal, *texts in lines:
        attacker = who or attacker
        cells |= {(attacker, goal, name): text for name, text in zip(head[2:], texts, strict=True)}
    return cells


def table(trials: int, folder: Path, *, only: str = "") -> str:
    """The table in Markdown; cells of the page stay if `only` is not in their attacker, goal or profile."""
    head = ("attacker", "tries to learn", *(f"`{name}`" for name in PROFILES))
    lines, before, old = [head, ("---",) * len(head)], "", on_page()
    for attack in ATTACKS:
        cells = []
        for name in PROFILES:
            place = (attack.attacker, attack.goal, name)
            is_kept = place in old and not any(only in words for words in place)
            cells.append((None if is_kept else attack.cell(name, trials, folder)) or old.get(place, ""))
        lines.append(("" if attack.attacker == before else attack.attacker, attack.goal, *cells))
        before = attack.attacker
    return in_markdown(lines)


def in_markdown(lines: Iterable[Iterable[str]]) -> str:
    """The lines of a table, the second of them of dashes."""
    written = "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in lines)
    return written.replace(" --- ", "---")


def real_tables(data: Path, trials: int) -> dict[str, str]:
    """The tables of real logs; lines of the page stay where a log is missing."""
    made = {}
    for name, measured in (("real", real.attacks(data, trials)), ("costs", real.costs(data))):
        head, dashes, *lines = lines_on_page(name)
        new = {line[0].split(" (")[0]: line for line in measured}
        made[name] = in_markdown([head, dashes, *(new.get(line[0].split(" (")[0], line) for line in lines)])
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--show", action="store_true", help="print the table; do not write the page")
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="an attacker, a goal or a profile; other cells stay"
    )
    parser.add_argument("--real", type=Path, metavar="FOLDER", help="make the tables of the real logs of this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.real:
            made = real_tables(options.real, options.trials)
        else:
            made = {"attacks": table(options.trials, Path(folder), only=options.only)}
    for name, lines in made.items():
        if options.show:
            print(lines)
        else:
            write(name, lines)


if __name__ == "__main__":
    main()
