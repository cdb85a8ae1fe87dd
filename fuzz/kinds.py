"""Files of six kinds, damaged in their own structure: windows, links, session models, recordings, Weka, agentic rows.

    python -m fuzz.kinds weka --seconds 60 [--seed 7] [--case 12]

Each case writes a valid example, of which a file or two are changed, and reads it as commands and as the library do.
All that is wrong may end in is one line of a KvtraceError without the canary that the example's texts hold, within 5 s
of processor time and 300 MB; and what is accepted must be a valid trace, the same one however it is read, and the same
after it was written and read again. Children run a few hundred cases each. The seed and the case run a failure again.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import mmap
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import zstandard

import kvtrace
from fuzz.files import SECONDS, fault_of, import_all
from fuzz.mutate import changed, changed_json, mutate
from fuzz.seeds import FINDS
from kvtrace._base.errors import KvtraceError
from kvtrace.capture import recorder, sealing, windows
from kvtrace.capture.encoders import LiveEncoding, SourceEncoder
from kvtrace.capture.intake import Ledger
from kvtrace.capture.sources import SOURCES
from kvtrace.cli import run
from kvtrace.formats import format_table, lazy, reading, writing
from kvtrace.formats.links import Links, fingerprint_of, write_links
from kvtrace.formats.open_pieces import open_pieces
from kvtrace.ingest.checkpoint import HEADER_LENGTH
from kvtrace.ingest.encoding_options import EncodingOptions
from kvtrace.ingest.keys import Key
from kvtrace.privacy.checks import dictionary
from kvtrace.privacy.release_options import ReleaseOptions
from kvtrace.serving import latencies
from kvtrace.serving.calibration.costs import read_costs
from kvtrace.serving.recordings import read_recording
from kvtrace.synthesis.model_files import load_model
from kvtrace.synthesis.sampling import sample
from kvtrace.synthesis.session_fitting import fit_sessions
from kvtrace.text import trial
from kvtrace.trace.building import toy
from kvtrace.trace.trace import Trace
from tests.attacks.canary import CANARY, WORDS
from tests.capture.recording import OPTIONS, row
from tests.formats import test_agentic_mooncake as agentic
from tests.formats import test_weka as weka
from tests.reference.valid import broken
from tests.serving import test_recordings as recordings
from tests.serving.quick_fits import quick_fits
from tests.unaudited import write

CPU_S, MEMORY, MOST = 5.0, 300 << 20, 16_384  # of a case; bytes of a changed file
Files = dict[str, bytes]  # name -> content


class Kind(NamedTuple):
    """Examples of a kind of file, which of their files are changed, and what is done with them."""

    examples: Callable[[Path], Iterator[None]]  # writes each into an empty folder, the present one
    use: Callable[[random.Random, str], None]  # with the name of the changed file


# -- commands and the library ---------------------------------------------------------------------------------------


def command(line: str) -> int:
    """Run a command in this process; AssertionError where it does what it must not."""
    with open("../said.txt", "r+b") as said:
        said.truncate(0)
        status = run(line.split())
        sys.stderr.flush()
        text = said.read().decode(errors="replace")
    fault = fault_of(status, text, line)
    assert not fault, f"kvtrace {line}: {fault}: {text[-300:]}"
    return status


def outcome(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The result, or the message of a KvtraceError, which is one line without content."""
    try:
        return function(*arguments, **options)
    except KvtraceError as error:
        text = str(error)
        assert not any(form in text for form in WORDS), f"shows content: {text}"
        assert "internal error" not in text and len(text.splitlines()) == 1, text
        return text


def same(one: Any, other: Any, how: str) -> None:
    """AssertionError unless two ways to read a file agree."""
    assert type(one) is type(other) and (one == other or one != one), f"{how} differs: {one!r}, {other!r}"


OUTPUTS = {"again.jsonl": None, "again.parquet": None, "again.dataset": None, "again.sessions": "weka",
           "agentic.jsonl": "agentic-mooncake"}  # fmt: skip


def agree(draw: random.Random, name: str) -> None:
    """Whatever reads a trace does the same: any number of threads, in pieces, checked, written and read again."""
    whole, threads = outcome(reading.read, name), draw.choice([1, 3])
    same(outcome(reading.read, name, threads=threads), whole, f"read with {threads} threads")
    violations = outcome(kvtrace.formats.check, name)
    if not isinstance(whole, Trace):
        assert violations, f"check finds nothing, and read refuses it: {whole}"
        return
    assert not (reasons := broken(whole)), f"an invalid trace: {reasons}"
    if not format_table.holds_sessions(name):  # sessions are not opened in pieces
        opened, columns = open_pieces(name).read(), reading.read_columns(name).columns
        ids = np.concatenate([piece.hash_ids for _, piece in opened.pieces()])
        assert np.array_equal(ids, columns.hash_ids), "ids in pieces differ"
        assert np.array_equal(opened.result.columns.timestamp, columns.timestamp), "times in pieces differ"
    output, form = draw.choice(list(OUTPUTS.items()))
    if not isinstance(outcome(writing.write, whole, output, format=form, extra=True), str):
        again = outcome(reading.read, output)
        keeps_blocks = form != "agentic-mooncake" or whole.tail != "stated"  # there prompts get what their tokens need
        keeps_order = form != "weka" or (np.diff(whole.timestamp) > 0).all()  # there agents have none at one time
        if keeps_blocks and keeps_order:
            same_columns(again, whole, output)
        assert form != "agentic-mooncake" or again.dependencies == whole.dependencies, "dependencies differ"
    if Path("again.dataset").is_dir() and not isinstance(stream := outcome(lazy.open_trace, "again.dataset"), str):
        assert np.array_equal(stream.timestamp, whole.timestamp), "a stream's times differ"
        assert np.array_equal(np.concatenate([piece.hash_ids for _, piece in stream.pieces()]), whole.hash_ids)


def same_columns(other: Any, whole: Trace, how: str) -> None:
    """AssertionError unless the columns that every format keeps are equal."""
    assert not isinstance(other, str), f"{how} is not read again: {other}"
    for name in ("timestamp", "input_length", "output_length", "hash_ids", "offsets"):
        assert np.array_equal(getattr(other, name), getattr(whole, name)), f"{name} of {how} differ"


# -- damage -----------------------------------------------------------------------------------------------------------


def damaged(draw: random.Random, name: str, data: bytes) -> bytes:
    """The content of a file with a few changes of its values, of what it holds compressed, or of its bytes."""
    if name.endswith((".gz", ".zst")) and draw.random() < 0.7:
        unpack, pack = gzip.decompress, partial(gzip.compress, mtime=0)
        if name.endswith(".zst"):
            unpack, pack = zstandard.ZstdDecompressor().decompressobj().decompress, zstandard.compress
        inner = damaged(draw, name.rpartition(".")[0], unpack(data))
        return pack(inner) if draw.random() < 0.9 else pack(inner[:9]) + pack(inner[9:])
    if name.endswith(".window") and draw.random() < 0.9:
        return damaged_window(draw, data)
    if name.endswith((".json", ".jsonl", ".log", ".links")) and draw.random() < 0.8:
        data = changed_json(draw, data, CANARY)
        return data if draw.random() < 0.9 else mutate(draw, data, 1)
    return mutate(draw, data)


def damaged_window(draw: random.Random, data: bytes) -> bytes:
    """A window's file with frames that are changed, moved or missing, mostly with the checksums that they need."""
    header, frames = split_window(data)
    if draw.random() < 0.3:
        header = changed_json(draw, header, CANARY)
    for _ in range(draw.randint(0, 2)):
        at = draw.randrange(len(frames) + 1)
        kind, inner = frames[at % len(frames)] if frames else (b"E", b"{}")
        change = draw.randrange(6)
        if change < 3:
            frames[at : at + 1] = [(kind, _damaged_frame(draw, kind, inner))]
        elif change == 3:
            frames[at:at] = [draw.choice([(kind, inner), (draw.choice([b"S", b"B", b"E", b"X"]), inner)])]
        elif change == 4:
            del frames[at : at + 1]
        else:
            frames.insert(0, frames.pop())
    whole = joined_window(header, frames)
    return mutate(draw, whole, 1) if draw.random() < 0.1 else whole


def split_window(data: bytes) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """The header of a window's file, and the kind and the data of each frame."""
    header, _, rest = data.partition(b"\n")
    return header, list(windows._frames(io.BytesIO(rest), len(rest)))


def joined_window(header: bytes, frames: list[tuple[bytes, bytes]]) -> bytes:
    """A window's file of these, with the checksums that they need."""
    heads = [windows.FRAME.pack(kind, len(inner), windows._checksum(kind, inner)) for kind, inner in frames]
    return header + b"\n" + b"".join(head + inner for head, (_, inner) in zip(heads, frames, strict=True))


def split_batch(data: bytes) -> tuple[bytes, dict[str, Any], bytes]:
    """The parts of a frame with a batch: what it covers, its JSON, and its arrays."""
    inner = data[windows.COVERED.size :]
    (size,) = HEADER_LENGTH.unpack_from(inner)
    values = inner[HEADER_LENGTH.size :]
    return data[: windows.COVERED.size], json.loads(values[:size]), values[size:]


def joined_batch(covered: bytes, values: Any, arrays: bytes) -> bytes:
    """The data of a frame of these parts."""
    text = json.dumps(values).encode()
    return covered + HEADER_LENGTH.pack(len(text)) + text + arrays


def _damaged_frame(draw, kind, data):
    if kind != b"B" or draw.random() < 0.2:
        return changed_json(draw, data, CANARY) if kind != b"B" and draw.random() < 0.8 else mutate(draw, data)
    with suppress(ValueError, struct.error):  # it was changed before
        covered, values, arrays = split_batch(data)
        change = draw.randrange(4)
        if change == 0:
            covered = windows.COVERED.pack(*(draw.choice([0, 1, 2**31, 2**63, 2**64 - 1]) for _ in range(2)))
        elif change == 1:
            arrays = mutate(draw, arrays)
        else:
            values = changed(draw, values, CANARY)
        return joined_batch(covered, values, arrays)
    return mutate(draw, data)


# -- windows ----------------------------------------------------------------------------------------------------------

ENCODING = EncodingOptions(block_size=16, tokenizer=OPTIONS["tokenizer"], outputs=True)
NAMES = ["window-20300317T174640Z", "window-20300317T174740Z"]
START_S = 1_900_000_000.0


def window_examples(folder: Path) -> Iterator[None]:
    """Windows of a recorder that was killed, one that had ended and one that was open: three profiles."""
    for profile, linked, sealed in (("exact", False, 0), ("standard", True, 0), ("strict", True, 1)):
        key, release = Key(b"sixteen bytes..."), ReleaseOptions(profile=profile)
        live = LiveEncoding.of(replace(ENCODING, outputs=profile != "strict"), release)
        settings = windows.WindowSettings(live, key if linked else None, linked, linked, ".jsonl", 1)
        state = folder / windows.STATE
        state.mkdir(mode=0o700)
        Ledger(state / "counts").accepted += 24
        encoder = SourceEncoder(SOURCES["follow"], live, key)
        encoder._name = "live/follow"  # random, else
        for number, name in enumerate(NAMES):
            header = settings.header(name, START_S + 60 * number, key) | {"accepted": 12 * number, "dropped": 0}
            file = windows.WindowFile(state / f"{name}.window", header)
            for part in range(2):
                lines = [row(12 * number + 6 * part + i).encode() for i in range(6)] + [b'{"input": 7}'] * part
                batch = encoder.batch(lines)
                file.source("follow", encoder.description())
                file.batch(batch, covered=6, malformed=part)
            file.close() if number else file.finish(accepted=12, dropped=1)
        for name in NAMES[:sealed]:  # there is an index of links then
            sealing.seal(state / f"{name}.window", folder)
        yield


class _Feeder:
    restarts = 0

    def __init__(self, *_, **__):
        pass

    def start(self):
        """Nothing is fed."""

    def end(self):
        """Nothing was."""
        return True

    def counts(self):
        """Nothing."""
        return {}


class _Sealer(sealing.Sealer):
    """Seals in this process, at once."""

    def __init__(self, folder, supervisor, *, on_sealed):
        self._folder, self._on_sealed, self._say = folder, on_sealed, supervisor.say

    def seal(self, path):
        """Seal a window, as the process does that a recorder starts."""
        message, out = io.StringIO(json.dumps({"path": str(path), "folder": str(self._folder)})), io.StringIO()
        with patch.object(sys, "stdin", message), patch.object(sys, "stdout", out), patch.object(signal, "signal"):
            sealing.run()
        values = json.loads(out.getvalue().splitlines()[-1])
        result = sealing.Sealed(**values) if "name" in values else sealing.Sealed(path.stem, [], error=values["error"])
        self._on_sealed(result)
        self._say(sealing.sentence_of(result) or "")

    def end(self):
        """Nothing waits."""


def use_windows(draw: random.Random, name: str) -> None:
    """A recorder starts beside the windows: it seals what can be sealed, and names and keeps what cannot."""
    before = {path.name for path in Path(windows.STATE).glob("*.window")}
    told: list[str] = []
    with patch.object(recorder, "Feeder", _Feeder), patch.object(recorder, "Sealer", _Sealer):
        options = dict(window_s=60.0, clock=lambda: START_S + 90, on_message=told.append)
        with recorder.Recorder(".", ENCODING, ReleaseOptions(profile="exact"), **options) as running:
            assert running.put("follow", b"7") and running.counts().accepted == 1
    text = "\n".join(told)
    assert not any(form in text for form in WORDS), f"shows content: {text}"
    assert "internal error" not in text and "Traceback" not in text, text
    for window in before:
        stem = window.removesuffix(".window")
        kept = list(Path(windows.STATE).glob(f"{window}*"))
        assert not kept or stem in text, f"{window} is kept, and not named: {text}"
        if Path(name).name not in (window, "links") and "another engine" not in text:  # not what was damaged
            assert Path(f"{stem}.jsonl").is_file() and not kept, f"{window} is lost: {text}"
    outside = {path.name for path in Path("..").iterdir()} - {"case", "said.txt"}
    assert not outside, f"written outside of the folder: {outside}"
    for path in Path(".").glob("*.jsonl"):
        assert not (reasons := broken(reading.read(path))), reasons
        assert kvtrace.privacy.audit(path).passed, f"{path} does not pass its audit"


# -- links ------------------------------------------------------------------------------------------------------------


SECTIONS = {  # of a window's sidecar
    "note": CANARY, "log": {"reader": "openai", "time": "epoch seconds", "measured": ["ttft_ms"]},
    "rendering": {"engine": "vllm", "version": 1, "not_rendered": {"tools": 7}, "unsized_media": 3},
    "recording": {"sources": ["proxy"], "lost": 2, "dropped": 0},
}  # fmt: skip


def link_examples(folder: Path) -> Iterator[None]:
    """Linked windows of a recording, with sessions and domains in the second example."""
    none = np.empty(0, np.int64)
    for more in (False, True):
        for number, name in enumerate(("first.jsonl", "second.jsonl")):
            window = toy("0 1", "0 2", "3", block_size=16)
            if more:
                columns = kvtrace.trace.columns.replace_columns(
                    window, session=[0, 0, 1], parent=[-1, 0, -1], domain=[0, 0, 1]
                )
                window = Trace.from_columns(columns, block_size=16)
            settings = kvtrace.privacy.profile("standard", k=1).settings()
            counted = {"settings": settings, "k_counted": "sessions", "sampled": False}
            claims = {"profile": "standard", "release": counted}
            write(window, folder / name, meta=SECTIONS | (claims if more else {"profile": "exact"}))
            pairs = np.array([number, 5]) if more else none
            blocks = np.array([7, number, -1, 9])
            links = Links("9b", number, 60_000 * number, fingerprint_of(window), blocks, pairs, pairs)
            write_links(links, folder / name)
        yield


def use_links(draw: random.Random, name: str) -> None:
    """Join the windows, in both orders."""
    if command("join first.jsonl second.jsonl -o out.jsonl -q") == 0:
        assert command("check out.jsonl") == 0
        assert command("join second.jsonl first.jsonl -o other.jsonl -q") == 0
        assert Path("out.jsonl").read_bytes() == Path("other.jsonl").read_bytes(), "the order of windows matters"
        agree(draw, "out.jsonl")
    command(f"audit {draw.choice(['first', 'second'])}.jsonl")


# -- session models ---------------------------------------------------------------------------------------------------


def model_examples(folder: Path) -> Iterator[None]:
    """A model of two sessions with subagents, plain and compressed."""
    for name in ("model.json", "model.json.gz", "model.json.zst"):
        weka.put_all(folder / "in", weka.TREE, weka.ENDED)
        model = fit_sessions(reading.read(folder / "in"))
        shutil.rmtree(folder / "in")
        model.save(folder / name)
        yield


def use_models(draw: random.Random, name: str) -> None:
    """Load the model, sample from it twice, and run the command."""
    model, seed = outcome(load_model, name), draw.randrange(9)
    if not isinstance(model, str):
        again = type(model).from_dict(json.loads(json.dumps(model.to_dict())))
        assert json.dumps(again.to_dict()) == json.dumps(model.to_dict()), "saved again it is another model"
        one, other = (outcome(sample, model, sessions=5, seed=seed, workers=count) for count in (1, 2))
        same(one, other, "a sample of two workers")
        assert isinstance(one, str) or not (reasons := broken(one)), reasons
    if command(f"synthesize {name} -o out.jsonl -q --sessions {draw.choice([3, 20])} --seed {seed}") == 0:
        assert command("check out.jsonl") == 0


# -- recordings -------------------------------------------------------------------------------------------------------


def recording_examples(folder: Path) -> Iterator[None]:
    """What each engine and benchmark writes, and the costs that were fitted to one of them."""
    costs = None
    for name, make in recordings.FILES.items():
        with patch.object(recordings, "STEPS", range(30)), patch.object(recordings, "ROWS", 30):
            path = make(folder)
        if name == "vllm-requests":
            gauges = "t,running,waiting,kv_cache_pct\n" + "".join(f"{i}.5,{i % 3},{i % 2},{i}\n" for i in range(20))
            (folder / "timeseries.csv").write_text(gauges)
            calibration = "calibrate . --model llama-3.1-8b --gpu h100 --gpus 2 -o costs.json -q --holdout 0"
            with quick_fits(), patch.object(sys, "stdout", io.StringIO()):
                assert run(calibration.split()) == 0
            costs = (folder / "costs.json").read_bytes()
        assert costs is not None
        (folder / "costs.json").write_bytes(costs)
        (folder / "log.name").write_text("." if path == folder else path.name)
        for file in folder.iterdir():
            file.write_bytes(file.read_bytes().replace(b"secret", CANARY.encode()))
        yield


def use_recordings(draw: random.Random, name: str) -> None:
    """Read it; calibrate now and then, validate with the costs, and plan with them."""
    log, latencies.REPLICATES = Path("log.name").read_text(), 20
    recording = outcome(read_recording, log)
    if not isinstance(recording, str):
        times = recording.arrival_s, recording.first_s, recording.ended_s
        assert all(np.isfinite(values).all() for values in times), "times are not finite"
        assert (np.diff(times[0]) >= 0).all() and (times[0] <= times[1]).all() and (times[1] <= times[2]).all()
        assert not (reasons := broken(recording.trace)), reasons
    outcome(read_costs, "costs.json")
    choice = draw.random()
    if choice < 0.15:
        with quick_fits() if choice < 0.1 else nullcontext():
            command(f"calibrate {log} --model llama-3.1-8b --gpu h100 --gpus 2 -o new.json -q --holdout 0")
    elif choice < 0.3:
        command(f"validate {log} --model llama-3.1-8b --gpu h100 --gpus 2 --per-request out.csv -q")
    else:
        command(f"validate {log} --costs costs.json -q" + " --html out.html" * (choice < 0.4))


# -- Weka and agentic rows --------------------------------------------------------------------------------------------


def weka_examples(folder: Path) -> Iterator[None]:
    """Sessions with subagents: a file each way, and folders of files of each kind."""
    texts = [json.dumps(one | {"note": CANARY}).encode() for one in (weka.TREE, weka.ENDED)]
    two = json.dumps(weka.ENDED | {"hash_id_scope": "global", "id": CANARY}, indent=1).encode()
    first, second = texts
    packed = {"a.json": first, "b.json.gz": gzip.compress(second, mtime=0), "c.json.zst": zstandard.compress(two)}
    for name, data in packed.items():
        (folder / name).write_bytes(data)
        yield
    (folder / "in").mkdir()
    for name, data in packed.items():
        (folder / "in" / name).write_bytes(data)
    yield


def agentic_examples(folder: Path) -> Iterator[None]:
    """Rows of both versions, with dependencies of every kind, as by hand, and one that we wrote."""
    rows = [
        agentic.request("b", ("a", "completion", 100, "sequence"), at=130, ids=(1, 2, 9)),
        agentic.request("c", ("a", "dispatch", 5, "spawn"), agent="child", at=5, ids=(7,), recorded_api_time_ms=20),
        agentic.request("a", at=0, recorded_api_time_ms=30.5, priority=3, note=CANARY),
        agentic.request("d", play="q", at=70, ids=(1,), cached_tokens=2, ttft_ms=1.5),
        agentic.request("e", ("b", "completion", 1, "sequence"), ("c", "completion", 1, "join"), at=200, ids=(1, 2, 9)),
    ]
    agentic.put(folder, agentic.HEADER, *rows, name="a.jsonl")
    yield
    first = [
        {"request_id": "b", "session_id": CANARY, "input_length": 7, "output_length": 2, "hash_ids": [1, 2],
         "wait_for": ["a"], "delay": 5, "timestamp": 3},
        {"request_id": "a", "input_length": 4, "output_length": 1, "hash_ids": [1], "wait_for": [], "timestamp": 0},
        {"request_id": "c", "input_length": 4, "output_length": 1, "hash_ids": [3], "wait_for": ["a", "b"],
         "delay": 0.5, "tool_wait_ms": 2},
    ]  # fmt: skip
    agentic.put(folder, *first, name="a.jsonl")
    yield
    weka.put(weka.TREE, folder / "t.json")
    writing.write(reading.read(folder / "t.json"), folder / "a.jsonl", format="agentic-mooncake")
    (folder / "t.json").unlink()
    yield


ON_TRACES = [
    "analyze {}", "check {}", "audit {}", "curve {}", "simulate {} --capacity 40 -q", "convert {} -o out.jsonl -q",
    "convert {} -o out.json --to weka -q --extra", "convert {} -o out.sessions -q", "convert {} -o out.parquet -q",
    "convert {} -o out.jsonl --to agentic-mooncake -q", "convert {} -o out.dataset -q", "synthesize {} -o out.jsonl -q",
    "anonymize {} -o out.jsonl -q", "release {} -o out.jsonl -q", "explain {} --capacity 4 -q",
    "synthesize {} --save-model out.json -q", "simulate {} --capacity 40 --over-time 1s --json", "compare {} {}",
]  # fmt: skip


def use_traces(draw: random.Random, name: str) -> None:
    """One command, and all the ways to read and to write."""
    place = "in" if name.startswith("in/") else name
    command(draw.choice(ON_TRACES).replace("{}", place))
    agree(draw, place)


KINDS = {
    "windows": Kind(window_examples, use_windows),
    "links": Kind(link_examples, use_links),
    "models": Kind(model_examples, use_models),
    "recordings": Kind(recording_examples, use_recordings),
    "weka": Kind(weka_examples, use_traces),
    "agentic": Kind(agentic_examples, use_traces),
}


# -- cases ------------------------------------------------------------------------------------------------------------


def examples_of(kind: Kind) -> list[Files]:
    """The files of each example."""
    found: list[Files] = []
    with tempfile.TemporaryDirectory() as name:
        folder, before = Path(name), os.getcwd()
        os.chdir(folder)
        try:
            for _ in kind.examples(folder):
                files = (path for path in sorted(folder.rglob("*")) if path.is_file())
                found.append({str(path.relative_to(folder)): path.read_bytes() for path in files})
                for path in folder.iterdir():
                    path.unlink() if path.is_file() else shutil.rmtree(path)
        finally:
            os.chdir(before)
    return found


UNCHANGED = ("/lock", "log.name")  # files of an example that no case changes


def case(name: str, examples: list[Files], seed: int, number: int) -> None:
    """Run a case in the present folder, which is empty."""
    draw = random.Random(f"{name} {seed} {number}")
    files = draw.choice(examples)
    file = draw.choice([file for file in files if not file.endswith(UNCHANGED) and not file.startswith("window-")])
    use(name, {**files, file: damaged(draw, file, files[file])[:MOST]}, file, draw)


def found_before(name: str, examples: list[Files], find: dict[str, Any]) -> None:
    """Run a past find in the present folder: its value, or its bytes, in the place of an example's."""
    files, file = examples[find["example"]], find["file"]
    use(name, {**files, file: _with_find(files[file], find)}, file, random.Random(0))


def use(name: str, files: Files, file: str, draw: random.Random) -> None:
    """Write the files, and do what is done with their kind; `file` is the one that was changed."""
    for path, data in ((Path(path), data) for path, data in files.items()):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o600)
    KINDS[name].use(draw, file)


def _with_find(data: bytes, find: dict[str, Any]) -> bytes:
    if "data" in find:
        return bytes.fromhex(find["data"])
    if find["file"].startswith(windows.STATE):
        header, line_end, rest = data.partition(b"\n")
        if "frame" not in find:
            return _with_value(header, find) + line_end + rest
        header, frames = split_window(data)
        kind, inner = frames[find["frame"]]
        if kind == b"B":
            covered, values, arrays = split_batch(inner)
            inner = joined_batch(covered, json.loads(_with_value(json.dumps(values).encode(), find)), arrays)
        else:
            inner = _with_value(inner, find)
        frames[find["frame"]] = (kind, inner)
        return joined_window(header, frames)
    return _with_value(data, find)


def _with_value(data: bytes, find: dict[str, Any]) -> bytes:
    """JSON of a value or of rows with the find's value in its place."""
    rows = [json.loads(line) for line in data.splitlines()] if find["file"].endswith("l") else json.loads(data)
    value = rows
    for key in find["at"][:-1]:
        value = value[key]
    value[find["at"][-1]] = find["value"]
    return b"\n".join(json.dumps(row).encode() for row in rows) if isinstance(rows, list) else json.dumps(rows).encode()


def tasks_of(name: str, seed: int, numbers: Iterable[int]) -> Iterator[tuple[str, Callable[[], None]]]:
    """The past finds of a kind, and its cases."""
    examples = examples_of(KINDS[name])
    for number, find in enumerate(map(json.loads, (FINDS / "kinds.jsonl").read_text().splitlines())):
        if find["kind"] == name:
            yield f"find {number}", partial(found_before, name, examples, find)
    for number in numbers:
        yield f"--seed {seed} --case {number}", partial(case, name, examples, seed, number)


BATCH, BATCH_S = 250, 10.0  # cases of a child, and the seconds after which it begins no other


def faults_of(tasks: Iterable[tuple[str, Callable[[], None]]]) -> Iterator[str | None]:
    """What is wrong with each named task, or None. A child runs many; one that dies is followed by the next one."""
    note, tasks, batch = mmap.mmap(-1, 1 << 12), iter(tasks), []
    while batch := batch or list(islice(tasks, BATCH)):
        with tempfile.TemporaryDirectory() as folder:
            status = trial.in_child(partial(_batch, batch, folder, note), seconds=600, memory=6 << 30)
        done = int(note[:8].strip(b"\0") or b"0")
        yield from [None] * done
        if status != 0:
            text = bytes(note[8:]).strip(b"\0").decode(errors="replace")
            yield f"{batch[done][0]}: {text or why(status)}"
        del batch[: done + (status != 0)]


def why(status: int) -> str:
    """The exit status of a child in words."""
    hang = status in (-signal.SIGPROF, -signal.SIGALRM)
    return f"takes more than {SECONDS} s" if hang else trial.why(status) or f"status {status}"


def _batch(tasks, folder, note) -> int:
    """Run tasks in a child until one is at fault; the note has how many were not, and what is wrong with the next."""
    note[:] = bytes(len(note))
    os.chdir(folder)
    with open("said.txt", "ab", buffering=0) as said, open(os.devnull, "wb") as null:
        os.dup2(said.fileno(), 2)
        os.dup2(null.fileno(), 1)
    sys.stderr, sys.stdout = (io.TextIOWrapper(os.fdopen(number, "wb", 0, closefd=False)) for number in (2, 1))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    warnings.simplefilter("ignore")  # as the command does
    os.fsync = lambda handle: None  # type: ignore[assignment]
    end = time.monotonic() + BATCH_S
    for done, (_, task) in enumerate(tasks):
        note[:8] = str(done).encode().ljust(8, b"\0")
        if time.monotonic() > end:
            return 0
        os.mkdir("case")
        os.chdir("case")
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(20 * SECONDS)
        if fault := _measured(task):
            text = fault.encode()[-4000:]
            note[8 : 8 + len(text)] = text
            return 1
        os.chdir(folder)
        shutil.rmtree("case")
    note[:8] = str(len(tasks)).encode().ljust(8, b"\0")
    return 0


def _measured(task: Callable[[], None]) -> str | None:
    """Run a task; what is wrong with it, or None."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts from here
    before, start = _memory("VmRSS"), time.process_time()
    try:
        task()
    except Exception as error:
        return "".join(traceback.format_exception(error, limit=-3, chain=False))
    seconds, size = time.process_time() - start, _memory("VmHWM") - before
    if seconds > CPU_S:
        return f"takes {seconds:.1f} s of processor time"
    return f"takes {size >> 20} MB" if size > MEMORY else None


def _memory(name: str) -> int:
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) << 10
    return 0


def main() -> int:
    """Run cases until the time or their number is over; the status is 1 if any found a fault."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.kinds", description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="[default: all]")
    parser.add_argument("--seconds", type=int, default=30, help="for each kind")
    parser.add_argument("--cases", type=int, help="how many of each kind, in place of a time")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--case", type=int, help="run this one only")
    chosen = parser.parse_args()
    import_all()
    for engine in dictionary.ENGINES:  # an audit of ids that are no numbers makes it, once
        dictionary.digests(engine)
    faults = 0
    for name in chosen.kinds or KINDS:
        stop = float("inf") if chosen.cases or chosen.case is not None else time.monotonic() + chosen.seconds
        several = range(chosen.cases or 10**9) if chosen.case is None else [chosen.case]
        here, count, next_line = 0, 0, time.monotonic() + 60
        for count, fault in enumerate(faults_of(tasks_of(name, chosen.seed, several)), 1):
            here += fault is not None
            if fault:
                print(f"{name} {fault}", flush=True)
            if time.monotonic() > next_line:
                print(f"{name}: {count:,} cases, {here:,} faults", flush=True)
                next_line += 60
            if time.monotonic() > stop:
                break
        print(f"{name}, seed {chosen.seed}: {count:,} cases, {here:,} faults", flush=True)
        faults += here
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
