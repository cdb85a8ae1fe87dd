"""Sources of one window must have one form of blocks: requests of others are rejected, and the window is whole."""

import os
import signal

import orjson
import pytest

import kvtrace
from kvtrace._base.errors import UsageError
from kvtrace.capture.encoders import BlockForm
from kvtrace.capture.gauge import GaugeOptions
from kvtrace.capture.recorder import Recorder
from kvtrace.capture.watcher import Watcher
from kvtrace.ingest.encoding_options import EncodingOptions
from kvtrace.privacy.publishing import publish
from tests.capture.test_litellm import call
from tests.capture.windows import sealed, waited
from tests.docs import ROOT

TINY = {"tokenizer": str(ROOT / "tests/data/tokenizers/tiny")}
LOGS = ROOT / "tests/data/logs"
HASHED, WITHOUT_TAILS = LOGS / "dynamo.jsonl", LOGS / "ucm.jsonl"  # blocks of 16 tokens; of 512, without partial ones
CALLS = [orjson.dumps(call(number)) for number in range(5)]  # text, with blocks of 512 tokens
SIZES = "its blocks have {} tokens, and those of the first source have {}"


def put_text(recorder):
    """Requests of LiteLLM."""
    assert all(recorder.put("litellm", line) for line in CALLS)


def put_hashes(recorder, log=HASHED):
    """Requests of a log that holds hashes of blocks."""
    assert all(recorder.put("follow", line) for line in log.read_bytes().splitlines())


def digested(recorder):
    """Wait until something was digested."""
    waited(lambda: recorder.counts().digested > 0 and not recorder.counts().waiting)


@pytest.mark.parametrize("text_first", [True, False])
def test_the_first_source_with_requests_decides_and_those_of_the_other_are_rejected(text_first, tmp_path):
    said, (first, second) = [], (put_text, put_hashes) if text_first else (put_hashes, put_text)
    with Recorder(tmp_path / "recorded", profile="exact", on_message=said.append, **TINY) as recorder:
        first(recorder), digested(recorder), second(recorder), second(recorder)
    log = HASHED
    if text_first:
        log = tmp_path / "calls.jsonl"
        log.write_bytes(b"\n".join(CALLS))
    publish(kvtrace.ingest.anonymize(log, profile="exact", **TINY), tmp_path / "whole.jsonl")
    (window,) = sealed(tmp_path / "recorded")
    assert window.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    names = ("litellm", "follow") if text_first else ("follow", "litellm")
    assert kvtrace.read(window).meta["recording"]["sources"] == [names[0]]
    sizes = (16, 512) if text_first else (512, 16)
    complaints = [sentence for sentence in said if sentence.startswith(names[1])]
    assert complaints == [
        f"{names[1]}: {SIZES.format(*sizes)}. Use one block size, or another recorder. Its requests are rejected."
    ]
    counts, requests = recorder.counts(), len(kvtrace.ingest.anonymize(HASHED, **TINY)) if text_first else len(CALLS)
    assert counts.rejected == sum(counts.reasons.values()) == 2 * requests
    assert f"{2 * requests} rejected" in said[-1]


def test_a_block_size_that_contradicts_the_hashes_is_told_once(tmp_path):
    said = []
    with Recorder(tmp_path, block_size=512, on_message=said.append, **TINY) as recorder:
        put_text(recorder), digested(recorder), put_hashes(recorder), put_hashes(recorder)
    (window,) = sealed(tmp_path)
    assert len(kvtrace.read(window)) == len(CALLS) and recorder.counts().rejected == 6
    assert "6 rejected" in said[-1] and len([one for one in said if one.startswith("follow: ")]) == 1


def test_partial_blocks_are_in_all_sources_or_in_none(tmp_path):
    said = []
    with Recorder(tmp_path, profile="exact", on_message=said.append, **TINY) as recorder:
        put_text(recorder), digested(recorder), put_hashes(recorder, WITHOUT_TAILS)
    (window,) = sealed(tmp_path)
    assert len(kvtrace.read(window)) == len(CALLS) and kvtrace.formats.check(window) == []
    assert said[0].startswith("follow: the first source has the last, partial block of a prompt, and it has not.")
    assert recorder.counts().rejected > 0


def test_the_first_source_still_decides_after_a_crash(tmp_path):
    with Recorder(tmp_path, profile="exact", **TINY) as recorder:
        put_text(recorder), digested(recorder)
        os.kill(recorder._feeder.pid, signal.SIGKILL)
        waited(lambda: recorder.counts().restarts == 1)
        put_hashes(recorder)
    (window,) = sealed(tmp_path)
    assert len(kvtrace.read(window)) == len(CALLS) and kvtrace.formats.check(window) == []


def test_sources_with_the_same_blocks_share_a_window(tmp_path):
    with Recorder(tmp_path, profile="exact", block_size=16, **TINY) as recorder:
        put_text(recorder), put_hashes(recorder)
    (window,) = sealed(tmp_path)
    assert recorder.counts().rejected == 0 and len(kvtrace.read(window)) == recorder.counts().digested > len(CALLS)
    assert kvtrace.formats.check(window) == []


def test_a_new_window_may_have_another_block_size(tmp_path):
    clock = [995.0]
    with Recorder(tmp_path, window_s=10, profile="exact", clock=lambda: clock[0], **TINY) as recorder:
        put_hashes(recorder), digested(recorder)
        clock[0] = 1001.0
        waited(lambda: recorder.counts().sealed == 1)
        put_text(recorder)
    assert [kvtrace.read(window).block_size for window in sealed(tmp_path)] == [16, 512]


def test_watch_rejects_them_too():
    said = []
    with Watcher(GaugeOptions(), EncodingOptions(**TINY), on_message=said.append) as watcher:
        put_text(watcher)
        waited(lambda: watcher.counts().get("requests"))
        put_hashes(watcher)
    assert watcher.snapshot()["block_size"] == 512 and watcher.counts()["requests"] == len(CALLS)
    assert watcher.counts()["rejected"] > 0 and len([one for one in said if one.startswith("follow: its")]) == 1


def test_a_source_that_does_not_exist_is_refused_at_once(tmp_path):
    with Recorder(tmp_path, **TINY) as recorder, pytest.raises(UsageError, match="'olpt' is not a source"):
        recorder.put("olpt", b"{}")
    assert recorder.counts().accepted == recorder.counts().dropped == 0


def test_forms_of_blocks():
    form = BlockForm(16, "kept")
    assert form.misfit(form) is None
    assert SIZES.format(16, 512) in form.misfit(BlockForm(512, "dropped"))
    assert form.misfit(BlockForm(16, "dropped")).startswith("it has the last, partial block")
    assert BlockForm(16, "dropped").misfit(form).startswith("the first source has the last, partial block")
