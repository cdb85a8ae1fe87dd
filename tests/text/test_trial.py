"""Tokenizers of the user's that panic, abort or hang: one line, after a trial in a child process."""

import base64
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvtrace._base.errors import InputError, RowError
from kvtrace.text import tokenizers, trial
from tests.docs import ROOT

TINY = json.loads((ROOT / "tests/data/tokenizers/tiny/tokenizer.json").read_text())
ABORTS = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"\xff" * 40).decode()}
PANICS = {"type": "Replace", "pattern": {"Regex": ""}, "content": "abc" * 1000}
SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/kvtrace"


def tokenizer(folder, **changed) -> str:
    path = folder / "changed.json"
    path.write_text(json.dumps(TINY | changed))
    return str(path)


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"normalizer": ABORTS}, "crashes (SIGABRT)"),
        ({"normalizer": PANICS}, "panics on a sample of texts"),
        ({"pre_tokenizer": SPLIT | {"pattern": {"Regex": "(a*)*" * 20 + "b"}}}, "panics on a sample of texts"),
    ],
)
def test_a_tokenizer_that_would_take_the_process_along_is_refused(tmp_path, changed, fault):
    path = tokenizer(tmp_path, **changed)
    with pytest.raises(InputError) as error:
        tokenizers.load(path)
    assert str(error.value) == f"{path}: this tokenizer cannot be used: the library `tokenizers` {fault}."


def test_a_tokenizer_without_a_token_for_unknown_words_fails_row_by_row(tmp_path):
    words = {"type": "WordLevel", "vocab": {"boats": 0}, "unk_token": "none"}
    loaded = tokenizers.load(tokenizer(tmp_path, model=words, added_tokens=[]))
    assert loaded.encode("boats").tolist() == [0]
    with pytest.raises(RowError, match="the tokenizer failed on the text"):
        loaded.encode("sails")


def test_a_panic_prints_one_line(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"timestamp": 0, "input": "the keeper counts boats", "output": 2}\n')
    broken = {"type": "Precompiled", "precompiled_charsmap": "AA=="}
    for changed in ({"normalizer": ABORTS}, {"normalizer": broken}):
        command = [sys.executable, "-m", "kvtrace", "anonymize", "log.jsonl", "-o", "out.jsonl",
                   "--tokenizer", tokenizer(tmp_path, **changed)]  # fmt: skip
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 3 and len(done.stderr.splitlines()) == 1, done.stderr
    assert not [path for path in Path(tmp_path).glob("*out*")]


def test_a_good_verdict_is_remembered_and_a_bad_one_is_not(tmp_path, cache, monkeypatch):
    tokenizers.load(tokenizer(tmp_path)).wait()
    monkeypatch.setattr(trial, "in_child", lambda *_, **__: -signal.SIGSEGV)
    tokenizers.load(tokenizer(tmp_path)).wait()
    with pytest.raises(InputError, match="crashes \\(SIGSEGV\\)"):
        tokenizers.load(tokenizer(tmp_path, normalizer={"type": "NFC"}))


def test_a_child_is_bounded_in_time_and_in_memory():
    def endless():
        while True:
            pass

    status = trial.in_child(endless, seconds=1)
    assert trial.why(status, 1) == "takes more than 1 s"
    assert trial.in_child(lambda: len(bytearray(1 << 30)), memory=1 << 28) == trial.FAILED
    assert trial.in_child(lambda: os.write(2, b"")) == 0


def test_a_child_that_aborts_prints_nothing():
    copied = "import faulthandler, os; faulthandler.enable(open(os.dup(2), 'w'))"  # as pytest does
    code = f"{copied}; from kvtrace.text import trial; print(trial.in_child(os.abort))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("-6\n", "")


def test_a_trial_may_use_no_more_memory_than_its_own_process():
    def limit():
        return resource.getrlimit(resource.RLIMIT_AS)[0]

    def nested():
        own = limit()
        return trial.in_child(lambda: int(limit() != own))

    assert trial.in_child(nested, memory=1 << 30) == 0
