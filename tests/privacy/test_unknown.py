"""Releases of traces with unknown outputs or prefixes, and of traces that state how their prompts were rendered."""

import json
from pathlib import Path

import numpy as np
import pytest

import kvtrace
from kvtrace._base.errors import UsageError
from kvtrace.cli import run
from kvtrace.formats import writing
from kvtrace.formats.dataset import open_dataset
from kvtrace.formats.links import Links, fingerprint_of, write_links
from kvtrace.privacy.linking import LinkIndex
from kvtrace.privacy.release_tasks import release_dataset
from kvtrace.privacy.session_times import service_times
from kvtrace.privacy.sidecar_forms import public
from kvtrace.trace.columns import Columns
from kvtrace.trace.meta import PREFIXES_UNKNOWN
from kvtrace.trace.trace import Trace
from tests.ingest.test_pipeline_tasks import Here

RENDERED = {"engine": "vllm", "version": 1, "not_rendered": {"tools": 1200}, "unsized_media": 10}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def trace_of(outputs, *, ids=None, meta=None):
    """Prompts of two full blocks of 16 tokens, one a second, all of one conversation unless ids are given."""
    rows = len(outputs)
    ids = np.tile([0, 1], rows) if ids is None else ids
    columns = Columns(np.arange(rows) * 1000.0, np.full(rows, 32), outputs, ids, np.arange(rows + 1) * 2)
    return Trace.from_columns(columns, block_size=16, meta=meta)


def released(trace, profile="standard", path="t.jsonl"):
    """The audit and the sidecar of a released trace."""
    published = kvtrace.privacy.publish(kvtrace.privacy.release(trace, kvtrace.privacy.profile(profile)).trace, path)
    return published.audit, json.loads(Path(f"{path}.meta.json").read_text())


# -- unknown outputs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("round_output", "expected"), [("exact", 100), ("pow2", 128), (64, 128)])
def test_a_release_rounds_the_lengths_that_are_known(round_output, expected):
    profile = kvtrace.privacy.profile("standard", round_output=round_output)
    trace = kvtrace.privacy.release(trace_of([-1, 100, 0, -1]), profile).trace
    assert trace.output_length.tolist() == [-1, expected, 0, -1]


@pytest.mark.parametrize("profile", ["exact", "standard", "strict"])
@pytest.mark.parametrize("path", ["t.jsonl", "t.parquet"])
def test_a_release_with_unknown_lengths_passes_its_audit(profile, path):
    audit, meta = released(trace_of([-1, 100, 20, -1] * 5), profile, path)
    assert audit.passed and kvtrace.privacy.audit(path).level == audit.level
    rounded = 128 + 16 if profile == "strict" else 120
    assert meta["figures"]["known_output_tokens"] == 5 * rounded and meta["figures"]["unknown_outputs"] == 10
    assert "output_tokens" not in meta["figures"]


def test_figures_and_card_say_that_no_length_is_known():
    _, meta = released(trace_of([-1] * 4))
    assert meta["figures"]["unknown_outputs"] == 4
    assert not {"output_tokens", "known_output_tokens"} & meta["figures"].keys()
    assert "| output tokens | output lengths are unknown |" in Path("t.jsonl.card.md").read_text()
    assert not [name for name in released(trace_of([5] * 4))[1]["figures"] if "unknown" in name]


@pytest.mark.parametrize("name", ["output_tokens", "known_output_tokens", "unknown_outputs"])
def test_a_sidecar_with_another_sum_of_outputs_fails(name):
    released(trace_of([-1, 100, 20, -1] * 5))
    path = Path("t.jsonl.meta.json")
    meta = json.loads(path.read_text())
    meta["figures"][name] = 155_552_671
    path.write_text(json.dumps(meta, indent=2) + "\n")
    sidecar = {finding.name: finding for finding in kvtrace.privacy.audit("t.jsonl").findings}["sidecar"]
    assert sidecar.level == "FAIL" and f"figures.{name}: wrong number" in sidecar.sentence


def test_an_unknown_length_is_one_value_to_an_attacker():
    # an observer who knows lengths and the time: twenty rows of unknown length hide each other, one known row does not
    audit, _ = released(trace_of([-1] * 20 + [7]), "exact")
    figures = {name: value for finding in audit.findings for name, value in finding.figure.items()}
    assert figures["alone_by_lengths"] == pytest.approx(1 / 21)
    assert figures["at_greatest_output_length"] == 1


def test_rows_of_unknown_length_do_not_match_rows_without_output():
    writing.write(trace_of([0] * 30), "old.jsonl")
    writing.write(trace_of([-1] * 30, ids=np.arange(60)), "new.jsonl")
    writing.write(trace_of([-1] * 30, ids=np.arange(60)), "same.jsonl")
    matching = {
        old: {f.name: f for f in kvtrace.privacy.audit("new.jsonl", against=old, profile="strict").findings}[
            "earlier_release"
        ]
        for old in ("old.jsonl", "same.jsonl")
    }
    assert matching["old.jsonl"].figure["matching_rows"] == 0
    assert matching["same.jsonl"].figure["matching_rows"] > 0


def test_no_service_time_is_estimated_for_an_unknown_output():
    class PerToken:
        def milliseconds(self, cached, prompt, output):
            return (prompt - cached + output).astype(float)

    trace, measured = trace_of([-1, 8]), np.full(2, np.nan)
    profile, hits = kvtrace.privacy.profile("exact"), np.array([0, 2])
    times = service_times(trace, measured, hits, profile, PerToken(), block_size=16, tail="kept")
    assert np.isnan(times[0]) and times[1] == 8


@pytest.mark.parametrize("path", ["t.jsonl", "t.dataset"])
@pytest.mark.parametrize("outputs", [[-1, 100, 20, -1] * 5, [-1] * 9])
def test_a_release_in_tasks_has_the_same_figures(path, outputs):
    writing.write(trace_of(outputs), "in.dataset")
    whole, meta = released(trace_of(outputs), "strict", "whole.jsonl")
    parts, profile = open_dataset("in.dataset"), kvtrace.privacy.profile("strict")
    with release_dataset(parts, profile, runner=Here(), work="work", partitions=2) as numbered:
        published = kvtrace.privacy.publish(numbered, path)
    assert published.figures == meta["figures"] and published.audit.level == whole.level


# -- unknown prefixes ------------------------------------------------------------------------------------------------


def test_a_release_keeps_unknown_prefixes_and_states_no_hits(capsys):
    Path("lengths.jsonl").write_text(
        "".join(f'{{"timestamp": {row}, "input_length": 40, "output_length": 3}}\n' for row in range(9))
    )
    assert run(["release", "lengths.jsonl", "-o", "t.jsonl", "--quiet"]) == 0
    meta = json.loads(Path("t.jsonl.meta.json").read_text())
    assert meta["prefixes"] == PREFIXES_UNKNOWN and "hits" not in meta["figures"]
    assert kvtrace.privacy.audit("t.jsonl").passed
    assert "| hit rates | unknown: the log does not record shared prefixes |" in Path("t.jsonl.card.md").read_text()
    assert run(["audit", "lengths.jsonl"]) == 3
    message = "kvtrace: lengths.jsonl: no row has hash_ids, so there is no release to audit. To make one: kvtrace"
    assert message in capsys.readouterr().err


def window(number, meta, ids=(0, 1)):
    """A window of a recording with its links."""
    trace, path, none = trace_of([1, 1], meta=meta), f"window-{number}.jsonl", np.empty(0, np.int64)
    writing.write(trace, path)
    write_links(Links("9b", number, 60_000 * number, fingerprint_of(trace), np.array(ids), none, none), path)
    return path


def test_joined_windows_know_only_what_all_of_them_know():
    known, unknown = window(0, {}), window(1, {"prefixes": PREFIXES_UNKNOWN})
    assert kvtrace.privacy.join_windows([known, unknown]).meta["prefixes"] == PREFIXES_UNKNOWN
    assert "prefixes" not in kvtrace.privacy.join_windows([known]).meta


# -- renderings ------------------------------------------------------------------------------------------------------


def test_a_published_sidecar_states_the_rendering():
    audit, meta = released(trace_of([5] * 9, meta={"rendering": {**RENDERED, "by": "us"}}))
    assert meta["rendering"] == RENDERED and audit.passed and kvtrace.privacy.audit("t.jsonl").passed
    line = "* prompts: as vLLM renders them (version 1); not rendered: tools (about 1,200 requests)"
    assert f"{line}; media of unknown size (about 10 items)\n" in Path("t.jsonl.card.md").read_text()
    assert public({"rendering": {"not_rendered": {"tools": 1201, "acme_field": 10, "media": 20}}}) == {
        "rendering": {"not_rendered": {"media": 20}}
    }
    released(trace_of([5] * 9))
    assert "* prompts:" not in Path("t.jsonl.card.md").read_text()


def test_a_sample_names_what_was_not_rendered_and_counts_nothing():
    trace = trace_of([5] * 40, ids=np.arange(80), meta={"rendering": RENDERED})
    sample = kvtrace.privacy.release(
        trace, kvtrace.privacy.profile("standard"), session_share=0.5, rng=np.random.default_rng(3)
    ).trace
    kvtrace.privacy.publish(sample, "t.jsonl")
    path = Path("t.jsonl.meta.json")
    meta = json.loads(path.read_text())
    assert meta["rendering"] == {"engine": "vllm", "version": 1, "not_rendered": {"tools": 0}, "unsized_media": 0}
    assert "not rendered: tools; media of unknown size\n" in Path("t.jsonl.card.md").read_text()
    path.write_text(path.read_text().replace('"tools": 0', '"tools": 1200'))
    volume = {finding.name: finding for finding in kvtrace.privacy.audit("t.jsonl").findings}["volume"]
    assert volume.level == "WARN" and "the sidecar counts the whole trace in rendering" in volume.sentence


def test_windows_of_two_renderings_are_refused():
    before, after = window(0, {}), window(1, {"rendering": RENDERED})
    message = (
        r"were rendered differently \(version 0: rendered before 0.1, vllm, version 1\), so equal prompts have other "
        r"blocks\. Join windows of one rendering\.$"
    )
    with pytest.raises(UsageError, match=message):
        kvtrace.privacy.join_windows([before, after])
    other = window(2, {"rendering": {**RENDERED, "engine": "sglang"}})
    with pytest.raises(UsageError, match="vllm, version 1, sglang, version 1"):
        kvtrace.privacy.join_windows([after, other])


def test_joined_windows_of_one_rendering_add_what_was_not_rendered():
    one = window(0, {"rendering": RENDERED})
    two = window(1, {"rendering": {"engine": "vllm", "version": 1, "not_rendered": {"tools": 90, "media": 10}}})
    assert kvtrace.privacy.join_windows([one, two]).meta["rendering"] == {
        "engine": "vllm", "version": 1, "not_rendered": {"tools": 1300, "media": 10}, "unsized_media": 10,
    }  # fmt: skip


def test_an_earlier_release_of_another_rendering_is_refused():
    writing.write(trace_of([5] * 9), "old.jsonl")
    writing.write(trace_of([5] * 9, meta={"rendering": RENDERED}), "new.jsonl")
    message = (
        r"^old\.jsonl: rendered differently \(version 0: rendered before 0\.1\) than the trace \(vllm, version 1\), so "
        r"--against cannot compare them\. Make both with one version of kvtrace\.$"
    )
    with pytest.raises(UsageError, match=message):
        kvtrace.privacy.audit("new.jsonl", against="old.jsonl")
    assert kvtrace.privacy.audit("new.jsonl", against="new.jsonl").findings


def test_an_index_goes_on_with_windows_of_its_rendering_only(tmp_path):
    with LinkIndex(tmp_path / "index", check="a", start_ns=0) as index:
        index.save()
    with pytest.raises(UsageError, match="rendered by another engine or version, so nothing would link to them"):
        LinkIndex(tmp_path / "index", check="a", start_ns=0, rendering=("vllm", 1))
    with LinkIndex(tmp_path / "index", check="a", start_ns=0) as index:
        assert index.windows == 1
    with LinkIndex(tmp_path / "index", check="b", start_ns=0, rendering=("vllm", 1)) as index:
        assert index.windows == 0  # another key begins again
