"""The JSON schemas of docs/reference describe what the commands write, and nothing else."""

import doctest
import json
from contextlib import suppress
from functools import cache

import jsonschema
import pytest
from click.testing import CliRunner

from kvtrace import Trace, read, write
from kvtrace.cli import commands
from kvtrace.formats.sidecar import OWN
from kvtrace.trace.columns import replace_columns
from tests.docs import ROOT
from tests.serving.quick_fits import quick_fits
from tools.docs_site import result_keys, schemas

LOG, MODEL = ROOT / "examples/raw_log.jsonl", ROOT / "tests/data/models/llama-3.1-8b.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with traces: `trace.jsonl`, with hashes of outputs, with cached tokens, and of one request."""
    folder = tmp_path_factory.mktemp("schemas")
    kvtrace(folder, f"anonymize {LOG} -o trace.jsonl --block-size 16 --quiet")
    kvtrace(folder, f"anonymize {LOG} -o outputs.jsonl --block-size 16 --outputs --quiet")
    kvtrace(folder, "convert trace.jsonl -o one.jsonl --limit 1 --quiet")
    rules = "Answer in one sentence, and name the source of each figure that you give. " * 20
    dated = [{"timestamp": n, "input": f"Today is 2026-11-{n + 1:02}. {rules}", "output": "a"} for n in range(9)]
    (folder / "dated.jsonl").write_text("".join(json.dumps(row) + "\n" for row in dated))
    trace = read(folder / "trace.jsonl")
    cached = replace_columns(trace, cached_tokens=trace.input_length // 2, ttft_ms=trace.input_length * 0.1)
    write(Trace.from_columns(cached, block_size=16), folder / "measured.jsonl")
    return folder


def kvtrace(folder, line):
    """What a command prints on stdout, in the folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = CliRunner().invoke(commands, line.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@cache
def printed_once(folder, line):
    """What a command prints that is run once for several cases."""
    with quick_fits():
        return kvtrace(folder, line)


def validate(name, value):
    schema = json.loads((schemas.FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(value, schema, jsonschema.Draft202012Validator)


def test_a_schema_in_the_docs_is_that_of_the_types():
    texts = {name: (schemas.FOLDER / f"{name}.schema.json").read_text(encoding="utf-8") for name in schemas.SCHEMAS}
    assert [name for name, text in texts.items() if text != schemas.text_of(name)] == [], "run `make docs`"


def test_every_schema_has_a_line_in_the_docs():
    page = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    assert {path.name.partition(".")[0] for path in schemas.FOLDER.iterdir()} == {*schemas.SCHEMAS}
    assert [name for name in schemas.SCHEMAS if f"schemas/{name}.schema.json" not in page] == []
    printed = [name for name, each in commands.commands.items() if any("--json" in one.opts for one in each.params)]
    assert [name for name in printed if f"`kvtrace {name} --json`" not in page] == []


@pytest.mark.parametrize(
    "line",
    [
        "simulate trace.jsonl --capacity 300,50% --policy lru,belady",
        "simulate trace.jsonl --capacity 300 --engine vllm,sglang,lmcache --mode token --schedule open-loop:30",
        "simulate trace.jsonl --capacity 300 --engine vllm,sglang,lmcache --model gpt-oss-20b --mode token",
        "simulate trace.jsonl --tiers hbm=300,dram=600 --over-time 1m --warm-up 10%",
        "simulate trace.jsonl --capacity 200 --instances 2 --router lmetric --kv-bytes-per-token 2048",
        f"simulate trace.jsonl --capacity 300 --instances 2 --gpu h100 --model-config {MODEL}",
        f"simulate trace.jsonl --tiers hbm=300,dram=600@25GB --gpu h100 --model-config {MODEL}",
    ],
)
def test_simulations_fit_their_schema(folder, line):
    validate("simulation", json.loads(kvtrace(folder, f"{line} --json --quiet")))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("analysis", "analyze trace.jsonl"),
        ("analysis", "analyze trace.jsonl --basic --fold 1,2 --quantiles 0.9,99.9%"),
        ("analysis", "analyze outputs.jsonl --kv-bytes-per-token 2048"),
        ("analysis", "analyze trace.jsonl --model gpt-oss-20b --engine vllm --basic"),
        ("analysis", "analyze trace.jsonl --model llama-3.1-8b --engine vllm"),
        ("curve", "curve trace.jsonl --points 3"),
        ("curve", "curve trace.jsonl --capacity 50% --sample 0.5 --kv-bytes-per-token 2048"),
        ("explanation", "explain trace.jsonl --capacity 300 --instances 2 --over-time 1m --by-session"),
        ("explanation", "explain trace.jsonl --capacity 300 --ttl 1m --warm-up 10% --input-price 3"),
        ("explanation", "explain trace.jsonl --tiers hbm=300,dram=600 --no-cures"),
        ("explanation", "explain trace.jsonl --gpu h100 --model llama-3.1-8b --capacity 300 --instances 2"),
        ("analysis", "analyze measured.jsonl"),
        ("explanation", "explain measured.jsonl --capacity 300 --no-cures"),
        ("models", "models"),
        ("models", "models gpt-oss-20b"),
        ("comparison", "compare trace.jsonl outputs.jsonl"),
        ("tune", "tune trace.jsonl --capacity 50 --policy lru,slru --quiet"),
        ("lint", f"lint {LOG} --quiet"),
        ("lint", "lint dated.jsonl --quiet"),
        ("comparison", "compare trace.jsonl one.jsonl"),
    ],
)
def test_analyses_fit_their_schemas(folder, name, line):
    validate(name, json.loads(kvtrace(folder, f"{line} --json")))


def test_answers_fit_their_schema(folder):
    (folder / "bare.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,374,44\n")
    for log in (LOG, "trace.jsonl", "bare.csv"):
        output = f"answer-{len(list(folder.iterdir()))}"
        validate("start", json.loads(kvtrace(folder, f"start {log} -o {output} --json --quiet")))


def test_a_plan_fits_its_schema(folder):
    for more in ("", " --tiers dram=64GiB@25GB"):
        line = f"plan trace.jsonl --model-config {MODEL} --gpu a100 --router sticky,lmetric --json --quiet{more}"
        validate("plan", json.loads(kvtrace(folder, line)))


def test_validations_fit_their_schema(folder):
    for log in (ROOT / "examples/recording", ROOT / "tests/data/recordings/vllm_bench.json"):
        for more in ("", " --capacity 400 --warm-up 50%"):
            line = f"validate {log} --model llama-3.1-8b --gpu h100 --json --quiet{more}"
            validate("validation", json.loads(kvtrace(folder, line)))


def test_a_sweep_and_each_of_its_rows_fit_their_schemas(folder):
    line = "sweep trace.jsonl --engine reference,vllm --policy lru,lfu --capacity 20,300 --quiet"
    validate("sweep", json.loads(kvtrace(folder, f"{line} --json")))
    kvtrace(folder, f"{line} -o table.jsonl")
    rows = [json.loads(row) for row in (folder / "table.jsonl").read_text().splitlines()]
    assert any(row["error"] for row in rows) and not all(row["error"] for row in rows)
    for row in rows:
        validate("sweep-row", row)


def test_sidecars_and_manifests_fit_their_schema(folder):
    kvtrace(folder, "release trace.jsonl -o strict.jsonl --profile strict --quiet")
    kvtrace(folder, "synthesize trace.jsonl -n 50 -o more.jsonl --quiet")
    kvtrace(folder, "convert trace.jsonl -o for.jsonl --to vllm --fold 2 --quiet")
    kvtrace(folder, "convert trace.jsonl -o day.dataset --quiet")
    for name in ("trace.jsonl.meta.json", "strict.jsonl.meta.json", "more.jsonl.meta.json", "for.jsonl.meta.json"):
        validate("sidecar", json.loads((folder / name).read_text()))
    validate("sidecar", json.loads((folder / "day.dataset/manifest.json").read_text()))


def test_the_schema_of_sidecars_names_every_key_that_kvtrace_writes():
    assert {*OWN} <= {*schemas.sidecar()["properties"]}


def test_audits_fit_their_schema(folder):
    validate("audit", json.loads(kvtrace(folder, "audit trace.jsonl --json")))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("simulation", {"schema": 1}),
        ("simulation", {"results": [{}]}),
        ("simulation", {"more": 1}),
        ("analysis", {"input_length": {"count": 1}}),
        ("analysis", {"q0.9": 1.0}),
        ("models", {"models": [{"name": "a"}]}),
        ("curve", {"points": [{"capacity": 1}]}),
        ("comparison", {"sessions": "known"}),
        ("comparison", {"a": {"name": "a", "requests": 1, "block_size": 16, "working_set": 1, "duration_m": 0.0}}),
        ("audit", {"level": "FINE"}),
        ("sweep", {"results": [{"policy": "lru"}]}),
        ("sidecar", {"block_size": 0}),
        ("sidecar", {"tail": "cut"}),
        ("sidecar", {"requests": "many"}),
        ("plan", {"schema": 0}),
        ("start", {"saving": {"days": 1}}),
        ("start", {"plan": {}}),
        ("validation", {"over_time": {}}),
        ("calibration", {"forms": {"sum": "small"}}),
    ],
)
def test_a_wrong_value_fits_no_schema(folder, name, change):
    lines = {
        "simulation": "simulate trace.jsonl --capacity 300 --json --quiet",
        "analysis": "analyze trace.jsonl --json",
        "models": "models llama-3.1-8b --json",
        "curve": "curve trace.jsonl --points 2 --json",
        "comparison": "compare trace.jsonl trace.jsonl --json",
        "audit": "audit trace.jsonl --json",
        "sweep": "sweep trace.jsonl --capacity 300 --json --quiet",
        "start": "start trace.jsonl -o answer --json --quiet",
        "plan": f"plan trace.jsonl --model-config {MODEL} --router sticky --json --quiet",
        "calibration": f"calibrate {ROOT / 'examples/recording'} --model llama-3.1-8b --gpu h100 --json --quiet",
        "validation": f"validate {ROOT / 'examples/recording'} --model llama-3.1-8b --gpu h100 --json --quiet",
    }
    value = json.loads(printed_once(folder, lines[name])) if name in lines else {"block_size": 16}
    validate(name, value)
    with pytest.raises(jsonschema.ValidationError):
        validate(name, value | change)


def test_most_keys_of_a_result_have_a_description():
    result = schemas.simulations()["properties"]["results"]["items"]["properties"]
    bare = [name for name, key in result.items() if "description" not in key]
    assert not bare, f"keys without a docstring or a row in the results of docs/cache/simulate.md: {bare}"


def test_the_examples_of_the_site_run():
    from tools.docs_site import api, metrics
    from tools.docs_site import commands as pages

    modules = [api, pages, metrics, result_keys, schemas]
    with suppress(ImportError):  # griffe comes with the site's packages
        from tools.docs_site import docstrings

        modules.append(docstrings)
    assert [module.__name__ for module in modules if doctest.testmod(module).failed] == []
