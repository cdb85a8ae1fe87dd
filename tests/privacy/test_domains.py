"""Releases of traces with isolation domains: the column is left out unless it is asked for, and then it is named."""

import json

import numpy as np
import pytest

import kvtrace
from kvtrace._base.errors import UsageError
from kvtrace.privacy.profiles import PROFILES
from kvtrace.privacy.releases import release
from kvtrace.trace.building import toy
from kvtrace.trace.columns import fields_of
from kvtrace.trace.domains import in_domains
from kvtrace.trace.trace import Trace

PROMPTS, DOMAINS, USERS = ("0 1", "0 1", "0 1", "0 2"), [0, 1, 0, 1], np.array([0, 1, 2, 3])


def trace_with_domains():
    whole = toy(*PROMPTS, block_size=16, gap_ms=1000)
    return Trace(**fields_of(whole) | {"domain": np.array(DOMAINS)}, block_size=16)


def test_an_exact_release_keeps_the_column():
    trace = trace_with_domains()
    assert release(trace, PROFILES["exact"]).trace == trace


@pytest.mark.parametrize("name", ["standard", "strict"])
def test_other_releases_leave_it_out_and_keep_the_blocks_of_domains_apart(name):
    trace = trace_with_domains()
    done, split = (release(one, PROFILES[name], users=USERS).trace for one in (trace, in_domains(trace)))
    assert done.domain is None and done == split


def test_with_the_column_k_counts_the_contributors_of_equal_text():
    done = release(trace_with_domains(), PROFILES["standard"], users=USERS, keep_domains=True).trace
    assert done.domain.tolist() == DOMAINS
    assert done.hash_ids.tolist() == [0, 1, 0, 1, 0, 1, 0, 2]  # three users share 0 1, in two domains
    apart = release(trace_with_domains(), PROFILES["standard"], users=USERS).trace
    assert apart.hash_ids.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]  # two users a domain: less than k


def test_strict_refuses_the_column():
    with pytest.raises(UsageError, match="strict drops all links"):
        release(trace_with_domains(), PROFILES["strict"], keep_domains=True)


def test_isolated_users_share_no_block_with_the_column_either():
    done = release(trace_with_domains(), PROFILES["exact"], users=USERS, isolate=True).trace
    assert len(set(done.hash_ids.tolist())) == len(done.hash_ids) and done.domain.tolist() == DOMAINS


def test_a_sample_numbers_its_domains_anew():
    trace = Trace(**fields_of(trace_with_domains()) | {"session": np.arange(4)}, block_size=16)
    done = release(trace, PROFILES["exact"], session_share=0.5, rng=np.random.default_rng(4)).trace
    assert 0 < len(done) < 4 and done.domain[0] == 0


def published(folder, name="out.jsonl", **options):
    done = release(trace_with_domains(), PROFILES["standard"], users=USERS, **options)
    kvtrace.privacy.publish(done.trace, folder / name)
    return folder / name


def finding(path, name):
    return next(one for one in kvtrace.privacy.audit(path).findings if one.name == name)


def test_audit_and_card_say_that_rows_name_their_tenant(tmp_path):
    path = published(tmp_path, keep_domains=True)
    links = finding(path, "session_links")
    assert (links.level, links.figure["domains"]) == ("WARN", 2) and "all requests of a tenant" in links.sentence
    assert any(
        "one tenant, adapter, salt or model" in one for one in finding(path, "not_protected").figure["not_protected"]
    )
    card = (tmp_path / "out.jsonl.card.md").read_text()
    assert "| `domain` | number | isolation domain" in card and "k does not hide a tenant" in card


def test_without_the_column_nothing_speaks_of_domains(tmp_path):
    path = published(tmp_path)
    assert "domain" not in path.read_text() + (tmp_path / "out.jsonl.card.md").read_text()
    assert "domains" not in finding(path, "session_links").figure


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
@pytest.mark.parametrize(("numbers", "check"), [([1, 0, 1, 0], "canonical"), ([0, 7, 0, 7], "fields"),
                                                (["acme", 0, 0, 0], "fields")])  # fmt: skip
def test_the_audit_fails_numbers_that_can_hide_something(name, numbers, check, tmp_path):
    path = published(tmp_path, name, keep_domains=True)
    if name == "out.jsonl":
        lines = path.read_text().splitlines()
        rows = [json.loads(line) | {"domain": value} for line, value in zip(lines, numbers, strict=True)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif "acme" in numbers:
        pytest.skip("the column of a Parquet file has numbers only")
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        pq.write_table(table.set_column(table.column_names.index("domain"), "domain", pa.array(numbers)), path)
    assert finding(path, check).level == "FAIL"


def test_an_audit_of_strict_fails_a_column_of_domains(tmp_path):
    path = published(tmp_path, keep_domains=True)
    meta = json.loads((tmp_path / "out.jsonl.meta.json").read_text())
    settings = meta["release"]["settings"] | {"drop_sessions": True}
    (tmp_path / "out.jsonl.meta.json").write_text(
        json.dumps(meta | {"release": meta["release"] | {"settings": settings}})
    )
    links = finding(path, "session_links")
    assert links.level == "FAIL" and "drops all links" in links.sentence


def test_a_data_set_is_released_alike(tmp_path):
    from kvtrace.privacy.numbering.run import LocalRunner

    trace = trace_with_domains()
    kvtrace.write(trace, tmp_path / "day.dataset")
    for keep in (None, True):
        with kvtrace.privacy.release_dataset(
            kvtrace.formats.open_dataset(tmp_path / "day.dataset"), PROFILES["standard"], runner=LocalRunner(1),
            work=tmp_path / "work", users=USERS, keep_domains=keep,
        ) as made:  # fmt: skip
            (columns,) = made.columns()
        one = release(trace, PROFILES["standard"], users=USERS, keep_domains=keep).trace
        assert columns.hash_ids.tolist() == one.hash_ids.tolist()
        assert (columns.domain is None) == (one.domain is None)
