"""Columns of a trace are freed when a command is done with them, not when Python next collects cycles."""

import gc

import numpy as np
import pytest

from kvtrace.cli import run
from tests.docs import ROOT

LOG = str(ROOT / "examples/raw_log.jsonl")
TRACE = "trace.jsonl"
OF_TEXT = "kvtrace.text."  # vocabularies and words, which do not grow with a trace
COMMANDS = [
    f"anonymize {LOG} -o other.jsonl --block-size 16 -q", f"release {TRACE} -o other.jsonl -q", f"audit {TRACE}",
    f"check {TRACE}", f"convert {TRACE} -o other.parquet -q", f"analyze {TRACE}", f"curve {TRACE}",
    f"compare {TRACE} {TRACE}", f"simulate {TRACE} --capacity 100", f"explain {TRACE} --capacity 100",
    f"tune {TRACE} --capacity 100 -q", f"plan {TRACE} --model llama-3.1-8b --gpu h100 -q",
    f"synthesize {TRACE} -o other.jsonl --requests 50 -q", f"texts {TRACE} -o other.jsonl -q",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["anonymize", LOG, "-o", TRACE, "--block-size", "16", "-q"]) == 0
    return tmp_path


@pytest.mark.parametrize("line", COMMANDS, ids=lambda line: line.split()[0])
def test_no_cycle_holds_columns(line, folder, capsys):
    run(line.split())  # what is loaded once is no garbage of the run
    held, collects = [], gc.isenabled()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        assert run(line.split()) == 0
        gc.collect()
        held = [each for each in gc.garbage for part in gc.get_referents(each) if isinstance(part, np.ndarray)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        if collects:
            gc.enable()
    own = {f"{type(each).__module__}.{type(each).__qualname__}" for each in held}
    assert {name for name in own if name.startswith("kvtrace.") and not name.startswith(OF_TEXT)} == set()
