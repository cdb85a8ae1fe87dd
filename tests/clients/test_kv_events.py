"""KV events of vLLM's and SGLang's own caches, over their own sockets: the trace, and what its rows say of a request.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `vllm` and `sglang` among them.
"""

import contextlib
import json
import os
import random
import subprocess
import tempfile
import time
from pathlib import Path

import orjson
import pytest

import kvtrace
from kvtrace.capture.live import Live, LiveOptions
from kvtrace.capture.recorder import Recorder
from kvtrace.ingest.logs import kv_events
from kvtrace.ingest.logs.kv_events import KvPublisher
from kvtrace.privacy.publishing import publish
from tests.capture.windows import sealed, waited

CLIENTS = Path(os.environ.get("KVTRACE_CLIENTS", "no-such-folder"))
SIZE = 4  # tokens per block
START_S = time.time() // 60 * 60 - 10_000  # a recorder takes no times that are years ago
OPTIONS = {"profile": kvtrace.privacy.profile("exact"), "block_size": SIZE}
ENGINES = [
    pytest.param(name, marks=pytest.mark.skipif(not (CLIENTS / name).exists(), reason=f"no environment {name}"))
    for name in ("vllm", "sglang")
]
pytestmark = pytest.mark.enable_socket


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="kv") as name:  # a short one: addresses of sockets are
        yield Path(name)


def case_of(seed, folder, *, start=START_S, apart_s=60.0, rows=60, number=0, **more):
    """Random conversations that share beginnings, on a small cache."""
    rng, said, requests = random.Random(seed), [[]], []
    for _ in range(rows):
        before = rng.choice(said[-12:])
        tokens = before[: rng.randrange(len(before) + 1)] + [rng.randrange(9) for _ in range(rng.randrange(1, 20))]
        said.append(tokens)
        requests.append({"tokens": tokens, "more": rng.randrange(12), "priority": 0})
    pages = max(-(-(len(one["tokens"]) + one["more"]) // SIZE) for one in requests)
    return {
        "block_size": SIZE, "page_size": SIZE, "capacity": 3 * pages, "grow": True, "tree": "unified", "policy": "lru",
        "schedule": {"kind": "serial"}, "requests": requests, "rank": number,
        "times": [start + apart_s * row for row in range(rows)],
        "endpoint": f"ipc://{folder}/pub{number}", "replay": f"ipc://{folder}/replay{number}",
    } | more  # fmt: skip


@contextlib.contextmanager
def driven(engine, folder, cases):
    """A driver that serves these cases."""
    work = folder / "work.json"
    work.write_text(json.dumps({"record": str(folder / "events.jsonl"), "engines": cases}))
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONHASHSEED": "0"}
    command = [CLIENTS / engine / "bin/python", Path(__file__).parent / f"{engine}_kv_events.py", work]
    with (
        open(folder / "errors", "w+") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=plain
        ) as driver,
    ):
        try:
            yield Driver(driver, folder / "errors")
        finally:
            driver.kill()


class Driver:
    """The lines of a driver."""

    def __init__(self, process, errors):
        self.process, self.errors = process, errors

    def line(self, wanted):
        """The next line that begins so."""
        for line in self.process.stdout:
            if line.startswith(wanted):
                return line
        raise AssertionError(self.errors.read_text()[-3000:])

    def go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()


class Received:
    """The queue of a recorder, which also keeps the number of each publisher's latest batch."""

    def __init__(self, recorder):
        self.recorder, self.has_room, self.latest = recorder, recorder.has_room, {}

    def put(self, source, payload, requests):
        self.latest[int.from_bytes(payload[:4], "big")] = int.from_bytes(payload[4:12], "big")
        return self.recorder.put(source, payload, requests)


def served(engine, folder, *cases):
    """What the driver says of each case, with a reader that takes nothing, and the record of the batches."""
    answers = []
    with driven(engine, folder, cases) as driver:
        for _ in cases:
            driver.line("ready")
            driver.go()
            answers.append(json.loads(driver.line("{")))
            driver.go()
    return answers, (folder / "events.jsonl").read_bytes().splitlines()


# -- the trace -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_a_recorded_trace_has_the_bytes_of_the_recorded_batches(engine, folder, tmp_path):
    """Two ranks, one of which starts again; batches from before the recorder, and some that the network loses."""
    cases = [
        case_of(1, folder, lose=[*range(60, 2000, 7)]),
        case_of(2, folder, number=1, start=START_S + 11.5, lose=[3, 4, 5, 50, 51]),
        case_of(1, folder, start=START_S + 5000.25, lose=[0, 1, 2, 40]),
    ]
    addresses = tuple(dict.fromkeys(f"{case['endpoint']},{case['replay']}" for case in cases))
    said = []  # by the recorder
    with (
        driven(engine, folder, cases) as driver,
        Recorder(tmp_path / "recorded", on_message=said.append, **OPTIONS) as recorder,
    ):
        driver.line("ready")
        queue = Received(recorder)
        with Live(LiveOptions(kv_events=addresses), queue, on_message=said.append):
            for number, case in enumerate(cases):
                if number:
                    driver.line("ready")
                publisher = addresses.index(f"{case['endpoint']},{case['replay']}")
                before = queue.latest.pop(publisher, None)
                waited(lambda at=publisher: at in queue.latest)
                driver.go()
                batches = json.loads(driver.line("{"))["batches"]
                assert batches > 60 and (before is None or number == 2)
                waited(lambda at=publisher, last=batches - 1: queue.latest[at] == last)
                driver.go()
        waited(lambda: recorder.counts().waiting == 0)
    assert [sentence.partition(": ")[2][:7] for sentence in said] == ["sealed;"], said
    (window,) = sealed(tmp_path / "recorded")
    publish(kvtrace.ingest.anonymize(folder / "events.jsonl", **OPTIONS), tmp_path / "whole.jsonl")
    assert window.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert len(window.read_bytes().splitlines()) > 120


# -- what a row says -------------------------------------------------------------------------------------------------


def paths_of(case):
    """The tokens of each request that fill blocks: its prompt, and what it generates."""
    for row, request in enumerate(case["requests"]):
        tokens = request["tokens"] + [1_000_000 + row * 1_000 + i for i in range(request["more"])]
        yield tokens[: len(tokens) // SIZE * SIZE]


@pytest.mark.parametrize("engine", ENGINES)
def test_each_request_that_stores_is_a_row_with_its_path_and_its_hits(engine, folder):
    """Requests are a minute apart. SGLang stores an answer when its request ends: if that is late, in another row."""
    seed = random.Random().randrange(1 << 32)
    more = [{}, {"schedule": {"kind": "concurrency", "concurrency": 2}, "answer_s": 20}]
    cases = [
        case_of(seed + i, folder, number=i, start=START_S + 100_000 * i, **options) for i, options in enumerate(more)
    ]
    answers, lines = served(engine, folder, *cases)
    rows = list(map(orjson.loads, kv_events.row_lines(lines)))
    missing, answered_late = 0, []
    for case, answer in zip(cases, answers, strict=True):
        is_late = engine == "sglang" and "answer_s" in case
        for row, (path, hit, seconds) in enumerate(zip(paths_of(case), answer["hits"], case["times"], strict=True)):
            prompt = case["requests"][row]["tokens"]
            computed = prompt[: len(prompt) // SIZE * SIZE] if is_late else path
            answered_late += [path] * (is_late and path != computed)
            mine = [one for one in rows if one["timestamp"] == seconds and one["prompt_token_ids"] == computed]
            if len(computed) > hit * SIZE:
                assert [one["cached_tokens"] for one in mine] == [hit * SIZE], f"seed {seed}: request {row}"
                rows.remove(mine[0])
            else:
                assert not mine, f"seed {seed}: request {row} stored nothing"
                missing += 1
    assert sorted(one["prompt_token_ids"] for one in rows) == sorted(answered_late), f"seed {seed}: rows of no request"
    publisher = KvPublisher()
    for line in lines:
        publisher.add(orjson.loads(line))
    counts = publisher.counts()
    assert counts.resident == sum(answer["cached"] for answer in answers), f"seed {seed}"
    assert counts.removed == counts.first + counts.again - counts.resident and counts.again > 0
    assert (counts.lost, counts.restarts, counts.unknown_parents, counts.unknown_removed) == (0, 0, 0, 0)
    assert missing < 20


PLACEHOLDER = 8  # the token of every image


def with_images(case, seed):
    """The case with images in its prompts, some with the same text before them, and salts and adapters."""
    rng = random.Random(seed)
    for request in case["requests"]:
        tokens, images = [], []
        for token in request["tokens"]:
            tokens.append(token % PLACEHOLDER)
            if rng.random() < 0.1:
                name = rng.choice("abc")
                images.append([name, len(tokens), 3 if name == "c" else 6])
                tokens += [PLACEHOLDER] * images[-1][2]
        request |= {"tokens": tokens, "images": images}
        request |= {name: rng.choice("xy") for name in ("salt", "adapter") if rng.random() < 0.2}
    return case | {"capacity": 60}


def contents_of(request, blocks):
    """What leads to each of the first blocks of a request, as an engine hashes it."""
    for stop in range(SIZE, (blocks + 1) * SIZE, SIZE):
        images = [image for image in request["images"] if image[1] < stop]
        yield json.dumps([request["tokens"][:stop], images, request.get("salt"), request.get("adapter")])


@pytest.mark.parametrize("keys", [True, False], ids=["with keys", "hashes alone"])
@pytest.mark.parametrize("engine", ENGINES[:1])
def test_blocks_are_equal_where_the_engine_hashes_equal_images_and_salts(engine, keys, folder, tmp_path):
    """Events of vLLM; then the same without their extra keys, where only hashes and parents tell images apart."""
    seed = random.Random().randrange(1 << 32)
    case = with_images(case_of(seed, folder, rows=80), seed)
    case["requests"] = [request | {"more": 0} for request in case["requests"]]
    _, lines = served(engine, folder, case)
    batches = list(map(orjson.loads, lines))
    for event in (event for batch in batches for event in batch["batch"][1]) if not keys else ():
        event.pop("extra_keys", None)
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(orjson.dumps(batch) + b"\n" for batch in batches))
    publish(kvtrace.ingest.anonymize(path, **OPTIONS), tmp_path / "trace.jsonl")
    rows = {row["timestamp"]: row for row in map(orjson.loads, kv_events.row_lines(path.read_bytes().splitlines()))}
    trace, contents, ids = kvtrace.read(tmp_path / "trace.jsonl"), {}, {}
    requests = [request for request, seconds in zip(case["requests"], case["times"], strict=True) if seconds in rows]
    assert len(requests) == len(trace) > 30
    for row, request in enumerate(requests):
        blocks = trace.hash_ids[trace.offsets[row] : trace.offsets[row + 1]].tolist()
        domain = request.get("adapter"), request.get("salt") if keys else None  # a column of the trace, not in its ids
        for one, content in zip(blocks, contents_of(request, len(blocks)), strict=True):
            assert contents.setdefault((domain, one), content) == content, f"seed {seed}: row {row} shares too much"
            assert ids.setdefault((domain, content), one) == one, f"seed {seed}: row {row} shares too little"
