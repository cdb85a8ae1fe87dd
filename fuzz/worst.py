"""Whole commands on the worst small files and options: each has a bound of processor time and memory.

    python -m fuzz.worst [--only long-output] [--command plan]
    python -m fuzz.worst --growth [--only chain] [--command audit]
    python -m fuzz.worst --options [--only=--instances] [--command plan]

Each file has at most 100 kB. The harness lists each command that takes two seconds of processor time or 500 MB more
than on an ordinary trace, or that ends with an internal error. The table of bounds is in docs/performance.md.

With --growth, each file has 4 and 16 times as many rows, and the harness lists what grows faster than the rows.

With --options, each option that takes a number or a text has huge and odd values, on an ordinary file: a command then
takes 10 s and 1 GB at most, and ends with a result or one line. The options are those of the command tree.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from fuzz.files import TINY, _run, import_all
from kvtrace._base.units import milliseconds
from kvtrace.cli import commands
from kvtrace.cli.completion import FileName, Name
from kvtrace.cli.help import AmountType
from kvtrace.synthesis.attach_fitting import fit
from kvtrace.trace.building import toy

Make = Callable[..., bytes]  # k -> a file of about k times 100 kB; some do not grow
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


def side(k: int) -> int:
    """Rows of a file whose blocks grow with the square of its rows."""
    return int(190 * k**0.5)


def served(prompt: int, output: int, seconds: int = 1, calls: int = 40) -> bytes:
    """LiteLLM's log of some calls, a recording."""
    return lines(
        {"call_type": "acompletion", "status": "success", "startTime": 10 * i, "completionStartTime": 10 * i + 0.5,
         "endTime": 10 * i + 0.5 + seconds, "prompt_tokens": prompt, "completion_tokens": output} for i in range(calls)
    )  # fmt: skip


TRACES: dict[str, Make] = {
    "ordinary.jsonl": lambda k=1: lines(row(100 * i, [*range(8), 8 + i]) for i in range(900 * k)),
    "long-output.jsonl": lambda k=1: lines([row(0, [0, 1]), row(5, [0, 2], output_length=2**31 - 1)]),
    "long-outputs.jsonl": lambda k=1: lines(row(i, [0, 1 + i], output_length=2**20) for i in range(1000 * k)),
    "long-input.jsonl": lambda k=1: lines([row(0, [0], input_length=2**24), row(5, [0], input_length=2**24)]),
    "no-ids.jsonl": lambda k=1: lengths(2**24, 1500 * k),
    "late.jsonl": lambda k=1: lines([row(0, [0, 1]), row(2**53, [0, 2])]),
    "far.jsonl": lambda k=1: lines([row(2**62, [0, 1]), row(2**62 + 10**6, [0, 2])]),
    "gaps.jsonl": lambda k=1: lines(row(2.0 ** min(i, 53), [0, 1 + i]) for i in range(1000 * k)),
    "sparse.jsonl": lambda k=1: lines(row(i, [2**63 - 7 - 10**9 * i, 2**62 - 10**12 * i]) for i in range(1000 * k)),
    "one-row.jsonl": lambda k=1: lines([row(0, list(range(16_000 * k)))]),
    "same.jsonl": lambda k=1: lines(row(i, list(range(100))) for i in range(250 * k)),
    "tree.jsonl": lambda k=1: lines(row(100 * i, list(range(i + 1))) for i in range(side(k))),
    "reverse.jsonl": lambda k=1: lines(row(i, list(range(side(k) - i))) for i in range(side(k))),
    "empty.jsonl": lambda k=1: lines(row(i, []) for i in range(1300 * k)),
    "tokens.jsonl": lambda k=1: lines(row(i, list(range(4 * i, 4 * i + 4)), input_length=4) for i in range(1000 * k)),
    "chain.jsonl": lambda k=1: lines(chat(i, i or -1) for i in range(800 * k)),
    "star.jsonl": lambda k=1: lines(chat(i, 1 if i else -1) for i in range(800 * k)),
    "sessions.jsonl": lambda k=1: lines(row(i, [0, 1 + i], session_id=2**60 + i * 10**9) for i in range(1000 * k)),
    "own-keys.jsonl": lambda k=1: lines(row(i, [0], **{f"k{i}": i}) for i in range(1200 * k)),
    "keys.jsonl": lambda k=1: lines(row(i, [0], **{f"k{i % 256}": i}) for i in range(1200 * k)),
    "domains.jsonl": lambda k=1: lines(row(i, [0, 1], domain=i) for i in range(1200 * k)),
    "nested.jsonl": lambda k=1: b'{"x":' + b"[" * 90_000 * k,
    "blank.jsonl": lambda k=1: b"\n" * 100_000 * k,
    "words.jsonl": lambda k=1: b"input " * 16_000 * k,
    "members.jsonl.gz": lambda k=1: gzip.compress(b"", mtime=0) * 5_000 * k,
    "wrong.jsonl": lambda k=1: lines(row(1000 * k - i, [5000 * k - i, 3], input_length=1) for i in range(1000 * k)),
    "flat.json": lambda k=1: weka([call(i, [1, 2 + i]) for i in range(900 * k)]),
    "far.json": lambda k=1: weka([call(i * 1e12, [1, 2 + i], api_time=1e12) for i in range(8)]),
    "long.json": lambda k=1: weka([call(i, [1, 2 + i], out=2**24) for i in range(8)]),
}
LOGS: dict[str, Make] = {
    "lengths.jsonl": lambda k=1: lengths(2**24, 1500 * k),
    "outputs.jsonl": lambda k=1: lines({"timestamp": i, "input": "a", "output": 2**31 - 1} for i in range(3)),
    "turns.jsonl": lambda k=1: lines([{"id": "c", "messages": [
        {"role": ("user", "assistant")[i % 2], "content": "a"} for i in range(600 * k)]}]),
    "word.jsonl": lambda k=1: lines([{"timestamp": 0, "input": "a" * 95_000 * k, "output": 2}]),
    "spaces.jsonl": lambda k=1: lines([{"timestamp": 0, "input": " " * 95_000 * k, "output": 2}]),
    "nested.jsonl": TRACES["nested.jsonl"], "blank.jsonl": TRACES["blank.jsonl"],
    "members.jsonl.gz": TRACES["members.jsonl.gz"],
}  # fmt: skip
RECORDINGS: dict[str, Make] = {
    "served.jsonl": lambda k=1: served(100, 10, calls=40 * k),
    "long-prompts.jsonl": lambda k=1: served(100_000, 5, calls=40 * k),
    "no-room.jsonl": lambda k=1: served(1_000_000, 5, calls=40 * k),
    "fast.jsonl": lambda k=1: served(2, 65_536, calls=40 * k),
    "one-token.jsonl": lambda k=1: served(10, 1, calls=40 * k),
    "longest.jsonl": lambda k=1: served(2**24, 2**24, 10**6, calls=40 * k),
}
MODEL = "--model llama-3.1-8b"
TIME = f"--gpu h100 {MODEL}"
LOOP = [f"flat.json -q --loop closed --lanes 1 {TIME}{more}" for more in ("", " --duration 1h")]
COMMANDS: dict[str, tuple[dict[str, Make], list[str]]] = {
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
    "start": (LOGS, ["{} -q --tokenizer tiny --block-size 4"]),
    "anonymize": (LOGS, ["{} -o out.jsonl -q --tokenizer tiny --block-size 4"]),
    "lint": (LOGS, ["{} -q --tokenizer tiny"]),
    "calibrate": (RECORDINGS, ["{} -q " + TIME]),
    "validate": (RECORDINGS, ["{} -q " + TIME]),
}  # fmt: skip

NUMBERS = ("1000000000", "1000000000000000000", "1e308", "0", "-1", "nan", "inf")
SHAPES = {  # option -> its texts, where these are not one number
    "--capacity": "{} {}GB {}% 40,{}", "--tiers": "hbm={} hbm=40,dram={} hbm=40,dram=4000@{}GB", "--fold": "{} 1,{}",
    "--schedule": "concurrency:{} open-loop:{}", "--block-size": "{} {}x", "--seed": "{} 0:{}", "--requests": "{} {}x",
    "--sessions": "{} {}x", "--step-rates": "{}@10s 1@{}d", "--arrivals": "rate={}/s rate=2/s,think={}s,seed=1",
    "--speculative": "ngram:{}:2 ngram:2:{}", "--domains": "shared:{}", "--queue": "{} {}GB", "--memory": "{}GB",
    "--warm-up": "{} {}d {}%", "--start-inside": "{}%-{}%", "--policy": "s3fifo:{} sieve:{} ttl:{}s slru:{}",
    "--scheduler": "long_prefill_token_threshold={} chunked_prefill_size={}", "--time-step": "{}s {}d",
}  # fmt: skip
SOURCE = "--follow word.jsonl --from-start --for 100ms -q"
FORMS = {  # command -> its lines for options, beside those of COMMANDS
    "record": ["-o out.windows --tokenizer tiny " + SOURCE],
    "watch": [f"--tokenizer tiny {form} {SOURCE}" for form in ("--capacity 40 --json", f"--json {MODEL}")],
    "models": ["llama-3.1-8b --gpu h100"],
    "curve": ["{} -q --sample 50%"],
    "analyze": ["{} -q --engine vllm " + MODEL],
    "simulate": ["{} -q --capacity 40 --instances 2", "{} -q --schedule concurrency:4", *LOOP],
    "plan": ["{} --model llama-3.1-8b --gpu h100 -q", "flat.json --loop closed -q " + TIME],
    "explain": LOOP,
    "sweep": ["model.json --capacity 40 -o out.csv -q"],
    "synthesize": ["{} -o out.jsonl -q --tenants 3 --workers 2", "model.json -o out.jsonl -q"],
    "anonymize": ["{} -o out.jsonl -q --tokenizer tiny --runner local"],
}  # fmt: skip
ORDINARY = ("ordinary.jsonl", "word.jsonl", "served.jsonl")  # of traces, logs and recordings
WORDS = (FileName, Name, click.Choice, click.types.BoolParamType)  # types of options without numbers
ENDLESS = {"--for", "--interval"}  # of a service, whose time is the user's


def prepare(folder: Path, k: int = 1) -> None:
    """The files of all commands, of about k times 100 kB, in a folder each for traces, logs and recordings."""
    folder.mkdir(exist_ok=True)
    for number, files in enumerate((TRACES, LOGS, RECORDINGS)):
        (folder / str(number)).mkdir()
        shutil.copytree(TINY, folder / str(number) / "tiny")
        for name, make in files.items():
            (folder / str(number) / name).write_bytes(make(k))
    (folder / "0/model.json").write_text(json.dumps(fit(toy("0 1", "0 2", "0 1 3", block_size=16)).to_dict()))


def runs(folder: Path, command: str) -> Iterable[tuple[Path, str]]:
    """The folder and the line of each run of a command."""
    files, forms = COMMANDS[command]
    place = folder / str([TRACES, LOGS, RECORDINGS].index(files))
    for name in files:
        for form in forms:
            yield place, f"{command} {form.replace('{}', name)}"


def values(option: click.Parameter) -> Iterator[str]:
    """The values of an option that are tried: its limits, numbers in each of its shapes, of refused ones the first."""
    kind, refused = option.type, False
    unit = " {}d" if isinstance(kind, AmountType) and kind.parse is milliseconds else ""
    if isinstance(kind, AmountType):
        yield from (f"{limit:.0f}" for limit in (kind.least, kind.most) if limit is not None)
    for shape in SHAPES.get(option.opts[-1], "{}" + unit).split():
        for text in (shape.replace("{}", number) for number in NUMBERS):
            try:
                if isinstance(kind, AmountType):
                    kind.convert(text, option, None)
            except click.UsageError:
                if refused:
                    continue
                refused = True
            yield text


def option_runs(folder: Path, command: str, forms: slice = slice(None)) -> Iterator[tuple[Path, str]]:
    """The folder and the line of each run of some forms of a command, with an odd value of one of its options."""
    files, usual = COMMANDS.get(command, (LOGS, []))
    number = [TRACES, LOGS, RECORDINGS].index(files)
    for option in commands.commands[command].params:
        name, is_word = option.opts[-1], isinstance(option.type, WORDS) and option.opts[-1] not in SHAPES
        if is_word or name in ENDLESS or not isinstance(option, click.Option):
            continue
        for text in values(option):
            for form in [*usual, *FORMS.get(command, [])][forms]:
                line = form.replace("{}", ORDINARY[number])
                yield folder / str(number), f"{command} {line} {name} {text}"


def measured(folder: Path, line: str, seconds: int = SECONDS) -> tuple[int, float, int, str]:
    """The status of a command in a child, its seconds of processor time, its MB beyond this process, and its words."""
    mapped, resident = (
        int(pages) * resource.getpagesize() for pages in Path("/proc/self/statm").read_text().split()[:2]
    )
    child = os.fork()
    if not child:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            signal.alarm(12 * seconds)
            resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))
            os._exit(_run(folder, line.split()))
        finally:
            os._exit(99)
    _, status, used = os.wait4(child, 0)
    beyond = max(0, (used.ru_maxrss >> 10) - (resident >> 20))
    text = (folder / "said.txt").read_text(errors="replace")
    for path in folder.glob("*out.*"):
        path.unlink() if path.is_file() else shutil.rmtree(path)
    return (
        os.waitstatus_to_exitcode(status),
        used.ru_utime + used.ru_stime,
        beyond,
        text,
    )


def fault(status: int, text: str) -> str | None:
    """What is wrong with how a command ended: a limit that was reached, or an error that is not a sentence."""
    is_unsealed = status == 5 and "was not sealed" in text  # the audit refuses what such a value makes of a window
    if (status not in (0, 2, 3, 4, 6) and not is_unsealed) or "internal error" in text:
        return f"status {status}: {text.strip()[-200:]}"
    return None


def option_fault(folder: Path, line: str) -> str | None:
    """What is wrong with how a command with an odd value of an option ended, or None."""
    status, seconds, peak, text = measured(folder, line, 10)
    wrong = fault(status, text) or (peak > 1000 and "large") or ("Traceback" in text and text.strip())
    if not wrong and status == 2 and text.count("\n") != 1:
        wrong = f"more than one line: {text.strip()}"
    return f"{seconds:6.2f} s {peak:6,} MB kvtrace {line}: {wrong}" if wrong else None


def tried_options(folder: Path, names: Iterable[str], only: str) -> int:
    """Run the commands with odd values of options, and print the faults; the status is 1 if there is one."""
    lines = [run for name in names for run in option_runs(folder, name) if only in run[1]]
    faults = 0
    for run in lines:
        if wrong := option_fault(*run):
            faults += 1
            print(wrong, flush=True)
    print(f"{len(lines):,} runs, {faults:,} faults")
    return 1 if faults else 0


def growth_fault(folders: Sequence[Path], line: str) -> str | None:
    """What grows faster than the rows, of a command on files of 1, 4 and 16 times as many, or None.

    Linear growth has a ratio of 4 beyond the smallest file; what adds less than a second and 100 MB is noise.
    """
    runs = [measured(folder, line) for folder in folders]
    wrong = next(filter(None, (fault(status, text) for status, _, _, text in runs)), "")
    for name, least, figures in (("s", 1, [run[1] for run in runs]), ("MB", 100, [run[2] for run in runs])):
        small, middle, large = figures
        if large - small > max(least, 1.15 * 5 * (middle - small)):  # 16 - 1 is 5 times 4 - 1
            wrong += f" {small:,.2f}, {middle:,.2f}, {large:,.2f} {name}"
    return f"kvtrace {line}: {wrong}" if wrong else None


def tried_growth(folder: Path, names: Iterable[str], only: str) -> int:
    """Run the commands on files that grow, and print the faults; the status is 1 if there is one."""
    sizes = [folder / str(k) for k in (1, 4, 16)]
    for k, place in zip((1, 4, 16), sizes, strict=True):
        prepare(place, k)
    faults = 0
    for place, line in (run for name in names for run in runs(sizes[0], name) if only in run[1]):
        file = line.split()[1]
        folders = [size / place.name for size in sizes]
        grows = (folders[0] / file).stat().st_size < (folders[2] / file).stat().st_size
        if grows and (wrong := growth_fault(folders, line)):
            faults += 1
            print(wrong, flush=True)
    print(f"{faults:,} faults")
    return 1 if faults else 0


def stated_mb(line: str) -> int:
    """The memory beyond a small file's that docs/performance.md states for a run."""
    return (50 << 24 >> 20) if line.startswith("texts long-input") else 500  # bytes a token


def main() -> int:
    """Run all commands, and print those that are slow, large or at fault; the status is 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.worst", description=__doc__)
    parser.add_argument("--only", default="", help="files whose name contains this")
    parser.add_argument("--command", choices=commands.commands, help="this command only")
    parser.add_argument("--growth", action="store_true", help="files of 1, 4 and 16 times as many rows")
    parser.add_argument("--options", action="store_true", help="huge and odd values of options, not files")
    chosen, faults = parser.parse_args(), 0
    with tempfile.TemporaryDirectory() as name:
        import_all()
        if chosen.growth:
            return tried_growth(Path(name), [chosen.command] if chosen.command else COMMANDS, chosen.only)
        prepare(Path(name))
        if chosen.options:
            return tried_options(Path(name), [chosen.command] if chosen.command else commands.commands, chosen.only)
        for command in [chosen.command] if chosen.command else COMMANDS:
            base: tuple[float, int] | None = None
            for folder, line in runs(Path(name), command):
                if base is None or chosen.only in line:
                    status, seconds, peak, text = measured(folder, line)
                    base = base or (seconds, peak)
                    is_more = seconds > base[0] + 2 or peak > base[1] + stated_mb(line)
                    wrong = fault(status, text) or (is_more and "large or slow")
                    if wrong:
                        faults += 1
                        print(f"{seconds:6.2f} s {peak:6,} MB kvtrace {line}: {wrong}", flush=True)
    print(f"{faults:,} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
