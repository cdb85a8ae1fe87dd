"""The table of docs/privacy/privacy.md: each cell is what its attack shows now, with fewer trials."""

import re

import pytest

from kvtrace.privacy.profiles import PROFILES
from tests.attacks import table
from tests.attacks.table import ATTACKS, ON_PAGE, TRIALS, in_words, interval, on_page

FEW = 8
CELL = re.compile(r"\**(\d+)/(\d+)\**( \(=\))?(?: \(\d+-\d+ %\))?")


def claim(cell):
    """What a cell claims: the same files, always, at chance, in between; or its words."""
    match = CELL.fullmatch(cell)
    if match is None:
        return cell
    right, trials = int(match[1]), int(match[2])
    low, high = interval(right, trials)
    if match[3] or right == trials:
        return "the same files" if match[3] else "always"
    return "at chance" if low <= 0.5 <= high else "in between"


def test_every_attack_has_a_cell_for_every_profile():
    assert on_page().keys() == {(number, name) for number in range(len(ATTACKS)) for name in PROFILES}
    for cell in on_page().values():
        match = CELL.fullmatch(cell)
        assert match is None or match[2] == str(TRIALS), "make the table again: python -m tests.attacks.table"


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("number", [number for number, attack in enumerate(ATTACKS) if not attack.needs_data])
def test_a_cell_claims_what_its_attack_shows(tmp_path, number, profile):
    shown, cell = ATTACKS[number].cell(profile, FEW, tmp_path), on_page()[number, profile]
    assert claim(shown) == claim(cell) or (claim(cell) == "in between" and overlap(shown, cell))


def overlap(*cells):
    """Whether the 95 % intervals of two cells overlap."""
    (low, high), (other_low, other_high) = (interval(*map(int, CELL.fullmatch(cell).groups()[:2])) for cell in cells)
    return low <= other_high and other_low <= high


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("number", [number for number, attack in enumerate(ATTACKS) if attack.needs_data])
def test_a_share_is_that_of_the_real_trace(shared, tmp_path, number, profile):
    assert ATTACKS[number].cell(profile, FEW, tmp_path) == on_page()[number, profile]


def test_a_cell_without_its_data_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "REAL", tmp_path / "missing")
    number = next(number for number, attack in enumerate(ATTACKS) if attack.needs_data)
    assert ATTACKS[number].cell("strict", FEW, tmp_path) == ON_PAGE
    monkeypatch.setattr(table, "ATTACKS", ATTACKS[:1] + ATTACKS[number : number + 1])
    assert table.table(FEW, tmp_path).splitlines()[2].endswith(" none found |")


def test_an_attack_that_succeeds_where_the_page_says_chance_is_seen(tmp_path):
    #  the rule of old: anonymous requests counted as one account
    assert claim(in_words(8, 8)) == "always" != claim(in_words(100, 200, is_same=True))
    assert claim(in_words(102, 200)) == "at chance" and claim(in_words(150, 200)) == "in between"
