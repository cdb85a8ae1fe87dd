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
from kvtrace.privacy.data_card import write_card
from kvtrace.privacy.profiles import PROFILES
from kvtrace.privacy.releases import release
from kvtrace.privacy.sidecar_forms import public
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.trace import Trace
from tests import unaudited
from tests.conftest import drawn
from tests.privacy import crafted
from tests.privacy.senders import ROWS
from tests.strategies import traces

HIDDEN = ("Smith", "Patient", "hepatitis", "4155550123", "4,155,550,123", "Berlin", "Acme")
EXAMPLES = int(os.environ.get("KVTRACE_EXAMPLES", drawn(40)))


def has_attributes(folder):
    """Whether the file system keeps attributes that a user sets."""
    try:
        os.setxattr(folder, "user.test", b"1")
        os.removexattr(folder, "user.test")
    except (OSError, AttributeError):
        return False
    return True


def level_of(result, name):
    return next(finding.level for finding in result.findings if finding.name == name)


@pytest.mark.parametrize("one", crafted.CRAFTED, ids=[f"{one.format}: {one.name}" for one in crafted.CRAFTED])
def test_what_holds_anything_but_a_trace_is_found(one, tmp_path):
    if one.name.startswith("attribute") and not has_attributes(tmp_path):
        pytest.skip("the file system keeps no attributes")
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
    meta = kvtrace.ingest.anonymize(log, block_size=16).meta
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
    kvtrace.privacy.publish(done.trace, path, format=file[1], first_id=first_id, extra=extra)
    for contributors in (None, done.contributors):
        known = None if contributors is None else Contributors(contributors.contributor, contributors.kind)
        result = audit(path, contributors=known)
        assert result.passed, [
            (finding.name, finding.sentence) for finding in result.findings if finding.level == "FAIL"
        ]


def with_outputs():
    """A trace whose outputs have blocks, and its times fractions of a millisecond."""
    trace = crafted.honest()
    rows = np.arange(len(trace))
    more = {"output_length": np.full(len(trace), crafted.BLOCK), "timestamp": rows * 1000.25,
            "output_ids": rows + 100, "output_offsets": np.arange(len(trace) + 1)}  # fmt: skip
    return Trace.from_columns(replace_columns(trace, **more), block_size=crafted.BLOCK, meta=trace.meta)


@pytest.mark.parametrize("key", ["hit_blocks", "request_hits"])
@pytest.mark.parametrize("format", ["mooncake", "parquet", "dataset"])
def test_hits_in_blocks_of_outputs_are_compared_with_the_rows(tmp_path, format, key):
    path = crafted.publish(tmp_path, format, "exact", with_outputs())
    assert audit(path).passed
    crafted.edit_sidecar(path, crafted.put(f"figures.hits_with_outputs.{key}", 1))
    finding = next(finding for finding in audit(path).findings if finding.name == "sidecar")
    assert finding.level == "FAIL" and f"figures.hits_with_outputs.{key}: wrong number" in finding.sentence


@pytest.mark.parametrize("change", [1e-7, 0.0004])
@pytest.mark.parametrize("format", ["mooncake", "bailian", "parquet"])
def test_times_have_no_digits_below_a_microsecond(tmp_path, format, change):
    #  a release rounds to the microsecond, so finer digits are not its own: with `write`, nobody did
    trace = with_outputs()
    honest, crafted_path = (tmp_path / name / crafted.FILES[format][0] for name in ("honest", "crafted"))
    for path, extra in ((honest, 0.0), (crafted_path, change)):
        path.parent.mkdir()
        changed = replace_columns(trace, timestamp=trace.timestamp + np.where(np.arange(len(trace)) == 5, extra, 0))
        unaudited.write(Trace.from_columns(changed, block_size=crafted.BLOCK), path, meta={"profile": "exact"},
                        format=crafted.FILES[format][1])  # fmt: skip
    assert level_of(audit(honest), "times") == "PASS" and level_of(audit(crafted_path), "times") == "FAIL"
    finer = release(Trace.from_columns(changed, block_size=crafted.BLOCK), PROFILES["exact"]).trace
    assert finer.timestamp.tolist() == trace.timestamp.tolist()


def test_what_lies_beside_a_trace_is_no_part_of_its_card(tmp_path):
    path = crafted.publish(tmp_path, "mooncake")
    card = crafted.card_of(path).read_text()
    crafted.card_of(path).unlink()
    found = audit(path)
    assert found.passed and "no data card" in next(f.sentence for f in found.findings if f.name == "sidecar")
    write_card(found, path, crafted.card_of(path))
    assert crafted.card_of(path).read_text() == card and level_of(audit(path), "sidecar") == "PASS"
