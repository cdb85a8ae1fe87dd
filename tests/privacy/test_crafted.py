"""Releases that hide something fail the audit, and honest ones pass it, in every format."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import InputError
from kvtrace.privacy.checks import audit
from kvtrace.privacy.contributors import Contributors
from kvtrace.privacy.profiles import PROFILES
from kvtrace.privacy.releases import release
from kvtrace.privacy.sidecar_forms import public
from tests.conftest import drawn
from tests.privacy import crafted
from tests.privacy.senders import ROWS
from tests.strategies import traces

HIDDEN = ("Smith", "Patient", "hepatitis", "4155550123", "4,155,550,123", "Berlin", "Acme")
EXAMPLES = int(os.environ.get("KVTRACE_EXAMPLES", drawn(40)))


def level_of(result, name):
    return next(finding.level for finding in result.findings if finding.name == name)


@pytest.mark.parametrize("one", crafted.CRAFTED, ids=[f"{one.format}: {one.name}" for one in crafted.CRAFTED])
def test_what_holds_anything_but_a_trace_is_found(one, tmp_path):
    path = one.make(tmp_path)
    try:
        result = audit(path)
    except InputError as error:  # a manifest that no reader accepts
        assert one.format == "dataset" and not any(word in str(error) for word in HIDDEN)
        return
    assert level_of(result, one.check) == one.level, [
        (f.name, f.sentence) for f in result.findings if f.level == "FAIL"
    ]
    assert one.level == "WARN" or (not result.passed and not result.publishable)
    told = json.dumps(result.to_dict()) + result.verdict
    assert not any(word in told for word in HIDDEN)


def test_the_corpus_is_large_and_covers_the_formats():
    assert len(crafted.CRAFTED) >= 120 and {one.format for one in crafted.CRAFTED} == set(crafted.FILES)


@pytest.mark.parametrize("profile", ROWS)
@pytest.mark.parametrize("format", crafted.ALL)
def test_an_honest_release_passes(format, profile, tmp_path):
    result = audit(crafted.publish(tmp_path, format, profile))
    assert result.passed, [(f.name, f.sentence) for f in result.findings if f.level == "FAIL"]
    assert result.publishable == (profile != "exact")


@pytest.mark.parametrize("format", ["mooncake", "parquet", "dataset"])
def test_a_card_may_name_a_known_licence(format, tmp_path):
    path = crafted.publish(tmp_path, format)
    card = crafted.card_of(path)
    card.write_text(card.read_text().replace("* Licence: TODO", "* Licence: CC-BY-4.0"))
    assert audit(path).passed and audit(path, profile="exact").passed


def test_a_pipe_is_compared_in_one_pass(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    for format in ("mooncake", "gzip", "parquet"):
        folder = tmp_path / format
        folder.mkdir()
        path = crafted.publish(folder, format)
        for data, level in ((path.read_bytes(), "PASS"), (b"\n" + path.read_bytes(), "FAIL")):
            if level == "FAIL" and format != "mooncake":
                continue
            os.mkfifo(folder / f"pipe {level}")
            with ThreadPoolExecutor(1) as pool:
                pool.submit((folder / f"pipe {level}").write_bytes, data)
                assert level_of(audit(folder / f"pipe {level}"), "canonical") == level


def test_all_that_a_run_documents_may_be_published():
    log = Path(__file__).parents[2] / "examples/raw_log.jsonl"
    meta = kvtrace.anonymize(log, block_size=16).meta
    assert public(meta) == meta


@st.composite
def rich_traces(draw):
    """Traces with types and turns, too."""
    trace = draw(traces(min_block_size=2, unknown_outputs=True))
    rows = len(trace)
    if draw(st.booleans()):
        types = draw(st.lists(st.sampled_from([None, "text", "image", "poem"]), min_size=rows, max_size=rows))
        trace.extra["type"] = np.array(types, dtype=object)
    if draw(st.booleans()):
        trace.extra["turn"] = np.array(draw(st.lists(st.integers(-1, 3), min_size=rows, max_size=rows)))
    if draw(st.booleans()):
        trace.extra["slo"] = np.arange(rows)
    trace.meta |= draw(st.sampled_from([{}, {"note": "x"}, {"tokenizer": {"name": "acme/x", "sha256": "ab" * 32}}]))
    return trace


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    rich_traces(), st.sampled_from(ROWS), st.booleans(), st.sampled_from([0, 1, 77]), st.data(),
    st.sampled_from([("t.jsonl", None), ("t.jsonl.gz", None), ("t.jsonl.zst", "bailian"), ("t.jsonl", "bailian"),
                     ("t.parquet", None), ("t.parquet.gz", None), ("t.dataset", None)]),
)  # fmt: skip
def test_whatever_is_published_passes_its_audit_again(tmp_path_factory, trace, profile, extra, first_id, data, file):
    users = data.draw(st.none() | st.lists(st.integers(-1, 2), min_size=len(trace), max_size=len(trace)))
    done = release(trace, PROFILES[profile], users=None if users is None else np.array(users))
    path = Path(tmp_path_factory.mktemp("f")) / file[0]
    first_id = 0 if file[0].endswith("dataset") else first_id
    kvtrace.publish(done.trace, path, format=file[1], first_id=first_id, extra=extra)
    for contributors in (None, done.contributors):
        known = None if contributors is None else Contributors(contributors.contributor, contributors.kind)
        result = audit(path, contributors=known)
        assert result.passed, [
            (finding.name, finding.sentence) for finding in result.findings if finding.level == "FAIL"
        ]
