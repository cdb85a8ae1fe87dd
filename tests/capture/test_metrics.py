"""Each Prometheus metric has the value of the snapshot or of the counts, and its readers accept the exposition."""

import subprocess
from shutil import which

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics_out
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

import kvtrace
from kvtrace.capture.metrics import METRICS, Reading, registry_of
from tests.capture.snapshots import COUNTS, KV_BYTES, snapshot

NAMES = {metric.name for metric in METRICS}


def registry(values=None, counts=None):
    return registry_of(lambda: Reading(values, counts))


def ours(families):
    return {family.name: family for family in families if family.name.startswith("kvtrace_")}


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("kvtrace_build_info", {"version": kvtrace.__version__}, 1),
        ("kvtrace_watched_requests_total", {}, 400),
        ("kvtrace_watched_prompt_tokens_total", {}, 128_000),
        ("kvtrace_watched_blocks_total", {}, 8000),
        ("kvtrace_possible_hit_ratio", {"span": "window", "per": "token"}, 0.55),
        ("kvtrace_possible_hit_ratio", {"span": "window", "per": "block"}, 0.54),
        ("kvtrace_possible_hit_ratio", {"span": "window", "per": "request"}, 0.57),
        ("kvtrace_possible_hit_ratio", {"span": "decayed", "per": "token"}, 0.6),
        ("kvtrace_capacity_hit_ratio", {"span": "window", "per": "token", "of": "capacity", "factor": "0.5"}, 0.25),
        ("kvtrace_capacity_hit_ratio", {"span": "window", "per": "token", "of": "capacity", "factor": "4"}, 0.5),
        ("kvtrace_capacity_hit_ratio", {"span": "decayed", "per": "block", "of": "capacity", "factor": "1"}, 0.39),
        ("kvtrace_delivered_hit_ratio", {"span": "window"}, 0.25),
        ("kvtrace_deliverable_hit_ratio", {"span": "window"}, 0.625),
        ("kvtrace_delivered_tokens_total", {}, 16_000),
        ("kvtrace_delivered_prompt_tokens_total", {}, 64_000),
        ("kvtrace_cause_tokens_total", {"of": "delivered", "cause": "evicted"}, 24_000),
        ("kvtrace_capacity_blocks", {}, 1000),
        ("kvtrace_capacity_bytes", {}, 1000 * 16 * KV_BYTES),
        ("kvtrace_needed_capacity_blocks", {"span": "window", "share": "0.9"}, 3000),
        ("kvtrace_needed_capacity_bytes", {"span": "decayed", "share": "0.9"}, 3000 * 16 * KV_BYTES),
        ("kvtrace_working_set_blocks", {}, 5000),
        ("kvtrace_working_set_bytes", {}, 5000 * 16 * KV_BYTES),
        ("kvtrace_engine_blocks_total", {"event": "stored_again"}, 20),
        ("kvtrace_window_seconds", {}, 3600),
        ("kvtrace_half_life_seconds", {}, 600),
        ("kvtrace_block_size_tokens", {}, 16),
        ("kvtrace_sample_ratio", {}, 0.01),
        ("kvtrace_exact_up_to_blocks", {}, 90),
        ("kvtrace_estimator_memory_bytes", {}, 1 << 25),
        ("kvtrace_received_requests_total", {}, 420),
        ("kvtrace_dropped_requests_total", {"reason": "queue_full"}, 5),
        ("kvtrace_dropped_requests_total", {"reason": "proxy_memory"}, 3),
        ("kvtrace_refused_requests_total", {}, 21),
        ("kvtrace_proxy_requests_total", {}, 90),
        ("kvtrace_proxy_outcomes_total", {"outcome": "recorded"}, 60),
        ("kvtrace_proxy_outcomes_total", {"outcome": "dropped"}, 4),
        ("kvtrace_proxy_outcomes_total", {"outcome": "refused"}, 9),
        ("kvtrace_proxy_outcomes_total", {"outcome": "failed"}, 11),
        ("kvtrace_proxy_outcomes_total", {"outcome": "client_left"}, 13),
        ("kvtrace_digested_requests_total", {}, 400),
        ("kvtrace_digested_prompt_tokens_total", {}, 128_000),
        ("kvtrace_rejected_requests_total", {"of": "row"}, 5),
        ("kvtrace_rejected_requests_total", {"of": "payload"}, 2),
        ("kvtrace_digester_restarts_total", {}, 6),
        ("kvtrace_left_out_requests_total", {}, 7),
        ("kvtrace_lost_requests_total", {}, 3),
        ("kvtrace_queue_payloads", {}, 4),
        ("kvtrace_queue_bytes", {}, 9000),
        ("kvtrace_queue_limit_bytes", {}, 1 << 28),
        ("kvtrace_sealed_windows_total", {}, 11),
        ("kvtrace_failed_windows_total", {}, 1),
        ("kvtrace_last_seal_timestamp_seconds", {}, 1.7e9),
        ("kvtrace_failing", {"part": "sealer"}, 1),
        ("kvtrace_failures_total", {"part": "sealer"}, 2),
    ],
)
def test_a_metric_has_the_value_of_the_snapshot_or_of_the_counts(name, labels, value):
    assert registry(snapshot(), COUNTS).get_sample_value(name, labels) == pytest.approx(value)


def test_every_metric_of_the_table_is_in_the_exposition_as_its_row_says():
    families = ours(text_string_to_metric_families(generate_latest(registry(snapshot(), COUNTS)).decode()))
    assert set(families) == NAMES
    for metric in METRICS:
        family = families[metric.name]
        assert (family.type, family.documentation) == (metric.kind, metric.meaning)
        assert {sample.name for sample in family.samples} == {metric.sample_name}
        assert {tuple(sorted(sample.labels)) for sample in family.samples} == {tuple(sorted(metric.labels))}


def test_openmetrics_has_the_same_metrics():
    text = openmetrics_out.generate_latest(registry(snapshot(), COUNTS)).decode()
    assert set(ours(openmetrics.text_string_to_metric_families(text))) == NAMES


def test_labels_have_fixed_words_only():
    families = ours(text_string_to_metric_families(generate_latest(registry(snapshot(), COUNTS)).decode()))
    values = {}
    for family in families.values():
        for sample in family.samples:
            for label, value in sample.labels.items():
                values.setdefault(label, set()).add(value)
    assert values == {
        "version": {kvtrace.__version__}, "span": {"window", "decayed"}, "per": {"token", "block", "request"},
        "of": {"capacity", "delivered", "row", "payload"}, "factor": {"0.5", "1", "2", "4"}, "share": {"0.9"},
        "cause": {"hit", "evicted", "first_use"}, "event": {"first_stored", "stored_again", "removed"},
        "reason": {"queue_full", "proxy_memory"}, "part": {"feeder", "sealer"},
        "outcome": {"recorded", "dropped", "refused", "failed", "client_left", "errors", "other"},
    }  # fmt: skip


def test_what_is_not_known_has_no_sample():
    one = registry(
        snapshot(model=False, stores=False, capacity=False, delivered=False), COUNTS | {"last_sealed_s": None}
    )
    families = ours(one.collect())
    absent = {
        "kvtrace_capacity_blocks", "kvtrace_capacity_bytes", "kvtrace_needed_capacity_bytes",
        "kvtrace_working_set_bytes",
        "kvtrace_delivered_hit_ratio", "kvtrace_deliverable_hit_ratio", "kvtrace_delivered_tokens",
        "kvtrace_delivered_prompt_tokens", "kvtrace_cause_tokens", "kvtrace_engine_blocks",
        "kvtrace_last_seal_timestamp_seconds",
    }  # fmt: skip
    assert not absent & families.keys()
    assert {sample.labels["of"] for sample in families["kvtrace_capacity_hit_ratio"].samples} == {"working_set"}


def test_before_the_first_request_there_are_counts_and_no_ratios():
    assert set(ours(registry().collect())) == {"kvtrace_build_info"}
    names = set(ours(registry(snapshot(known=False, delivered=False)).collect()))
    assert not {name for name in names if name.endswith("hit_ratio")} and "kvtrace_watched_requests" in names


def test_a_counter_never_falls_when_an_estimate_is_corrected_until_the_gauge_starts_again():
    values = snapshot()
    one = registry_of(lambda: Reading(values))
    label = {"of": "delivered", "cause": "evicted"}

    def read(tokens):
        values["since_start"]["causes"]["evicted"] = tokens
        return one.get_sample_value("kvtrace_cause_tokens_total", label)

    assert [read(tokens) for tokens in (100.0, 90.0, 120.0)] == [100.0, 100.0, 120.0]
    values["started_s"] = 50.0
    assert read(10.0) == 10.0


def test_a_reading_is_taken_at_each_scrape():
    counts = dict(COUNTS)
    one = registry_of(lambda: Reading(counts=counts))
    counts["digested"] = 777
    assert one.get_sample_value("kvtrace_digested_requests_total") == 777


@pytest.mark.skipif(which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_exposition():
    text = generate_latest(registry(snapshot(), COUNTS))
    done = subprocess.run(["promtool", "check", "metrics", "--extended"], input=text, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    bad = text.replace(b"kvtrace_queue_bytes", b"kvtrace_queue_kilobytes")
    assert subprocess.run(["promtool", "check", "metrics"], input=bad, capture_output=True).returncode != 0
