"""A recorder killed at any moment: what it had digested is sealed, audited and whole, and the rest is counted.

KVTRACE_KILL_POINTS sets how often a recorder is killed; `make fuzz` kills 200.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time

import pytest

import kvtrace
from kvtrace.capture.intake import Ledger
from kvtrace.capture.windows import STATE, open_windows, read_window
from kvtrace.privacy.publishing import publish
from tests.capture.recording import CANARY, OPTIONS, row
from tests.capture.windows import sealed, waited
from tests.conftest import drawn
from tests.docs import ROOT

KILLS = int(os.environ.get("KVTRACE_KILL_POINTS", drawn(4)))


def started(folder, *, count=100_000, rate=2000, window_s=1.0, key_file=None, first=0):
    """A running recorder, once it takes requests."""
    arguments = [folder, count, rate, window_s, key_file or "", first]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.capture.recording", *map(str, arguments)], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    said = []
    for line in process.stdout:
        if line == "ready\n":
            return process, said
        said.append(line)
    raise AssertionError(process.stderr.read())


def digesters_of(process):
    """The processes that a recorder started."""
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    return [int(number) for number in found.stdout.split()]


def requests_of(folder):
    """The requests of all sealed windows, each of which is a valid, audited trace."""
    total = 0
    for path in sealed(folder):
        trace = kvtrace.read(path)
        assert kvtrace.check(path) == []
        assert kvtrace.audit(path).passed
        assert path.with_name(path.name + ".card.md").exists()
        total += len(trace)
    return total


def lost_in(told):
    """The lost requests of all windows, which a recorder tells at its start, or when the window is sealed."""
    window = r"^(window-\S+: |the recorder stopped before a window began; )"
    found = re.findall(window + r".*?([\d,]+)(?: requests?)? (?:was |were )?lost", told, re.M)
    return sum({name: int(number.replace(",", "")) for name, number in found}.values())


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_killed_recorder_loses_what_was_not_digested_and_says_how_much(seed, tmp_path):
    rng = random.Random(seed)
    folder = tmp_path / "recorded"
    key_file = tmp_path / "key" if seed % 3 == 0 else None
    process, _ = started(folder, key_file=key_file)
    time.sleep(rng.uniform(0, 3))
    victims = digesters_of(process)
    if seed % 2:  # all at once, as a machine that fails
        for number in victims:
            os.kill(number, signal.SIGKILL)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done, said = started(folder, count=10, rate=1000, window_s=3600, key_file=key_file)
    rest, errors = done.communicate(timeout=120)
    assert not errors
    told = "".join(said) + rest
    assert requests_of(folder) + lost_in(told) == Ledger(folder / STATE / "counts").accepted, told
    assert sorted(path.name for path in (folder / STATE).iterdir()) == ["counts", "lock"], told
    assert not [path for path in folder.iterdir() if path.name.endswith((".part", ".lock"))]
    for path in folder.rglob("*"):
        assert path.is_dir() or CANARY.encode() not in path.read_bytes()


@pytest.mark.parametrize("has_key", [True, False])
def test_with_its_key_a_recorder_goes_on_with_the_window_and_without_it_says_what_is_lost(has_key, tmp_path):
    folder, year = tmp_path / "recorded", {"window_s": 366 * 86400}
    key_file = tmp_path / "key" if has_key else None
    process, _ = started(folder, rate=1000, key_file=key_file, **year)
    waited(lambda: any((window := read_window(path)) and window.covered > 200 for path in open_windows(folder)))
    (digester,) = digesters_of(process)
    for number in (process.pid, digester):
        os.kill(number, signal.SIGKILL)
    process.communicate()
    (open_window,) = open_windows(folder)
    waited(lambda: not os.path.exists(f"/proc/{digester}"))
    kept = read_window(open_window).covered
    lost = Ledger(folder / STATE / "counts").accepted - kept
    done, said = started(folder, count=50, rate=1000, first=100_000, key_file=key_file, **year)
    rest, errors = done.communicate(timeout=120)
    assert not errors and rest.endswith("done\n")
    number = "no request was" if not lost else "1 request was" if lost == 1 else f"{lost:,} requests were"
    sentence = f"{open_window.stem}: the recorder stopped before the window ended; {number} lost."
    assert said == [f"{sentence} It goes on.\n" if has_key else f"{sentence}\n"]
    before, after = map(row, range(kept)), map(row, range(100_000, 100_050))
    logs = [[*before, *after]] if has_key else [[*before], [*after]]
    windows = sealed(folder)
    assert len(windows) == len(logs)
    for i, (window, log) in enumerate(zip(windows, logs, strict=True)):  # as if it had never been interrupted
        (tmp_path / "log.jsonl").write_text("\n".join(log))
        publish(kvtrace.anonymize(tmp_path / "log.jsonl", log_format="auto", **OPTIONS), tmp_path / f"whole{i}.jsonl")
        assert window.read_bytes() == (tmp_path / f"whole{i}.jsonl").read_bytes()
        assert kvtrace.audit(window).passed
