"""All that we claim about speed and memory, measured beside the rivals: a table whose lines are printed when known.

python -m benchmarks                 every part (half an hour, 4 GB of temporary files)
python -m benchmarks serving curve   some parts
python -m benchmarks --quick         a thirtieth of the data, one round: does all of it run?

Each figure is the median of some rounds, in which we and the rival take turns, each in a fresh process. The ratio is
ours / rival; `wanted` is the largest that we promise. Where there is no rival, one of three loops takes its place, so
that a promise holds on slow and fast machines alike:

    Python step    moving one of 1,000 entries of an OrderedDict to its end: for what the interpreter runs
    look-up        one of 4 million numbers that NumPy gathers from random places of 32 MB: for compiled code
    Python start   a process that starts Python and imports NumPy: for a cold start

A limit of memory follows from the requests and blocks of the input. Where ../shared (or KVTRACE_SHARED) is missing,
logs and traces are made up. KVTRACE_CLIENTS names a folder with environments of rivals: `libcachesim` (pip install
libcachesim), `dynamo` (ai-dynamo-runtime), `rivals` (aiperf llmtrafficlens kvcache-simulator libcachesim) and `lmcache`
(--no-deps lmcache, then matplotlib sortedcontainers). A line without its rival is "not measured", which is no failure.
The status is 1 if a line failed or a promise is broken; with --quick, promises about time are not checked, since so
little data says nothing about speed.

Studies of accuracy and of clusters print tables of their own: benchmarks.dynamo_replay, fidelity, kv_event_trace,
inferred_conversations, live_accuracy and tasks, as `python -m benchmarks.fidelity`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator

from .measuring import SHARED, SIZES, TIMES, WIDTH, Line, wait_for_quiet

PARTS = [
    "anonymize", "reading", "commands", "curve", "simulate", "policies", "prefix_cache", "synthesize",
    "serving", "live_curve", "capture", "proxy", "rivals",
]  # fmt: skip
QUICK = 0.03  # of the data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    load, logs = wait_for_quiet(0 if options.quick else 60), "real logs" if SHARED.is_dir() else "logs made up"
    print(f"{logs}; {len(os.sched_getaffinity(0))} cores, load {load:.1f} before", flush=True)
    print(f"{'':{WIDTH}}{'ours':>13}{'rival':>13}{'ratio':>8}{'wanted':>8}  holds?", flush=True)
    verdicts: Counter[str] = Counter()
    for name in options.parts or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            for line in lines_of(name, folder, QUICK if options.quick else 1):
                verdict, text = judged(line, 1 if options.quick else options.rounds, options.quick)
                verdicts[verdict] += 1
                print(text, flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()))
    sys.exit(1 if verdicts["failed"] or verdicts["NO"] else 0)


def lines_of(name: str, folder: str, share: float) -> Iterator[Line | tuple[str, Exception]]:
    """The lines of a part; what stops it takes the place of those that are left."""
    try:
        yield from importlib.import_module(f".{name}", __package__).lines(folder, share)
    except Exception as error:
        yield name, error


def judged(line: Line | tuple[str, Exception], rounds: int, quick: bool) -> tuple[str, str]:
    """The verdict on a line, and its text."""
    if not isinstance(line, Line):
        return "failed", failed(*line)
    try:
        ours, rival = line.measure(rounds)
    except Exception as error:
        return "failed", failed(line.name, error)
    scale = (TIMES | SIZES)[line.unit]
    ours_text, rival_text = ("" if one is None else f"{one * scale:,.2f} {line.unit}" for one in (ours, rival))
    text = f"{line.name:{WIDTH}}{ours_text:>13}"
    if line.needs:
        return "not measured", f"{text}  not measured: needs {line.needs}"
    text += f"{rival_text:>13}"
    if ours is None or rival is None:
        return "without a rival", text
    text += f"{ours / rival:8.3f}"
    if line.most is None:
        return "without a promise", text
    verdict = "yes" if ours / rival <= line.most else "not checked" if quick and line.is_time else "NO"
    return verdict, f"{text}{line.most:8.3f}  {verdict}"


def failed(name: str, error: Exception) -> str:
    """The text of a line that failed."""
    return f"{name:{WIDTH}}  FAILED: {' '.join(f'{type(error).__name__}: {error}'.split())[:400]}"


if __name__ == "__main__":
    main()
