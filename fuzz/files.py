"""Whole commands on damaged files: traces, sidecars, models, configs, logs. One line, a known status, little memory.

    python -m fuzz.files --seconds 60 [--seed 7] [--case 12]

Each case changes a small file a little, and runs a command on it in a child process that has 20 s and 2 GiB. What the
command prints must be one line without the canary that the file's texts hold; a bug is an "internal error", a
traceback, a crash, or a limit that is reached. The seed and the case of a failure run it again.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import io
import json
import os
import pkgutil
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

import kvtrace
from fuzz.mutate import mutate
from fuzz.seeds import FINDS, HERE, LOGS, session_files
from kvtrace.cli import run
from kvtrace.formats.links import Links, fingerprint_of, write_links
from kvtrace.formats.reading import read
from kvtrace.synthesis.attach_fitting import fit
from kvtrace.synthesis.session_fitting import fit_sessions
from kvtrace.text import trial
from kvtrace.trace.building import toy
from tests.attacks.canary import CANARY, WORDS
from tests.unaudited import write

SECONDS, MEMORY = 20, 2 << 30  # an output of 2**31 tokens is 1.1 GB of numbers of blocks
TINY = HERE / "data/tokenizers/tiny"
ON_TRACES = [
    "analyze {}", "check {}", "audit {}", "curve {}", "compare {} good.jsonl", "simulate {} --capacity 40 -q",
    "simulate {} --capacity 40 --over-time 1s --json", "simulate {} --capacity 40 --instances 2 -q",
    "release {} -o out.jsonl -q", "convert {} -o out.jsonl -q", "convert {} -o out.jsonl --to bailian -q",
    "convert {} -o out.jsonl --to vllm -q", "synthesize {} -o out.jsonl -q", "audit good.jsonl --against {}",
    "sweep {} --capacity 40 -o out.csv -q", "convert {} -o out.parquet -q", "anonymize {} -o out.jsonl -q",
    "plan {} --gpu h100 --gpus 4 --model-config model_config.json", "explain {} --capacity 4 -q",
    "tune {} --capacity 4 -q",
]  # fmt: skip
JOIN = ["join first.jsonl second.jsonl -o out.jsonl -q"]
COMMANDS = {
    "good.jsonl": ON_TRACES, "bailian.jsonl": ON_TRACES, "good.parquet": ON_TRACES, "good.jsonl.gz": ON_TRACES,
    "good.jsonl.zst": ON_TRACES,
    "session.json": [*ON_TRACES, "convert {} -o out.sessions -q", "convert {} -o out.json --to weka -q --extra"],
    "session.json.gz": ON_TRACES,
    "good.jsonl.meta.json": [command.replace("{}", "good.jsonl") for command in ON_TRACES],
    "model.json": ["synthesize {} -o out.jsonl -q --requests 50", "synthesize {} -o out.jsonl -q"],
    "sessions_model.json": ["synthesize {} -o out.jsonl -q --sessions 20", "synthesize {} -o out.jsonl -q"],
    "day.csv": ["synthesize good.jsonl -o out.jsonl -q --rates {}"],
    "rates.jsonl": ["synthesize model.json model.json:2 -o out.jsonl -q --tenants 3 --rates {}"],
    "table.json": ["simulate good.jsonl --capacity 3 --policy reuse-density:{} -q"],
    "second.jsonl": JOIN, "second.jsonl.links": JOIN, "second.jsonl.meta.json": JOIN,
    "model_config.json": [
        "plan good.jsonl --gpu h100 --gpus 4 --model-config {}",
        "simulate good.jsonl --gpu h100 --gpus 4 --model-config {} -q",
        "simulate good.jsonl --capacity 40 --model-config {} -q",
    ],
    "gpu.json": ["plan good.jsonl --gpu {} --gpus 4 --model-config model_config.json"],
    "kv_events.jsonl": ["anonymize {} -o out.jsonl -q"],
    "litellm_hashes.jsonl": ["anonymize {} -o out.jsonl -q"],
    "ucm.jsonl": ["anonymize {} -o out.jsonl -q"],
    "log.jsonl": ["anonymize {} -o out.jsonl -q --tokenizer tiny --block-size 4", "lint {} -q --tokenizer tiny"],
    "log.jsonl.gz": ["anonymize {} -o out.jsonl -q --tokenizer tiny --block-size 4"],
    "tiny/tokenizer.json": ["anonymize log.jsonl -o out.jsonl -q --tokenizer tiny --block-size 4"],
    "tiny/tokenizer_config.json": ["anonymize log.jsonl -o out.jsonl -q --tokenizer tiny --block-size 4"],
    "chat.jinja": ["anonymize chats.jsonl -o out.jsonl -q --tokenizer tiny --chat-template {} --block-size 4"],
}  # fmt: skip


def import_all() -> None:
    """Import the package's modules here, so that no case imports them in its child."""
    for module in pkgutil.walk_packages(kvtrace.__path__, "kvtrace."):
        if not module.name.endswith("__main__"):
            with suppress(ImportError):
                importlib.import_module(module.name)


def prepare(folder: Path) -> None:
    """The files that cases change, in a folder."""
    shutil.copytree(TINY, folder / "tiny")
    trace = toy("0 1", "0 2", "0 1 3", "4", "0 1", block_size=16, gap_ms=700.0)
    for name in ("good.jsonl", "good.parquet", "good.jsonl.zst", "bailian.jsonl"):
        write(trace, folder / name, **({"format": "bailian"} if "bailian" in name else {}))
    write(trace, folder / "good.jsonl", meta={"profile": "exact", "release": {"settings": {"k": 1}}, "note": CANARY})
    (folder / "good.jsonl.gz").write_bytes(gzip.compress((folder / "good.jsonl").read_bytes()))
    (folder / "session.json").write_bytes(
        session_files()[0].replace(b'"status": "c', f'"note": "{CANARY}", "status": "c'.encode())
    )
    (folder / "session.json.gz").write_bytes(gzip.compress((folder / "session.json").read_bytes()))
    (folder / "model.json").write_text(json.dumps(fit(trace).to_dict()))
    (folder / "sessions_model.json").write_text(json.dumps(fit_sessions(read(folder / "session.json")).to_dict()))
    for name in ("kv_events.jsonl", "litellm_hashes.jsonl", "ucm.jsonl"):
        shutil.copy(LOGS / name, folder)
    shutil.copy(Path(kvtrace.__file__).parent / "cache/policies/reuse_density.json", folder / "table.json")
    (folder / "day.csv").write_text("time,rate\n00:00,2\n08:30,10\n20:00,0.5\n")
    (folder / "rates.jsonl").write_text('{"time": 0, "relative": 1}\n{"time": 36000, "relative": 3.5}\n')
    _prepare_windows(folder)
    config = json.loads((HERE / "data/models/mixtral-8x7b.json").read_text())
    (folder / "model_config.json").write_text(json.dumps(config | {"note": CANARY}))
    gpu = {"name": "mine", "flops": 1e15, "bandwidth": 3e12, "memory": 8e10, "price_per_hour": 2.5}
    (folder / "gpu.json").write_text(json.dumps(gpu))
    row = '{"timestamp": %d, "input": "the keeper counts boats ' + CANARY + '", "output": 2, "user": "kim"}\n'
    (folder / "log.jsonl").write_text("".join(row % number for number in range(4)))
    (folder / "log.jsonl.gz").write_bytes(gzip.compress((folder / "log.jsonl").read_bytes()))
    chat = {"timestamp": 0, "input": [{"role": "user", "content": f"boats {CANARY}"}], "output": 2}
    (folder / "chats.jsonl").write_text(json.dumps(chat) + "\n")
    source = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    (folder / "chat.jinja").write_text(source)


def _prepare_windows(folder) -> None:
    """Two linked windows of a recording."""
    none = np.empty(0, np.int64)
    for number, name in enumerate(("first.jsonl", "second.jsonl")):
        window = toy("0 1", "0 2", block_size=16)
        write(window, folder / name, meta={"profile": "exact"})
        blocks = np.array([number, 2, 3 + number])
        write_links(Links("9b", number, 60_000 * number, fingerprint_of(window), blocks, none, none), folder / name)


def values(draw: random.Random, data: bytes, word: str = CANARY) -> bytes:
    """JSON with one value in place of another."""
    whole = json.loads(data)
    odd = draw.choice([None, True, -1, 0, 2**31, 2**53, 2**63, 10**30, 1e308, 0.5, "", word, [], {}, [[]], {"": []}])
    places = list(_places(whole))
    if not places:
        return json.dumps(odd).encode()
    inner, key = draw.choice(places)
    if draw.random() < 0.2 and isinstance(inner, dict):
        del inner[key]
    else:
        inner[key] = odd
    return json.dumps(whole).encode()


def _places(value) -> Iterator[tuple]:
    for key, inner in [*(value.items() if isinstance(value, dict) else enumerate(value[:50]))]:
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


def changed(draw: random.Random, name: str, data: bytes) -> bytes:
    """A file with a few changes: of bytes, of JSON values, of what a compressed file holds."""
    if name.endswith(".gz") and draw.random() < 0.7:
        return gzip.compress(changed(draw, name.removesuffix(".gz"), gzip.decompress(data)))
    if name.endswith(".jsonl") and draw.random() < 0.6:
        lines = data.splitlines()
        at = draw.randrange(len(lines))
        lines[at] = values(draw, lines[at])
        return b"\n".join(lines) + b"\n"
    if name.endswith((".json", ".links")) and draw.random() < 0.7:
        return values(draw, data, "mine" if name == "gpu.json" else CANARY)  # a GPU's name is shown
    return mutate(draw, data)


def case(folder: Path, seed: int, number: int) -> str | None:
    """Run a case; what is wrong with what the command did, or None."""
    draw = random.Random(f"{seed} {number}")
    name = draw.choice(list(COMMANDS))
    command = draw.choice(COMMANDS[name]).replace("{}", name)
    return _tried(folder, name, changed(draw, name, (folder / name).read_bytes()), command)


def found_before(folder: Path) -> Iterator[str | None]:
    """Run each past find: what is wrong with what its command does, or None."""
    for find in map(json.loads, (FINDS / "files.jsonl").read_text().splitlines()):
        value = whole = json.loads((folder / find["file"]).read_bytes())
        for key in find["at"][:-1]:
            value = value[key]
        value[find["at"][-1]] = find["value"]
        yield _tried(folder, find["file"], json.dumps(whole).encode(), find["command"])


def _tried(folder, name, data, command) -> str | None:
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(data)
    try:
        status = trial.in_child(lambda: _run(folder, command.split()), seconds=SECONDS, memory=MEMORY)
        text = (folder / "said.txt").read_text(errors="replace")
        fault = fault_of(status, text, command)
        return fault and f"{fault}\n  {name}: kvtrace {command}\n  {text[-400:]}"
    finally:
        (folder / name).write_bytes(whole)
        for path in folder.glob("*out.*"):
            path.unlink() if path.is_file() else shutil.rmtree(path)


def _run(folder, arguments) -> int:
    os.chdir(folder)
    with open("said.txt", "wb", buffering=0) as said, open(os.devnull, "wb") as null:
        os.dup2(said.fileno(), 2)
        os.dup2(null.fileno(), 1)
        sys.stderr, sys.stdout = (io.TextIOWrapper(os.fdopen(number, "wb", 0, closefd=False)) for number in (2, 1))
        try:
            return run(arguments)
        finally:
            sys.stderr.flush()


def fault_of(status, text, command) -> str | None:
    if status not in (0, 2, 3, 4, 6):
        return trial.why(status, SECONDS) or f"status {status}"
    if any(form in text for form in WORDS):
        return "shows content"
    if "Traceback" in text or (status and command.endswith("-q") and text.count("\n") > 1):
        return "more than one line"
    return None


def main() -> int:
    """Run cases until the time or their number is over; the status is 1 if any found a fault."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.files", description=__doc__)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--cases", type=int, help="how many, in place of a time")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--case", type=int, help="run this one only")
    chosen = parser.parse_args()
    faults, number = 0, 0
    stop = float("inf") if chosen.cases else time.monotonic() + chosen.seconds
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        import_all()
        for fault in filter(None, found_before(Path(folder)) if chosen.case is None else ()):
            faults += 1
            print(f"a past find: {fault}", flush=True)
        for number in [chosen.case] if chosen.case is not None else range(chosen.cases or 10**9):
            if fault := case(Path(folder), chosen.seed, number):
                faults += 1
                print(f"--seed {chosen.seed} --case {number}: {fault}", flush=True)
            if time.monotonic() > stop:
                break
    print(f"{number + 1:,} cases, {faults:,} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
