"""The data card: what it says is true of its trace, nothing of a row's values is in it, and its own audit passes."""

import json
import os
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import AuditError, KvtraceError, UsageError
from kvtrace.cli import run
from kvtrace.formats.dataset import open_dataset
from kvtrace.formats.sidecar import describe, sidecar_path
from kvtrace.formats.writing import card_path
from kvtrace.privacy.checks import CHECKS, audit
from kvtrace.privacy.data_card import card
from kvtrace.privacy.profiles import PROFILES
from kvtrace.privacy.publishing import publish, publish_chunks, publish_columns
from kvtrace.privacy.releases import release
from kvtrace.privacy.sidecar_forms import public
from kvtrace.trace.building import toy
from kvtrace.trace.columns import rows_of
from tests import unaudited
from tests.conftest import drawn
from tests.strategies import traces

SECTIONS = [
    "Licence and citation", "Fields", "How it was made", "Release profile: standard", "Figures", "Audit",
    "What is protected, and what is not", "How to read it",
]  # fmt: skip


@pytest.fixture
def released(tmp_path):
    """(path, sidecar) of a small release, written without a card."""
    made = {"log": {"reader": "openai (stated)", "time": "seconds (stated)"}, "hash": "SipHash-2-4-128, keyed, chained",
            "tokenizer": {"name": "deepseek-ai/DeepSeek-R1", "sha256": "ab" * 32}}  # fmt: skip
    whole = toy("0 1", "0 1 2", "0 3", "0 4", block_size=16, gap_ms=700.0)
    done = release(whole, PROFILES["standard"])
    meta = public(made | done.meta)
    unaudited.write(done.trace, tmp_path / "day.jsonl", meta=meta)
    return tmp_path / "day.jsonl", describe(done.trace, block_size=16, tail=done.trace.tail, meta=meta)


def test_a_card_has_its_sections_in_order_and_figures_that_are_true(released):
    path, said = released
    trace = kvtrace.read(path)
    text = card(audit(path), trace, said)
    assert text.startswith("# TODO") and re.findall(r"^## (.*)$", text, re.M) == SECTIONS
    assert "| requests | 4 |" in text and f"| distinct blocks | {trace.distinct} |" in text
    hits = kvtrace.trace.count_hits(trace, kvtrace.trace.unlimited_hits(trace))
    assert f"| block hit rate, without eviction | {hits.block_hit_rate:.4f} |" in text
    assert "* tokenizer: deepseek-ai/DeepSeek-R1, SHA-256 abab" in text and "* log: openai" in text
    assert (
        "| `k` | `3` |" in text
        and "| contributors that k counted | inferred |" in text
        and "after each step" not in text
    )


def k_sharing(path, **known):
    (finding,) = (one for one in audit(path, **known).findings if one.name == "k_sharing")
    return finding


def test_an_audit_names_what_the_card_counted_and_what_it_counted_itself(tmp_path):
    trace, users = tmp_path / "day.jsonl", tmp_path / "users"
    users.write_text("a\nb\nc\n")
    done = release(toy("0 1", "0 2", "0 3", block_size=16, gap_ms=1000), PROFILES["standard"], users=np.arange(3))
    kvtrace.privacy.publish(done.trace, trace)
    text = Path(card_path(trace)).read_text()
    own = k_sharing(trace, users=users)
    assert f"| k_sharing | PASS | {own.sentence} |" in text and own.sentence.endswith("fewer than 3 users.")
    for beside in (card_path(trace), sidecar_path(trace)):  # with a card, then with the sidecar alone
        found = k_sharing(trace)
        assert found.level == "WARN" and "The release counted users, as its sidecar states" in found.sentence
        assert "The audit counted inferred conversations instead." in found.sentence
        os.remove(beside)
    found = k_sharing(trace)
    assert found.level == "WARN" and "fewer than 3 inferred conversations. The audit inferred" in found.sentence
    assert "the log has" not in found.sentence and "--users FILE" in found.remedy


def test_a_card_of_stand_ins_is_ours_to_an_audit_that_knows_the_users(tmp_path):
    trace, users = tmp_path / "day.jsonl", tmp_path / "users"
    users.write_text("a\nb\nc\n")
    done = release(toy("0 1", "0 2", "0 3", block_size=16, gap_ms=1000), PROFILES["standard"], users=np.arange(3))
    kvtrace.privacy.publish(done.trace, trace)
    assert run(["audit", str(trace), "--card", card_path(trace), "-q"]) == 0
    assert "The audit counted inferred conversations instead." in Path(card_path(trace)).read_text()
    assert audit(trace, users=users).passed


def test_a_card_says_every_finding(released):
    path, said = released
    found = audit(path).of_trace()
    text = card(found, meta=said)
    for finding in found.findings:
        assert f"| {finding.name} | {finding.level} | {finding.sentence} |" in text
    assert found.verdict in text


def test_figures_come_from_the_trace_or_the_sidecar_alike(released):
    from kvtrace.trace.trace_figures import figures

    path, said = released
    trace, found = kvtrace.read(path), audit(path)
    assert card(found, trace, said) == card(found, figures(trace), said)
    assert card(found, trace, said) == card(found, meta=said | {"figures": figures(trace)})


def test_what_is_protected_is_promised_only_where_the_audit_says_so(released):
    path, said = released
    assert "Protected:" in card(audit(path), meta=said)
    for name in ("strict", "exact"):
        assert "Nothing is protected" in card(audit(path, profile=name), meta=said)


def test_a_card_beside_its_trace_passes_the_audit(released):
    path, said = released
    before = audit(path)
    assert card_path(path) == f"{path}.card.md"
    for text, level in ((card(before, meta=said), "PASS"), (card(before, kvtrace.read(path), said), "FAIL")):
        with open(card_path(path), "w", encoding="utf-8") as file:
            file.write(text)
        assert audit(path).findings[list(CHECKS).index("sidecar")].level == level  # figures that no sidecar states


def test_no_path_gets_into_a_card(released):
    path, said = released
    said["tokenizer"] = {"name": "/home/someone/models/x", "sha256": "cd" * 32}
    text = card(audit(path), meta=said)
    assert "someone" not in text and "SHA-256 cdcd" in text


def test_lengths_without_prefixes_have_no_hit_rates(released):
    path, said = released
    text = card(audit(path), meta=said | {"figures": {"requests": 4, "duration_ms": 10.0}})
    assert "| hit rates | unknown" in text


def test_a_sidecar_that_says_odd_things_breaks_no_card(released):
    path, said = released
    odd = {"figures": 5, "release": [], "tokenizer": "x", "log": None, "kvtrace": 3, "format": None}
    assert "## Audit" in card(audit(path), meta=said | odd) and "## Audit" in card(audit(path))


def test_the_command_writes_a_card(released, capsys):
    path, _ = released
    target = path.parent / "card.md"
    assert run(["audit", str(path), "--card", str(target), "-q"]) == 0
    text = target.read_text(encoding="utf-8")
    version = json.loads((path.parent / "day.jsonl.meta.json").read_text())["kvtrace"]["version"]
    assert f"* kvtrace: {version}" in text and "| requests | 4 |" in text
    assert run(["audit", "-", "--card", str(target)]) == 2 and run(["audit", str(path), "--card", "-"]) == 2
    assert "twice" in capsys.readouterr().err


# -- a trace that comes in chunks ------------------------------------------------------------------------------------


def chunks(trace, size):
    """The rows of a trace, so many at a time."""
    for start in range(0, len(trace), size):
        yield rows_of(trace, start, min(len(trace), start + size))


def files(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@settings(max_examples=drawn(60), deadline=None)
@given(
    traces(min_block_size=2), st.integers(1, 5), st.sampled_from(["standard", "strict", "exact"]), st.booleans(),
    st.integers(0, 3),
    st.sampled_from(["t.jsonl", "t.jsonl.gz", "t.jsonl.zst", "t.parquet"]),
)  # fmt: skip
def test_chunks_give_the_files_that_the_whole_gives(tmp_path_factory, trace, size, name, known, first_id, file):
    done, folder = release(trace, PROFILES[name]), tmp_path_factory.mktemp("f")
    given_too = {
        "meta": done.meta,
        "first_id": first_id,
        "contributors": done.contributors if known else None,
        "extra": True,
    }
    for place in ("whole", "chunks"):
        (folder / place).mkdir()
    whole = publish_columns(done.trace, folder / "whole" / file, **given_too)
    own = {"block_size": done.trace.block_size, "tail": done.trace.tail}
    part = publish_chunks(chunks(done.trace, size), folder / "chunks" / file, **own, **given_too)
    assert files(folder / "whole") == files(folder / "chunks") and part.audit == whole.audit
    assert [os.path.basename(one) for one in part.files] == [file, f"{file}.meta.json", f"{file}.card.md"]


@settings(max_examples=30, deadline=None)
@given(traces(min_block_size=2, unknown_outputs=True), st.integers(1, 5), st.sampled_from(["standard", "strict"]))
def test_chunks_become_a_folder_with_its_card_in_it(tmp_path_factory, trace, size, name):
    done, folder = release(trace, PROFILES[name]), tmp_path_factory.mktemp("f") / "t.dataset"
    own = {
        "block_size": done.trace.block_size,
        "tail": done.trace.tail,
        "meta": done.meta,
        "contributors": done.contributors,
    }
    for _ in range(2):  # what was there is replaced
        done_so = publish_chunks(chunks(done.trace, size), folder, **own)
    assert done_so.files == [str(folder)] and sorted(os.listdir(folder.parent)) == ["t.dataset"]
    assert sorted(os.listdir(folder)) == ["card.md", "manifest.json", "part-00000.parquet"]
    assert open_dataset(folder).trace() == done.trace
    found = audit(folder, contributors=done.contributors)
    assert found.findings[list(CHECKS).index("sidecar")].figure["checked"] == ["the sidecar", "metadata kvtrace"]
    assert found.passed
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (folder / "card.md").read_text() == card(done_so.audit, meta=manifest)
    whole = publish_columns(done.trace, folder.parent / "whole.dataset", meta=done.meta, contributors=done.contributors)
    assert files(whole.files[0]) == files(folder)


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet", "t.dataset", "t.dataset/"])
def test_what_fails_its_audit_is_not_written(tmp_path, name):
    told = {"profile": "standard", "log": {"host": "x"}}
    with pytest.raises(AuditError, match="times: "):
        publish_chunks(chunks(toy("0 1", "0 1"), 1), f"{tmp_path}/{name}", meta=told, block_size=1, tail="kept")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["t.jsonl", "t.dataset"])
def test_chunks_that_end_early_leave_nothing(tmp_path, name):
    def broken():
        yield toy("0 1")
        raise KvtraceError("no more")

    with pytest.raises(KvtraceError, match="no more"):
        publish_chunks(broken(), tmp_path / name, meta={"profile": "exact"}, block_size=1, tail="kept")
    assert os.listdir(tmp_path) == []


def test_chunks_that_go_to_a_pipe_are_audited_before(tmp_path):
    done = release(toy("0 1", "0 1 2", "0 3", block_size=16), PROFILES["standard"])
    own = {"block_size": 16, "tail": done.trace.tail, "meta": done.meta}
    publish_chunks(chunks(done.trace, 2), tmp_path / "t.jsonl", **own)
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit((tmp_path / "pipe").read_bytes)
        told = publish_chunks(chunks(done.trace, 2), tmp_path / "pipe", **own)
    assert read.result() == (tmp_path / "t.jsonl").read_bytes() and told.files == [str(tmp_path / "pipe")]


def test_a_folder_has_a_card_with_the_figures_of_its_manifest(tmp_path, capsys):
    done = release(toy("0 1", "0 1 2", "0 3", block_size=16), PROFILES["standard"])
    publish(done.trace, tmp_path / "t.dataset")
    assert run(["audit", str(tmp_path / "t.dataset"), "--card", str(tmp_path / "card.md"), "-q"]) == 0
    text = (tmp_path / "card.md").read_text()
    assert "| requests | 3 |" in text and f"| distinct blocks | {done.trace.distinct} |" in text
    assert "open_dataset" in text and "manifest.json" in text


# -- publish and write -----------------------------------------------------------------------------------------------


def test_python_publishes_what_the_commands_publish(tmp_path):
    log, key = Path("examples/raw_log.jsonl").resolve(), tmp_path / "key"
    command = ["anonymize", str(log), "--block-size", "16", "--key-file", str(key), "-q"]
    assert run([*command, "-o", str(tmp_path / "command.jsonl")]) == 0
    trace = kvtrace.ingest.anonymize(log, block_size=16, key=kvtrace.ingest.load_key(key))
    assert kvtrace.privacy.publish(trace, tmp_path / "python.jsonl").audit.passed
    command = ["release", str(tmp_path / "command.jsonl"), "--profile", "strict", "-q"]
    assert run([*command, "-o", str(tmp_path / "c2.jsonl")]) == 0
    again = kvtrace.read(tmp_path / "command.jsonl")
    kvtrace.privacy.publish(
        kvtrace.privacy.release(again, kvtrace.privacy.profile("strict")).trace, tmp_path / "p2.jsonl"
    )
    for one, other in (("command.jsonl", "python.jsonl"), ("c2.jsonl", "p2.jsonl")):
        for suffix in ("", ".meta.json", ".card.md"):
            assert (tmp_path / f"{one}{suffix}").read_bytes() == (tmp_path / f"{other}{suffix}").read_bytes()


def test_the_audit_of_publish_counts_the_contributors_of_the_release(tmp_path):
    trace = toy("0 1", "0 1", "0 1", "2", block_size=16)
    done = release(trace, PROFILES["standard"], users=np.array([0, 0, 1, 2]))
    published = kvtrace.privacy.publish(done.trace, tmp_path / "t.jsonl")
    assert [done.trace.account.contributors.kind, published.audit.passed] == ["users", True]
    assert "contributor" not in (tmp_path / "t.jsonl").read_text()


def test_a_pickled_release_has_no_contributors():
    done = release(toy("0", "0", block_size=16), PROFILES["standard"], users=np.array([5, 6]))
    again = pickle.loads(pickle.dumps(done.trace))
    assert again == done.trace and done.trace.account is not None and again.account is None


def test_a_trace_without_a_profile_is_not_published(tmp_path):
    with pytest.raises(UsageError, match="declares no release profile. Release it first"):
        kvtrace.privacy.publish(toy("0", block_size=16), tmp_path / "t.jsonl")


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet", "t.dataset"])
def test_write_audits_nothing_and_so_declares_nothing(tmp_path, name):
    done = release(toy("0 1", "0 2", block_size=16), PROFILES["standard"])
    with pytest.warns(UserWarning, match="declares a release profile, but this file was not audited"):
        kvtrace.write(done.trace, tmp_path / name)
    assert not {"profile", "release"} & kvtrace.read(tmp_path / name).meta.keys()


def test_a_conversion_declares_nothing_and_says_so(tmp_path, capsys):
    done = release(toy("0 1", "0 2", block_size=16), PROFILES["standard"])
    kvtrace.privacy.publish(done.trace, tmp_path / "t.jsonl")
    for output in ("t.parquet", "t.dataset"):
        assert run(["convert", str(tmp_path / "t.jsonl"), "-o", str(tmp_path / output)]) == 0
        assert "lost        the release profile: a conversion is not audited" in capsys.readouterr().err
        assert not {"profile", "release"} & kvtrace.read(tmp_path / output).meta.keys()


def test_no_value_of_a_sidecar_is_html_or_a_link_in_the_card(released):
    path, meta = released
    hostile = "<img src=x onerror=a()> [here](http://example.org) `x` | y"
    meta = meta | {"hash": hostile, "format": hostile, "log": {"reader": hostile, "time": hostile}}
    text = re.sub("`[^`\n]*`", "", card(audit(path), meta=meta).replace("\\`", "'"))  # code shows HTML as it is
    assert "<img" not in text and "[here](" not in text.replace("\\[here\\](", "")
    assert "&lt;img src=x onerror=a()&gt; \\[here\\](http://example.org) 'x' / y" in text
