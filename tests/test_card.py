"""The data card: what it says is true of its trace, nothing of a row's values is in it, and its own audit passes."""

import json
import re

import pytest

import kvtrace
from kvtrace.cli import run
from kvtrace.formats.sidecar import describe
from kvtrace.privacy import PROFILES, release
from kvtrace.privacy.audit import audit
from kvtrace.privacy.card import card, card_path
from kvtrace.trace import toy

SECTIONS = [
    "Licence and citation", "Fields", "How it was made", "Release profile: standard", "Figures", "Audit",
    "What is protected, and what is not", "How to read it",
]  # fmt: skip


@pytest.fixture
def released(tmp_path):
    """(path, sidecar) of a small release, written without a card."""
    made = {"log": {"reader": "openai", "time": "seconds"}, "hash": "SipHash-2-4-128, keyed, chained",
            "tokenizer": {"name": "deepseek-ai/DeepSeek-R1", "sha256": "ab" * 32}}  # fmt: skip
    whole = toy("0 1", "0 1 2", "0 3", "0 4", block_size=16, gap_ms=700.0)
    done = release(whole, PROFILES["standard"])
    meta = made | done.meta
    kvtrace.write(done.trace, tmp_path / "day.jsonl", meta=meta)
    return tmp_path / "day.jsonl", describe(done.trace, block_size=16, tail=done.trace.tail, meta=meta)


def test_a_card_has_its_sections_in_order_and_figures_that_are_true(released):
    path, said = released
    trace = kvtrace.read(path)
    text = card(audit(path), trace, said)
    assert text.startswith("# TODO") and re.findall(r"^## (.*)$", text, re.M) == SECTIONS
    assert "| requests | 4 |" in text and f"| distinct blocks | {trace.distinct} |" in text
    hits = kvtrace.count_hits(trace, kvtrace.unlimited_hits(trace))
    assert f"| block hit rate, nothing ever evicted | {hits.block_hit_rate:.4f} |" in text
    assert "* tokenizer: deepseek-ai/DeepSeek-R1, SHA-256 abab" in text and "* log: openai" in text
    assert "| `k` | `3` |" in text and "| k counted | inferred |" in text and "k-sharing |" in text


def test_a_card_says_every_finding(released):
    path, said = released
    found = audit(path)
    text = card(found, meta=said)
    for finding in found.findings:
        assert f"| {finding.number} | {finding.name} | {finding.level} | {finding.sentence} |" in text
    assert found.verdict in text


def test_figures_come_from_the_trace_or_the_sidecar_alike(released):
    from kvtrace.figures import figures

    path, said = released
    trace, found = kvtrace.read(path), audit(path)
    assert card(found, trace, said) == card(found, figures(trace), said)
    assert card(found, trace, said) == card(found, meta=said | {"figures": figures(trace)})


def test_what_is_protected_is_promised_only_where_the_audit_says_so(released):
    path, said = released
    assert "Protected:" in card(audit(path), meta=said)
    for name in ("strict", "exact"):
        assert "Nothing is promised" in card(audit(path, profile=name), meta=said)


def test_a_card_beside_its_trace_passes_the_audit(released):
    path, said = released
    before = audit(path)
    assert card_path(path) == f"{path}.card.md"
    with open(card_path(path), "w", encoding="utf-8") as file:
        file.write(card(before, kvtrace.read(path), said))
    after = audit(path)
    assert "the card" in after.findings[12].figure["looked_at"] and after.findings[12].level == "PASS"


def test_no_path_gets_into_a_card(released):
    path, said = released
    said["tokenizer"] = {"name": "/home/someone/models/x", "sha256": "cd" * 32}
    text = card(audit(path), meta=said)
    assert "someone" not in text and "SHA-256 cdcd" in text


def test_lengths_without_prefixes_have_no_hit_rates(released):
    path, said = released
    text = card(audit(path), meta=said | {"figures": {"requests": 4, "duration_ms": 10.0}})
    assert "| hit rates | not known" in text


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
