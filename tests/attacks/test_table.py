"""The table of docs/privacy/privacy.md: each cell is what its attack shows now, with fewer trials."""

import re

import pytest

from kvtrace.privacy.profiles import PROFILES
from tests.attacks import table
from tests.attacks.table import ATTACKS, ON_PAGE, TRIALS, in_words, interval, on_page

FEW = 8
CELL = re.compile(r"\**(\d+)/(\d+)\**( \(=\))?(?: \(\d+-\d+ %\))?")


def named(attack):
    """The name of a case."""
    return f"{attack.attacker}, {attack.goal}"


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
    assert on_page().keys() == {(one.attacker, one.goal, name) for one in ATTACKS for name in PROFILES}
    for cell in on_page().values():
        match = CELL.fullmatch(cell)
        assert match is None or match[2] == str(TRIALS), "make the table again: python -m tests.attacks.table"


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if not attack.needs_data], ids=named)
def test_a_cell_claims_what_its_attack_shows(tmp_path, attack, profile):
    shown, cell = attack.cell(profile, FEW, tmp_path), on_page()[attack.attacker, attack.goal, profile]
    assert claim(shown) == claim(cell) or (claim(cell) == "in between" and overlap(shown, cell))


def overlap(*cells):
    """Whether the 95 % intervals of two cells overlap."""
    (low, high), (other_low, other_high) = (interval(*map(int, CELL.fullmatch(cell).groups()[:2])) for cell in cells)
    return low <= other_high and other_low <= high


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack.needs_data], ids=named)
def test_a_share_is_that_of_the_real_trace(shared, tmp_path, attack, profile):
    assert attack.cell(profile, FEW, tmp_path) == on_page()[attack.attacker, attack.goal, profile]


def test_a_cell_without_its_data_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "REAL", tmp_path / "missing")
    attacks = [attack for attack in ATTACKS if attack.needs_data]
    monkeypatch.setattr(table, "ATTACKS", attacks)
    assert {attack.cell("strict", FEW, tmp_path) for attack in attacks} == {ON_PAGE}
    made = table.table(FEW, tmp_path)
    for attack in attacks:
        cells = " | ".join(on_page()[attack.attacker, attack.goal, profile] for profile in PROFILES)
        assert f"| {attack.goal} | {cells} |" in made


def test_only_the_cells_that_are_named_change(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "ATTACKS", ATTACKS[:2])
    made = table.table(FEW, tmp_path, only="strict").splitlines()[3]
    assert "| **200/200** | 100/200 (=) | 4/8 (=) | 105/200" in made


def test_an_attack_that_succeeds_where_the_page_says_chance_is_seen(tmp_path):
    #  the rule of old: anonymous requests counted as one account
    assert claim(in_words(8, 8)) == "always" != claim(in_words(100, 200, is_same=True))
    assert claim(in_words(102, 200)) == "at chance" and claim(in_words(150, 200)) == "in between"
