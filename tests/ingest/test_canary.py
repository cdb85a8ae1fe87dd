"""No word of a log gets out: a canary in 100,000 broken rows appears in no output, message, reject or exception.

It is planted wherever a row has room (texts, keys, roles, types, arguments, parts, times, ids, names), the rows are
broken in every way that readers know, and all that a run leaves is searched for it, plain and in disguise. Rows are
made for the forms that we know best, and from the example files for every reader.
"""

import base64
import json
import os
import random
import warnings
from pathlib import Path

import pytest

import kvtrace
from kvtrace._base.errors import KvtraceError
from kvtrace.cli import run
from kvtrace.formats.violations import check
from kvtrace.ingest import logs
from tests.attacks import examples
from tests.attacks.canary import CANARY, NUMBER, WORDS, all_of, locals_of, require_none
from tests.conftest import drawn
from tests.ingest.flat import anonymize_rows

HERE = Path(__file__).resolve().parents[1]
TINY = HERE / "data/tokenizers/tiny"
TEMPLATES = HERE / "data/tokenizers/templates"
RAISING = (
    "{% for m in messages %}{{ raise_exception(m.content ~ m.role) if loop.last else m.nope[m.content] }}{% endfor %}"
)
ALL_ROWS = int(os.environ.get("KVTRACE_CANARY_ROWS", drawn(20_000)))  # of all runs; `make fuzz-short` asks for 100,000


@pytest.mark.parametrize("before", range(5))
def test_the_search_sees_through_disguises(before):
    text = b"x" * before + CANARY.encode() + b" and more"
    for disguise in (text, base64.b64encode(text), text.hex().encode(), text[::-1], text.upper()):
        with pytest.raises(AssertionError, match="the canary is in a test"):
            require_none(disguise.decode(), where="a test")


# -- rows ------------------------------------------------------------------------------------------------------------


def words(draw):
    return draw.choice(
        [CANARY, f"x {CANARY} y", f"{CANARY}\n" * 3, f'{CANARY}"', f"<|{CANARY}|>", f"{CANARY}@{CANARY}"]
    )


def message(draw):
    kind = draw.randrange(7)
    role = draw.choice(["user", "assistant", "system", "tool", "user", "user", CANARY])
    if kind == 0:
        part = {"type": draw.choice(["text", "image_url", "file", CANARY]), "text": words(draw), CANARY: words(draw)}
        return {"role": role, "content": [part, words(draw)]}
    if kind == 1:
        arguments = draw.choice([{CANARY: CANARY}, json.dumps({"a": CANARY}), f'{{"a": "{CANARY}', CANARY, NUMBER])
        call = {"id": CANARY, "type": "function", "function": {"name": CANARY, "arguments": arguments}}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == 2:
        return {"role": role, "content": words(draw), CANARY: {CANARY: [CANARY]}, "name": CANARY}
    return {"role": role, "content": words(draw)}


def messages(draw):
    return [message(draw) for _ in range(draw.randint(1, 3))]


def extras(draw):
    """Fields that may stand in any row, right and wrong."""
    found = {
        "session": draw.choice([CANARY, NUMBER, [CANARY]]), "user": CANARY, "model": draw.choice([CANARY, {CANARY: 1}]),
        "type": draw.choice([CANARY, "text", CANARY[:5], {CANARY: CANARY}]), "adapter": CANARY, "id": CANARY,
        "tools": draw.choice([[{"type": "function", "function": {"name": CANARY}}], CANARY, [CANARY]]),
        "prompt_tokens": draw.choice([7, CANARY, NUMBER, -NUMBER]), CANARY: CANARY,
    }  # fmt: skip
    return {name: found[name] for name in draw.sample(list(found), draw.choice([0, 0, 1, 2]))}


def block_hash(draw):
    given = draw.choice([messages(draw), messages(draw), words(draw), [1, 2, NUMBER], {CANARY: CANARY}])
    output = draw.choice([words(draw), 5, message(draw), [1, 2], NUMBER])
    return {"timestamp": draw.randrange(10**6), "input": given, "output": output} | extras(draw)


def openai(draw):
    request = {"model": CANARY, "messages": messages(draw), "user": CANARY}
    response = {
        "created": 1_900_000_000 + draw.randrange(9), "id": CANARY, "model": CANARY,
        "choices": [{"message": message(draw), "finish_reason": CANARY}],
        "usage": {"prompt_tokens": draw.choice([5, NUMBER]), "completion_tokens": draw.choice([5, CANARY])},
    }  # fmt: skip
    rows = [
        request | response | extras(draw), {"request": request, "response": response},
        {"request": json.dumps(request), "response": json.dumps(response)},
        {"custom_id": CANARY, "body": request}, {"request": CANARY, "response": CANARY},
    ]  # fmt: skip
    return draw.choice(rows)


def tokens(draw):
    ids = draw.choice([[1, 2, 3], [1, CANARY], [NUMBER], CANARY, [[CANARY]], [1.5], [True]])
    output = draw.choice([[4, 5], [CANARY], CANARY, None])
    return {"timestamp": draw.randrange(10**6), "prompt_token_ids": ids, "token_ids": output} | extras(draw)


def planted(draw, value):
    """The value with the canary in some of its texts and numbers."""
    if isinstance(value, dict):
        return {CANARY if draw.random() < 0.01 else key: planted(draw, inner) for key, inner in value.items()}
    if isinstance(value, list) and len(value) > 8 and all(type(inner) is int for inner in value):  # token ids, hashes
        return [*value[:-1], planted(draw, value[-1])]
    if isinstance(value, list):
        return [planted(draw, inner) for inner in value]
    if isinstance(value, str) and draw.random() < 0.4:
        return words(draw) if draw.random() < 0.7 else f"{value} {CANARY}"
    if type(value) in (int, float) and draw.random() < 0.1:
        return draw.choice([NUMBER, CANARY, -NUMBER])
    return value


def from_example(path):
    """Makes rows from those of an example file."""
    found = list(examples.rows(path))
    return lambda draw: planted(draw, draw.choice(found))


def wrong(draw):
    return draw.choice(
        [CANARY, NUMBER, -NUMBER, 1.5, True, None, [], {}, [CANARY], {CANARY: CANARY}, 10**400, "NaN", ""]
    )


def places(value, found=None):
    """Every (container, key) in a row."""
    found = [] if found is None else found
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []:
        found.append((value, key))
        places(value[key], found)
    return found


def broken(draw, row, timed=True):
    """One line of the row, as it is or with something wrong; in a log without times no row gets one."""
    way = draw.randrange(12)
    row = json.loads(json.dumps(row))
    container, key = draw.choice(places(row))
    if way == 0:
        container[key] = wrong(draw)
    elif way == 1:
        del container[key]
    elif way == 2 and isinstance(container, dict):
        container[CANARY] = container.pop(key)
    elif way == 3 and timed:
        row["timestamp"] = draw.choice(
            [CANARY, NUMBER * 10**9, -NUMBER, f"2031-99-{CANARY}", f"{NUMBER}", [CANARY], 1e300]
        )
    line = json.dumps(row, ensure_ascii=draw.random() < 0.5).encode()
    at = draw.randrange(len(line))
    if way == 4:
        return line[:at]
    if way == 5:
        byte = bytes([draw.randrange(256)])
        return line[:at] + (b"\0" if byte == b"\n" else byte) + line[at + 1 :]
    if way == 6:
        return (
            line[:at]
            + draw.choice([b"\\x", b"\\ud800", b"\\u00", b"\x00", b"\x1b", b"\xff\xfe", b"\xc3", b"[" * 2000])
            + line[at:]
        )
    if way == 7:
        return (
            line[:-1]
            + b', "'
            + draw.choice([b"timestamp", b"input", b"type", CANARY.encode()])
            + b'": "'
            + CANARY.encode()
            + b'"}'
        )
    if way == 8:
        return draw.choice([CANARY.encode(), json.dumps(CANARY).encode(), json.dumps([CANARY]).encode(), line + line])
    return line


def log(path, lines):
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def whole_and_broken(make, seed, rows, timed=True):
    """Lines of rows, the first 50 of them whole, for what is detected in the first rows."""
    draw = random.Random(seed)
    whole = [json.dumps(make(draw)).encode() for _ in range(50)]
    return whole + [broken(draw, make(draw), timed) for _ in range(rows - 50)]


def broken_table(path, seed, rows):
    """A table's heading, a few of its lines, and lines with the canary in a cell and something wrong."""
    draw = random.Random(seed)
    heading, *given = examples.lines(path)
    found = [heading, *given[:50]]
    while len(found) < rows:
        cells = draw.choice(given).split(b",")
        for _ in range(draw.choice([0, 1, 2])):
            cells[draw.randrange(len(cells))] = words(draw).replace("\n", " ").encode()
        line = b",".join(cells)
        at = draw.randrange(len(line) + 1)
        found.append(draw.choice([
            line, line, line[:at], line + b"," + CANARY.encode(), line[:at] + b'"' + line[at:],
            line[:at] + b"\xff" + line[at:], line[:at] + str(NUMBER).encode() + line[at:],
        ]))  # fmt: skip
    return found


# -- runs ------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["", "1"], ids=["", "debug"])
def debug(request, monkeypatch):
    monkeypatch.setenv("KVTRACE_DEBUG", request.param)


@pytest.fixture(scope="module")
def raising(tmp_path_factory):
    path = tmp_path_factory.mktemp("template") / "raising.jinja"
    path.write_text(RAISING)
    return path


MADE = [
    ("block-hash", block_hash, "", "bailian"),
    ("block-hash", block_hash, "strict", "parquet"),
    ("block-hash", block_hash, "raising", "mooncake"),
    ("openai", openai, "", "bailian"),
    ("openai", openai, "objects", "mooncake"),
    ("tokens", tokens, "", "bailian"),
]
RUNS = [*MADE, *((path, None, "", "mooncake") for path in examples.files())]
ROWS = max(100, ALL_ROWS // len(RUNS))  # of one run


def test_every_reader_has_an_example_that_it_reads():
    assert {name for name, paths in examples.by_reader().items() if not paths} == set()


def test_every_example_is_read_by_some_reader():
    assert [path.name for path in examples.files() if examples.reader_of(path) is None] == []


def lines_and_options(name, make, template):
    """Lines of a run, and what reads them."""
    if make:
        options = ["--log-format", name, "--time-unit", "s" if name == "openai" else "ms"]
        return whole_and_broken(make, f"{name} {template}", ROWS), [*options, "--block-size", "4", "--outputs"]
    maps = examples.MAPS.get(name.name, {})
    given = examples.lines(name)
    reader = logs.open_reader("auto", given, field_map=maps, allow_truncated=True, untimed=True)
    options = ["--log-format", reader.name, *(part for pair in maps.items() for part in ("--map", "=".join(pair)))]
    # a log of hashes has its own block size, which its damaged rows need not show
    options += ["--block-size", str(reader.block_size)] if reader.block_size else ["--block-size", "4", "--outputs"]
    options += ["--arrivals", "rate=1/s,seed=1"] if reader.unit is None else []
    if reader.columns is not None:
        return broken_table(name, name.name, ROWS), options
    return whole_and_broken(from_example(name), name.name, ROWS, timed=reader.unit is not None), options


@pytest.mark.parametrize(("name", "make", "template", "to"), RUNS, ids=lambda value: getattr(value, "name", None))
def test_the_canary_is_in_nothing_that_a_run_leaves(name, make, template, to, tmp_path, capfd, monkeypatch, raising):
    monkeypatch.setenv("KVTRACE_DEBUG", "1")
    lines, options = lines_and_options(name, make, template)
    source = log(tmp_path / "log.jsonl", lines)
    assert source.read_bytes().count(CANARY.encode()) > ROWS // 3
    (tmp_path / "out").mkdir()
    trace, rejects = tmp_path / "out/trace", tmp_path / "out/rejects"
    chosen = raising if template == "raising" else TEMPLATES / f"{template}.jinja" if template else None
    options += ["--chat-template", str(chosen)] if chosen else []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        status = run([
            "anonymize", str(source), "-o", str(trace), "--format", to, "--tokenizer", str(TINY), "--allow-truncated",
            "--on-error", "skip", "--rejects", str(rejects), *options,
        ])  # fmt: skip
    shown = capfd.readouterr()
    require_none(shown.out + shown.err, where="what was said")
    require_none("".join(str(warning.message) for warning in warned), where="a warning")
    assert status == 0, shown.err
    left = {path.name: path.read_bytes().decode("latin-1") for path in (tmp_path / "out").iterdir()}
    assert {"trace", "trace.meta.json", "trace.card.md", "rejects"} <= set(left)
    for file, text in left.items():
        require_none(text, where=file)
    require_none(str(kvtrace.read(trace).extra) + str(kvtrace.read(trace).meta), where="the trace")
    counts = kvtrace.read(trace).meta["counts"]
    rejected = len(rejects.read_text().splitlines())
    assert ROWS // 20 < rejected <= counts["rejected"] <= 1.1 * rejected  # rounded up
    assert counts["requests"] > 0


@pytest.mark.parametrize("example", examples.files(), ids=lambda path: path.name)
def test_the_canary_is_in_nothing_that_an_interrupted_run_leaves(example, tmp_path, capfd, monkeypatch):
    lines, options = lines_and_options(example, None, "")
    source, out = log(tmp_path / "log.jsonl", lines[:600]), tmp_path / "out"
    out.mkdir()
    monkeypatch.setattr("kvtrace.ingest.logs.sources.PIECE_BYTES", 1 << 14)
    seen = {}

    def look(*_):
        seen.update({f"{path.name} at {len(seen)}": path.read_bytes() for path in out.iterdir()})
        if len(seen) > 6:
            raise KeyboardInterrupt

    monkeypatch.setattr("kvtrace.report.progress.Bar.update", look)
    run([
        "anonymize", str(source), "-o", str(out / "trace"), "--tokenizer", str(TINY), "--allow-truncated",
        "--key-file", str(tmp_path / "key"), "--on-error", "skip", "--rejects", str(out / "rejects"), *options,
    ])  # fmt: skip
    shown = capfd.readouterr()
    require_none(shown.out + shown.err, where="what was said")
    for name, data in [*seen.items(), *((path.name, path.read_bytes()) for path in out.iterdir())]:
        require_none(data.decode("latin-1"), where=name)
    assert max(len(data) for name, data in seen.items() if ".resume" in name) > 1000


@pytest.mark.parametrize("example", examples.files(), ids=lambda path: path.name)
def test_the_canary_is_in_no_local_variable_of_an_error_that_a_caller_gets(example, tmp_path):
    """Error trackers show the local variables of every frame: ours hold no row when a row's error comes out."""
    draw, make, raised = random.Random(example.name), from_example(example), 0
    path = tmp_path / "one.jsonl"
    for number in range(drawn(48)):
        log(path, [*(json.dumps(make(draw)).encode() for _ in range(3)), broken(draw, make(draw)), b"[1]"])
        try:
            kvtrace.ingest.anonymize(
                path, log_format=draw.choice(["auto", examples.reader_of(example)]), workers=1, arrivals="rate=1/s",
                tokenizer=str(TINY) if number % 3 else None, allow_truncated=True, outputs=number % 2 == 0,
            )  # fmt: skip
        except KvtraceError as error:
            raised += 1
            require_none(all_of(error), where="an exception")
            printed, opened = locals_of(error)
            require_none(printed, where="a local variable")
            require_none(opened, where="an object that is one", forms=WORDS)
    assert raised > drawn(48) // 3


@pytest.mark.parametrize(("name", "make"), [("block-hash", block_hash), ("openai", openai), ("tokens", tokens)])
def test_the_canary_is_in_no_exception(name, make, tmp_path, raising):
    draw, path, raised = random.Random(name), tmp_path / "one.jsonl", 0
    for number in range(drawn(150)):
        path.write_bytes(broken(draw, make(draw)) + b"\n")
        options = {"tokenizer": str(TINY)} if number % 3 else {"tokenizer": None}
        if number % 3 == 1:
            options["chat_template"] = raising
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                anonymize_rows(path, log_format=draw.choice(["auto", name]), block_size=4, workers=1, **options)
        except KvtraceError as error:
            raised += 1
            require_none(all_of(error), where="an exception")
    assert raised > 10


@pytest.mark.parametrize(("name", "make"), [("block-hash", block_hash), ("openai", openai)])
def test_the_canary_is_in_no_message_of_a_run_that_stops(name, make, tmp_path, capfd, debug):
    draw, path = random.Random(name + " stop"), tmp_path / "one.jsonl"
    for _ in range(drawn(40)):
        path.write_bytes(broken(draw, make(draw)) + b"\n")
        run(["anonymize", str(path), "-o", str(tmp_path / "trace"), "--tokenizer", str(TINY), "--block-size", "4"])
    shown = capfd.readouterr()
    require_none(shown.out + shown.err, where="what was said")
    assert "internal" not in shown.err and "Traceback" not in shown.err


def test_a_bug_that_meets_the_canary_shows_its_place_only(tmp_path, capfd, debug, monkeypatch):
    def fail(self, row):
        raise ValueError(f"a bug, with {row}")

    monkeypatch.setattr("kvtrace.ingest.logs.LogReader._row", fail)
    path = log(tmp_path / "log.jsonl", whole_and_broken(block_hash, seed=1, rows=60))
    command = ["anonymize", str(path), "-o", str(tmp_path / "trace"), "--tokenizer", str(TINY), "--time-unit", "ms"]
    assert run(command) == 1
    shown = capfd.readouterr()
    require_none(shown.out + shown.err, where="what was said")
    assert "internal error: ValueError at test_canary.py" in shown.err


# -- traces ----------------------------------------------------------------------------------------------------------


def trace_row(draw):
    rows = {
        "timestamp": draw.choice([0, 5, 9]), "input_length": 4, "output_length": 1, "hash_ids": [0, 1],
        "type": CANARY, CANARY: CANARY, "session_id": CANARY, "note": {CANARY: [CANARY]}, "n": NUMBER,
    }  # fmt: skip
    return rows | ({"chat_id": draw.choice([1, CANARY]), "parent_chat_id": -1} if draw.random() < 0.2 else {})


def test_the_canary_of_a_trace_is_in_no_message(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("KVTRACE_DEBUG", "1")
    draw, path = random.Random("trace"), tmp_path / "trace.jsonl"
    side = Path(f"{path}.meta.json")
    for number in range(drawn(250)):
        path.write_bytes(b"\n".join(broken(draw, trace_row(draw)) for _ in range(draw.randint(1, 4))))
        side.unlink(missing_ok=True)
        if number % 3 == 0:
            side.write_bytes(broken(draw, {"block_size": 2, "tail": "kept", "requests": 1, "note": CANARY}))
        assert run(["check", str(path)]) in (0, 3)
        try:
            kvtrace.read(path, block_size=draw.choice([None, 2]))
            check(path)
        except KvtraceError as error:
            require_none(all_of(error), where="an exception")
    shown = capfd.readouterr()
    require_none(shown.out + shown.err, where="what was said")


def test_the_canary_of_a_parquet_trace_is_in_no_message(tmp_path, capfd):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    good = {"timestamp": [0.0], "input_length": [4], "output_length": [1], "hash_ids": [[0, 1]]}
    struct = pa.StructArray.from_arrays(
        [pa.array([f'{{"{CANARY}'])], fields=[pa.field(CANARY, pa.string(), metadata={b"kvtrace": b"json"})]
    )
    wrongs = [{name: [CANARY]} for name in (*good, "session", "parent", "extra")] + [
        {"hash_ids": [[CANARY]]}, {"hash_ids": [CANARY]}, {"extra": struct}, {"extra": [{CANARY: [CANARY]}]},
        {"timestamp": [{CANARY: CANARY}]}, {CANARY: [CANARY]}, {"input_length": [NUMBER]},
    ]  # fmt: skip
    path = tmp_path / "trace.parquet"
    for wrong_columns in wrongs:
        parquet.write_table(pa.table(good | wrong_columns), path)
        assert run(["check", str(path)]) in (0, 3)
        try:
            kvtrace.read(path)
        except KvtraceError as error:
            require_none(all_of(error).replace(f"{NUMBER:,} tokens", ""), where="an exception")
    shown = capfd.readouterr()
    require_none((shown.out + shown.err).replace(f"{NUMBER:,}", ""), where="what was said")  # a length may be told
    assert "internal" not in shown.err
