"""Whole commands on the worst small files: each has a bound of processor time and memory in the size of its input.

    python -m fuzz.worst [--only long-output] [--command plan]

Each file has at most 100 kB. The harness lists each command that takes two seconds of processor time or 500 MB more
than on an ordinary trace, or that ends with an internal error. The table of bounds is in docs/performance.md.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fuzz.files import TINY, _run, import_all

SECONDS, MEMORY = 20, 3 << 30  # of processor time, and bytes of address space, of which libraries reserve two GB


def lines(rows: Iterable[Any]) -> bytes:
    """Rows of JSON."""
    return b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows)


def row(time: float, ids: list[int], **more: Any) -> dict[str, Any]:
    """A row of a trace with blocks of 16 tokens."""
    return {"timestamp": time, "input_length": 16 * len(ids), "output_length": 4, "hash_ids": ids} | more


def chat(number: int, before: int) -> dict[str, Any]:
    """A row of a chat, after another one."""
    return row(number, [0, 1 + number], chat_id=number + 1, parent_chat_id=before, turn=number + 1, type="text")


def weka(requests: list[Any]) -> bytes:
    """A session of an agent."""
    return json.dumps({"id": "s", "models": ["m"], "block_size": 64, "hash_id_scope": "local",
                       "requests": requests}).encode()  # fmt: skip


def call(time: float, ids: list[int], **more: Any) -> dict[str, Any]:
    """A request of a session."""
    return {"t": time, "type": "n", "model": "m", "in": 64 * len(ids), "out": 3, "hash_ids": ids} | more


def lengths(tokens: int, rows: int) -> bytes:
    """Rows without ids."""
    return lines({"timestamp": i, "input_length": tokens, "output_length": 1} for i in range(rows))


def served(prompt: int, output: int, seconds: int = 1) -> bytes:
    """LiteLLM's log of 40 calls, a recording."""
    return lines(
        {"call_type": "acompletion", "status": "success", "startTime": 10 * i, "completionStartTime": 10 * i + 0.5,
         "endTime": 10 * i + 0.5 + seconds, "prompt_tokens": prompt, "completion_tokens": output} for i in range(40)
    )  # fmt: skip


TRACES: dict[str, Callable[[], bytes]] = {
    "ordinary.jsonl": lambda: lines(row(100 * i, [*range(8), 8 + i]) for i in range(900)),
    "long-output.jsonl": lambda: lines([row(0, [0, 1]), row(5, [0, 2], output_length=2**31 - 1)]),
    "long-outputs.jsonl": lambda: lines(row(i, [0, 1 + i], output_length=2**20) for i in range(1000)),
    "long-input.jsonl": lambda: lines([row(0, [0], input_length=2**24), row(5, [0], input_length=2**24)]),
    "no-ids.jsonl": lambda: lengths(2**24, 1500),
    "late.jsonl": lambda: lines([row(0, [0, 1]), row(2**53, [0, 2])]),
    "far.jsonl": lambda: lines([row(2**62, [0, 1]), row(2**62 + 10**6, [0, 2])]),
    "gaps.jsonl": lambda: lines(row(2.0 ** min(i, 53), [0, 1 + i]) for i in range(1000)),
    "sparse.jsonl": lambda: lines(row(i, [2**63 - 7 - 10**9 * i, 2**62 - 10**12 * i]) for i in range(1000)),
    "one-row.jsonl": lambda: lines([row(0, list(range(16_000)))]),
    "same.jsonl": lambda: lines(row(i, list(range(100))) for i in range(250)),
    "tree.jsonl": lambda: lines(row(100 * i, list(range(i + 1))) for i in range(190)),
    "reverse.jsonl": lambda: lines(row(i, list(range(190 - i))) for i in range(190)),
    "empty.jsonl": lambda: lines(row(i, []) for i in range(1300)),
    "tokens.jsonl": lambda: lines(row(i, list(range(4 * i, 4 * i + 4)), input_length=4) for i in range(1000)),
    "chain.jsonl": lambda: lines(chat(i, i or -1) for i in range(800)),
    "star.jsonl": lambda: lines(chat(i, 1 if i else -1) for i in range(800)),
    "sessions.jsonl": lambda: lines(row(i, [0, 1 + i], session_id=2**60 + i * 10**9) for i in range(1000)),
    "own-keys.jsonl": lambda: lines(row(i, [0], **{f"k{i}": i}) for i in range(1200)),
    "domains.jsonl": lambda: lines(row(i, [0, 1], domain=i) for i in range(1200)),
    "nested.jsonl": lambda: b'{"x":' + b"[" * 90_000,
    "blank.jsonl": lambda: b"\n" * 100_000,
    "words.jsonl": lambda: b"input " * 16_000,
    "members.jsonl.gz": lambda: gzip.compress(b"", mtime=0) * 5_000,
    "wrong.jsonl": lambda: lines(row(1000 - i, [5000 - i, 3], input_length=1) for i in range(1000)),
    "flat.json": lambda: weka([call(i, [1, 2 + i]) for i in range(900)]),
    "far.json": lambda: weka([call(i * 1e12, [1, 2 + i], api_time=1e12) for i in range(8)]),
    "long.json": lambda: weka([call(i, [1, 2 + i], out=2**24) for i in range(8)]),
}
LOGS: dict[str, Callable[[], bytes]] = {
    "lengths.jsonl": lambda: lengths(2**24, 1500),
    "outputs.jsonl": lambda: lines({"timestamp": i, "input": "a", "output": 2**31 - 1} for i in range(3)),
    "turns.jsonl": lambda: lines([{"id": "c", "messages": [
        {"role": ("user", "assistant")[i % 2], "content": "a"} for i in range(600)]}]),
    "word.jsonl": lambda: lines([{"timestamp": 0, "input": "a" * 95_000, "output": 2}]),
    "spaces.jsonl": lambda: lines([{"timestamp": 0, "input": " " * 95_000, "output": 2}]),
    "nested.jsonl": TRACES["nested.jsonl"], "blank.jsonl": TRACES["blank.jsonl"],
    "members.jsonl.gz": TRACES["members.jsonl.gz"],
}  # fmt: skip
RECORDINGS: dict[str, Callable[[], bytes]] = {
    "served.jsonl": lambda: served(100, 10),
    "long-prompts.jsonl": lambda: served(100_000, 5),
    "no-room.jsonl": lambda: served(1_000_000, 5),
    "fast.jsonl": lambda: served(2, 65_536),
    "one-token.jsonl": lambda: served(10, 1),
    "longest.jsonl": lambda: served(2**24, 2**24, 10**6),
}
TIME = "--gpu h100 --model llama-3.1-8b"
COMMANDS: dict[str, tuple[dict[str, Callable[[], bytes]], list[str]]] = {
    "check": (TRACES, ["{} -q"]),
    "analyze": (TRACES, ["{} -q"]),
    "audit": (TRACES, ["{} -q"]),
    "curve": (TRACES, ["{} -q"]),
    "compare": (TRACES, ["{} ordinary.jsonl"]),
    "report": (TRACES, ["{} -o out.html -q", "{} -o out.html -q " + TIME]),
    "simulate": (TRACES, [
        "{} -q", "{} -q --mode grow --capacity 40", "{} -q --engine vllm,sglang --capacity 40",
        "{} -q --over-time 1s --json --capacity 40", "{} -q --loop closed --lanes 2 " + TIME, "{} -q " + TIME,
    ]),
    "explain": (TRACES, ["{} --capacity 40 -q", "{} -q " + TIME]),
    "tune": (TRACES, ["{} --capacity 40 -q"]),
    "sweep": (TRACES, ["{} --capacity 40,50% -o out.csv -q"]),
    "plan": (TRACES, ["{} --model llama-3.1-8b -q"]),
    "release": (TRACES, ["{} -o out.jsonl -q", "{} -o out.jsonl --profile strict -q"]),
    "convert": (TRACES, ["{} -o out.jsonl -q --fold 3", "{} -o out.jsonl --to vllm -q", "{} -o out.sessions -q"]),
    "synthesize": (TRACES, [
        "{} -o out.jsonl -q", "{} -o out.jsonl -q --tenants 3", "{} -o out.jsonl -q --method tree",
    ]),
    "texts": (TRACES, ["{} -o out.txt --tokenizer tiny -q"]),
    "anonymize": (LOGS, ["{} -o out.jsonl -q --tokenizer tiny --block-size 4"]),
    "lint": (LOGS, ["{} -q --tokenizer tiny"]),
    "calibrate": (RECORDINGS, ["{} -q " + TIME]),
    "validate": (RECORDINGS, ["{} -q " + TIME]),
}  # fmt: skip


def prepare(folder: Path) -> None:
    """The files of all commands, in a folder each for traces, logs and recordings."""
    for number, files in enumerate((TRACES, LOGS, RECORDINGS)):
        (folder / str(number)).mkdir()
        shutil.copytree(TINY, folder / str(number) / "tiny")
        for name, make in files.items():
            (folder / str(number) / name).write_bytes(make())


def runs(folder: Path, command: str) -> Iterable[tuple[Path, str]]:
    """The folder and the line of each run of a command."""
    files, forms = COMMANDS[command]
    place = folder / str([TRACES, LOGS, RECORDINGS].index(files))
    for name in files:
        for form in forms:
            yield place, f"{command} {form.replace('{}', name)}"


def measured(folder: Path, line: str) -> tuple[int, float, int, str]:
    """The status of a command in a child, its seconds of processor time, its peak in MB, and what it prints."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    child = os.fork()
    if not child:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))
            os._exit(_run(folder, line.split()))
        finally:
            os._exit(99)
    _, status, used = os.wait4(child, 0)
    text = (folder / "said.txt").read_text(errors="replace")
    for path in folder.glob("*out.*"):
        path.unlink() if path.is_file() else shutil.rmtree(path)
    return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss >> 10, text


def fault(status: int, text: str) -> str | None:
    """What is wrong with how a command ended: a limit that was reached, or an error that is not a sentence."""
    if status not in (0, 2, 3, 4, 6) or "internal error" in text:
        return f"status {status}: {text.strip()[-200:]}"
    return None


def main() -> int:
    """Run all commands, and print those that are slow, large or at fault; the status is 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.worst", description=__doc__)
    parser.add_argument("--only", default="", help="files whose name contains this")
    parser.add_argument("--command", choices=COMMANDS, help="this command only")
    chosen, faults = parser.parse_args(), 0
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        import_all()
        for command in [chosen.command] if chosen.command else COMMANDS:
            base: tuple[float, int] | None = None
            for folder, line in runs(Path(name), command):
                if base is None or chosen.only in line:
                    status, seconds, peak, text = measured(folder, line)
                    base = base or (seconds, peak)
                    wrong = fault(status, text) or ((seconds > base[0] + 2 or peak > base[1] + 500) and "large or slow")
                    if wrong:
                        faults += 1
                        print(f"{seconds:6.2f} s {peak:6,} MB kvtrace {line}: {wrong}", flush=True)
    print(f"{faults:,} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
