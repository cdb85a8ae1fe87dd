"""Model files that are damaged or hostile: one line that shows none of their values, in little time and memory."""

import copy
import json
import zlib

import pytest

import kvtrace
from kvtrace.cli import run
from kvtrace.synthesis.attach_fitting import fit
from kvtrace.synthesis.session_fitting import fit_sessions
from kvtrace.trace.building import toy
from tests.conftest import drawn
from tests.synthesis.session_forests import forest

WORD = "CanaryQz7xKw"
ODD = [WORD, [WORD], {WORD: WORD}, None, 1e300, float("nan"), 2**62, 2**63, 10**400, -1, [], True, f"12{WORD}"]
MODEL = fit(toy("0 1", "0 2", "3", "0 1 4", gap_ms=500)).to_dict()
SESSIONS = fit_sessions(forest(3, seed=5, shared=1, subagents=1.0)).to_dict()


def places(value, place=()):
    """The keys of each value inside a value: the first and the last of each list."""
    if place and place != ("what",):
        yield place
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*place, key))
    elif isinstance(value, list) and value:
        for end in sorted({0, len(value) - 1}):
            yield from places(value[end], (*place, end))


def odd_values(place):
    """The word, and a part of the other odd values: another part in the next place."""
    step = len(ODD) // drawn(len(ODD))
    return [WORD, *ODD[1 + zlib.crc32(repr(place).encode()) % step :: step]]


@pytest.mark.parametrize(
    ("model", "place"),
    [pytest.param(model, place, id=".".join([name, *map(str, place)]))
     for name, model in (("attach", MODEL), ("sessions", SESSIONS)) for place in places(model)],
)  # fmt: skip
def test_no_odd_value_is_shown_or_drawn_from(model, place, tmp_path, capsys):
    values = copy.deepcopy(model)
    inner = values
    for key in place[:-1]:
        inner = inner[key]
    for odd in odd_values(place):
        inner[place[-1]] = odd
        (tmp_path / "model.json").write_text(json.dumps(values))
        status = run(["synthesize", str(tmp_path / "model.json"), "-o", str(tmp_path / "out.jsonl"), "-q"])
        text = capsys.readouterr().err
        assert status in (0, 2, 3) and WORD not in text and text.count("\n") <= 1, (odd, text)
        for written in tmp_path.glob("out.jsonl*"):
            written.unlink()


def test_another_schema_is_named_by_ours(tmp_path):
    (tmp_path / "model.json").write_text(json.dumps(MODEL | {"schema": WORD}))
    with pytest.raises(kvtrace.InputError, match="its schema is not 2, which this version reads") as error:
        kvtrace.synthesis.Model.load(tmp_path / "model.json")
    assert WORD not in str(error.value)
