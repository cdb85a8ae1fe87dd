"""The table of docs/privacy/privacy.md: each cell is what its attack shows now, with fewer trials."""

import re

import numpy as np
import pytest

from kvtrace.privacy.profiles import PROFILES
from tests.attacks import likelihood, members, real, table
from tests.attacks.table import ATTACKS, ON_PAGE, TRIALS, in_words, interval, on_page

FEW = 8
CELL = re.compile(r"\**(\d+)/(\d+)\**( \(=\))?")


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
def test_a_cell_claims_what_its_attack_shows(tmp_path, monkeypatch, attack, profile):
    monkeypatch.setattr(likelihood, "SHADOWS", 20)
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
    public = on_page()[ATTACKS[1].attacker, ATTACKS[1].goal, "public"]
    assert f"| **200/200** | 100/200 (=) | 4/8 (=) | {public} |" in made


def test_an_attack_that_succeeds_where_the_page_says_chance_is_seen(tmp_path):
    #  the rule of old: anonymous requests counted as one account
    assert claim(in_words(8, 8)) == "always" != claim(in_words(100, 200, is_same=True))
    assert claim(in_words(102, 200)) == "at chance" and claim(in_words(150, 200)) == "in between"


@pytest.mark.parametrize("right", [86, 87, 113, 114])
def test_the_page_states_which_counts_are_chance(right):
    assert (claim(in_words(right, TRIALS)) == "at chance") == (87 <= right <= 113)


def test_a_likelihood_ratio_sees_what_differs_and_only_that():
    rng = np.random.default_rng(1)
    seen = rng.normal(size=(2, 400, 3)) + [[[0, 0, 0]], [[2, 0, 0]]]  # two standard deviations apart in one feature
    weight, middle = likelihood.discriminant(*seen[:, :200])
    right = np.mean([(seen[case, 200:] @ weight > middle) == bool(case) for case in (0, 1)])
    assert 0.78 < right < 0.90  # 0.84 at best


def test_chains_are_those_of_sessions_also_where_sessions_are_dropped():
    log = members.sessions(5, 20)
    of_log, of_release = members.shapes(log, log.session), members.shapes(members.released(log, "strict", 1)[0])
    has = of_log[:, 3] >= 0
    assert np.mean(of_log[has, 3] == of_release[has, 3]) > 0.9


# -- real logs ---------------------------------------------------------------------------------------------------------


def test_lines_of_logs_that_are_missing_stay(tmp_path):
    made = table.real_tables(tmp_path, FEW)
    assert list(made) == ["real", "costs"]
    assert all(lines in table.PAGE.read_text(encoding="utf-8") for lines in made.values())


def test_the_tables_of_real_logs_have_a_line_for_each_log():
    logs = {name: [line[0].split(" (")[0] for line in table.lines_on_page(name)[2:]] for name in ("real", "costs")}
    assert logs == {"real": list(real.ATTACKED), "costs": list(real.COSTED)}


def test_public_is_at_chance_on_real_sessions_and_strict_is_not():
    for log, *cells in table.lines_on_page("real")[2:]:
        trials = int(log.split("(")[1].rstrip(")"))
        assert trials == TRIALS // real.FEW.get(log.split(" (")[0], 1)
        strict, public = ([int(one) for one in cell.split(", ") if one != "nothing"] for cell in cells)
        assert min(strict) > 0.75 * trials
        assert all(interval(one, trials)[0] <= 0.5 for one in public)


def test_attacks_on_real_sessions_show_what_the_page_says(shared):
    """Few trials, of a log that is quick to read."""
    trace = real.chats(shared / "data" / real.ATTACKED["τ-bench, airline"][0])
    assert min(real.answers(trace, "`strict`", 20)) >= 14
    assert max(real.answers(trace, "`public`", 20)) <= 16


def test_costs_are_those_of_the_page(shared):
    """Of the traces that are quick to measure."""
    lines = {line[0]: line for line in table.lines_on_page("costs")}
    made = next(real.costs(shared / "data"))
    assert made == lines[made[0]]
