"""Isolation domains of a log: tenant, adapter, salt and model become a column of numbers, and nothing else."""

import random

import numpy as np
import pytest

import kvtrace
from kvtrace._base.errors import UsageError
from kvtrace.ingest.keys import Key
from tests.conftest import drawn
from tests.ingest.test_logs_gateways import finished, read
from tests.ingest.test_pipeline import anonymized, token_log, write_log
from tests.ingest.test_pipeline_tasks import Here, in_tasks

FIELDS = ("tenant", "adapter", "lora_path", "cache_salt", "extra_key", "model")


@pytest.mark.parametrize("field", FIELDS)
def test_each_field_makes_domains_and_equal_text_has_equal_ids(field, tmp_path):
    log = token_log(tmp_path / "log.jsonl", [[1, 2]] * 4, times=[3, 1, 2, 4], **{field: ["a", "b", None, "a"]})
    trace = anonymized(log)
    assert trace.hash_ids.tolist() == [0, 0, 0, 0]
    assert trace.domain.tolist() == [0, -1, 1, 1]  # in order of time: b, none, a, a


def test_requests_are_in_one_domain_if_all_fields_are_equal(tmp_path):
    log = token_log(tmp_path / "log.jsonl", [[1]] * 4, tenant=["x", "x", "y", "x"], adapter=["p", "q", "p", "p"])
    assert anonymized(log).domain.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize("models", [[None] * 3, ["a"] * 3])
def test_a_log_of_one_domain_has_no_column(models, tmp_path):
    log = token_log(tmp_path / "log.jsonl", [[1, 2]] * 3, model=models)
    assert anonymized(log).domain is None


def test_a_mapped_field_is_the_domain_alone_and_the_model_stays_in_the_ids(tmp_path):
    rows = [{"timestamp": t, "input": [1, 2], "output": 1, "model": model, "meta": {"team": team}}
            for t, (model, team) in enumerate((("a", 1), ("a", 2), ("b", 1), ("a", 1)))]  # fmt: skip
    log = write_log(tmp_path / "log.jsonl", rows)
    trace = anonymized(log, field_map={"domain": "meta.team"})
    assert (trace.domain.tolist(), trace.hash_ids.tolist()) == ([0, 1, 0, 0], [0, 0, 1, 0])
    apart = anonymized(log, field_map={"domain": "meta.team"}, keep_domains=False)
    assert (apart.domain, apart.hash_ids.tolist()) == (None, [0, 1, 2, 0])


def random_log(path, seed, **kinds):
    """A log whose prompts share beginnings, with random values of some fields."""
    draw = random.Random(seed)
    prompts = [[7] * draw.choice([2, 4]) + [draw.randrange(3) for _ in range(draw.randrange(5))] for _ in range(60)]
    columns = {name: [draw.choice(values) for _ in range(60)] for name, values in kinds.items()}
    return token_log(path, prompts, times=[draw.randrange(40) for _ in range(60)], **columns)


@pytest.mark.parametrize("seed", range(drawn(6)))
def test_without_the_column_ids_are_those_of_the_split_view(seed, tmp_path):
    log = random_log(tmp_path / "log.jsonl", seed, model=["a", "b"], adapter=[None, "p"], cache_salt=[None, "x", "y"])
    kept = anonymized(log, outputs=seed % 2 == 1)
    assert kept.domain.max() > 5
    assert np.array_equal(kvtrace.trace.in_domains(kept).hash_ids, anonymized(log, keep_domains=False).hash_ids)


@pytest.mark.parametrize("profile", ["standard", "strict"])
def test_a_release_has_no_domains_unless_it_is_asked_for(profile, tmp_path):
    log = random_log(tmp_path / "log.jsonl", 1, tenant=["x", "y"], account=list("abcdef"))
    assert anonymized(log, profile=profile).domain is None


def test_standard_keeps_domains_on_request_and_strict_refuses(tmp_path):
    log = random_log(tmp_path / "log.jsonl", 1, cache_salt=["x", "y"], user=list("abcdefgh"))
    trace = anonymized(log, profile="standard", keep_domains=True)
    assert trace.domain[0] == 0 and set(trace.domain.tolist()) == {0, 1}
    with pytest.raises(UsageError, match="--keep-domains links requests, but strict drops all links"):
        anonymized(log, profile="strict", keep_domains=True)


def test_isolated_tenants_share_no_id_even_with_the_column(tmp_path):
    log = token_log(tmp_path / "log.jsonl", [[1, 2]] * 3, tenant=["x", "y", "x"])
    trace = anonymized(log, isolate_tenants=True)
    assert (trace.hash_ids.tolist(), trace.domain.tolist()) == ([0, 1, 0], [0, 1, 0])


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("profile", ["exact", "standard"])
def test_tasks_number_domains_as_one_process_does(parts, profile, tmp_path, monkeypatch):
    monkeypatch.setattr("kvtrace.ingest.logs.sources.PIECE_BYTES", 400)
    log = random_log(tmp_path / "log.jsonl", 2, tenant=["x", "y", "z", None], user=list("abcdefgh"), model=["m", "n"])
    options = {"key": Key(bytes(16)), "tokenizer": None, "block_size": 2, "profile": profile, "keep_domains": True}
    columns, _, _ = in_tasks(log, tmp_path, Here(), partitions=parts, **options)
    one = kvtrace.ingest.anonymize(log, **options)
    assert columns["domain"] == one.domain.tolist()
    assert columns["hash_ids"] == one.hash_ids.tolist()


def test_tasks_write_no_column_for_one_domain(tmp_path):
    log = random_log(tmp_path / "log.jsonl", 2, model=["m"])
    options = {"key": Key(bytes(16)), "tokenizer": None, "block_size": 2, "profile": "exact"}
    assert in_tasks(log, tmp_path, Here(), partitions=2, **options)[0]["domain"] is None


def test_salts_of_sglang_and_of_a_plain_row_are_read_alike():
    assert read(finished({"cache_salt": "a"}), "sglang").salts == [b'{"cache_salt":"a"}']
    row = {"timestamp": 0, "input": [1], "output": 1, "cache_salt": "a"}
    assert read(row, "block-hash").salts == [b'{"cache_salt":"a"}']
