"""Each variant has its file, row, twin, vector and line in the docs; a failure says what to write, and where."""

import re
from dataclasses import replace
from typing import get_args

import pytest

from kvtrace.cache.engines import ENGINES, EngineName
from kvtrace.cache.policies import POLICIES, PolicyName
from kvtrace.privacy.profiles import PROFILES
from kvtrace.privacy.release_options import ProfileName
from kvtrace.serving.routers import ROUTERS, RouterName
from kvtrace.trace.columns import BLOCK_RULES, TAILS, BlockRule, Tail
from tests.house.tables import TABLES, Repository, missing, module


def test_no_row_lacks_anything():
    assert missing(Repository()) == []


@pytest.mark.parametrize(("name", "literal", "table"), [
    ("EngineName", EngineName, ENGINES), ("PolicyName", PolicyName, POLICIES), ("RouterName", RouterName, ROUTERS),
    ("ProfileName", ProfileName, PROFILES), ("Tail", Tail, TAILS), ("BlockRule", BlockRule, BLOCK_RULES),
])  # fmt: skip
def test_a_literal_has_the_names_of_its_table(name, literal, table):
    names = set(get_args(literal))
    assert names == set(table), f"add {set(table) - names} to {name}, and drop {names - set(table)}"


def test_a_missing_file_is_named():
    for table in TABLES:
        row, file = first(table)
        (sentence, *_) = replace(table, twin=nothing).missing(Repository(hidden=[f"{table.folder}/{file}.py"]))
        assert sentence == f"{table.kind} `{row}` has no file: write {table.folder}/{file}.py."


def test_a_missing_row_is_named():
    for table in TABLES:
        _, file = first(table)
        rows = {name: other for name, other in table.rows().items() if other != file}
        path, _, name = table.name.partition(":")
        sentence = f"{table.folder}/{file}.py has no row in {name}: add one in {path}."
        assert [*replace(table, rows=lambda rows=rows: rows).missing(Repository())] == [sentence]


def test_a_missing_line_in_the_docs_is_named():
    for table in TABLES:
        row, _ = first(table)
        lines = "\n".join(map(Repository().read, table.pages)).split("\n")
        heading = next(line for line in lines if re.search(table.line(row), line))
        sentences = [*table.missing(Repository(without={page: heading for page in table.pages}))]
        assert f"{table.kind} `{row}` has no line in {' or '.join(table.pages)}: add one to its table." in sentences


@pytest.mark.parametrize(
    ("kind", "path", "sentence"),
    [
        (
            "policy", "tests/reference/policies/sieve.py",
            "policy `sieve` has no twin: write the class Sieve in plain Python in tests/reference/policies/sieve.py.",
        ),
        (
            "engine", "tests/reference/radix.py",
            "engine `sglang` has no twin: write its cache in plain Python in tests/reference/radix.py.",
        ),
        (
            "engine", "tests/vectors/engine_vllm.json",
            "engine `vllm` has no vectors of the engine itself: write tests/vectors/engine_vllm.json with "
            "tests/clients/vllm_cache.py.",
        ),
        (
            "log reader", "tests/data/logs/dynamo.jsonl",
            "log reader `dynamo` has no sample log: write tests/data/logs/dynamo.jsonl (or .csv).",
        ),
    ],
)  # fmt: skip
def test_a_missing_twin_or_sample_is_named(kind, path, sentence):
    assert [*of(kind).missing(Repository(hidden=[path]))] == [sentence]


def test_a_policy_that_is_not_compiled_is_named():
    header = "src/kvtrace/cache/policies/classic.pxd"
    assert [*of("policy").missing(Repository(without={header: "cdef class Sieve("}))] == [
        f"policy `sieve` is not compiled: declare its class Sieve in {header}."
    ]


@pytest.mark.parametrize(
    ("kind", "vectors"), [("policy", "policies"), ("trace format", "formats"), ("client target", "clients")]
)
def test_a_missing_vector_is_named(kind, vectors, monkeypatch):
    table, (row, _) = of(kind), first(of(kind))
    empty = {"policies": '{"cases": []}', "formats": '{"smallest": {}}', "clients": "{}"}[vectors]
    path = f"tests/vectors/{vectors}.json"
    read = Repository.read
    monkeypatch.setattr(Repository, "read", lambda self, name: empty if name == path else read(self, name))
    assert f"{kind} `{row}` has no case in {path}: run `make vectors`." in [*table.missing(Repository())]


def test_a_policy_without_a_memory_class_is_named(monkeypatch):
    policies = module("cache.policies").POLICIES
    monkeypatch.setitem(policies, "lru", replace(policies["lru"], block_bytes=None))
    assert [*of("policy").missing(Repository())] == [
        "policy `lru` has no memory class: state block_bytes (bytes a block, or HEAPS) in its row of POLICIES."
    ]


def test_an_audit_check_without_a_fault_is_named():
    table = of("audit check")
    row, _ = first(table)
    without = Repository(without={"tests/privacy/test_audit.py": '"'})
    assert f"audit check `{row}` has no fault in tests/privacy/test_audit.py: add one to FAULTS." in [
        *table.missing(without)
    ]


def of(kind):
    return next(table for table in TABLES if table.kind == kind)


def first(table):
    """A row of the table, and its file."""
    return next(iter(table.rows().items()))


def nothing(repository, row, file):
    return iter(())
