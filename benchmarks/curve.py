"""The hit curve of every capacity beside a compiled simulation of one, and its cost a block as traces grow."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import kvtrace
from kvtrace.trace.columns import Columns

from .apart import apart, medians
from .raw_logs import SHARED
from .read_write import synthetic
from .table import Claim

CONVERSATIONS = SHARED / "data/mooncake/conversation_trace.jsonl"
BLOCK, CAPACITY = 512, 10_000
REFERENCES = 288_500  # of the conversation trace
EMPTY = '{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [0]}\n'


def claims(folder: str, copies: int, rounds: int) -> list[Claim]:
    """The whole command beside the whole of one simulation, and seconds a block of a large trace beside a small one."""
    one, many = (apart(repeated, folder, count) for count in (1, copies))
    empty = os.path.join(folder, "one_request.jsonl")
    Path(empty).write_text(EMPTY)
    build = apart(build_rival, folder)
    taken = medians(
        {
            "start": (command, empty), "one": (command, one), "many": (command, many),
            "rival": (rival, build, many), "curve": (curve_alone, many), "simulation": (simulation_alone, build, many),
        },
        rounds,
    )  # fmt: skip
    small, large = (taken["one"] - taken["start"]) / 1, (taken["many"] - taken["start"]) / copies
    return [
        Claim(f"kvtrace curve, {copies} copies / read + one LRU simulation", taken["many"], taken["rival"], "s", 3),
        Claim("the curve alone / one LRU simulation alone", taken["curve"], taken["simulation"], "s", 3),
        Claim(
            f"curve, ns a block, {copies} copies / one, without start-up",
            1e9 * large / REFERENCES, 1e9 * small / REFERENCES, "ns", 2,
        ),
    ]  # fmt: skip


def command(path: str) -> float:
    """Seconds of the whole command."""
    start = time.perf_counter()
    arguments = ["-m", "kvtrace", "curve", path, "--block-size", str(BLOCK), "--json"]
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def curve_alone(path: str) -> float:
    """Seconds from a trace in memory to 25 points of its curve."""
    trace = kvtrace.read(path, block_size=BLOCK)
    return _best(lambda: kvtrace.hit_curve(trace).to_dict())


def simulation_alone(build: str, path: str) -> float:
    """Seconds of the rival on a trace in memory."""
    trace = kvtrace.read(path, block_size=BLOCK)
    return _best(lambda: _rival(build).simulate(trace.hash_ids, trace.offsets, trace.distinct, CAPACITY))


def rival(build: str, path: str) -> float:
    """Seconds of a whole command that reads as we do and simulates one capacity."""
    code = (
        f"import sys; sys.path.insert(0, {build!r}); import kvtrace, lru_rival; "
        f"t = kvtrace.read({path!r}, block_size={BLOCK}); "
        f"print(lru_rival.simulate(t.hash_ids, t.offsets, t.distinct, {CAPACITY}))"
    )
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def repeated(folder: str, copies: int) -> str:
    """The conversation trace so many times over, with ids and times apart; made up where it is missing."""
    path = os.path.join(folder, f"conversations_{copies}.jsonl")
    once = _once()
    references, distinct, end = len(once.hash_ids), int(once.hash_ids.max()) + 1, once.timestamp[-1]
    columns = Columns(
        np.concatenate([once.timestamp + copy * end for copy in range(copies)]),
        np.tile(once.input_length, copies), np.tile(once.output_length, copies),
        np.concatenate([once.hash_ids + copy * distinct for copy in range(copies)]),
        np.concatenate([[0], *(once.offsets[1:] + copy * references for copy in range(copies))]),
    )  # fmt: skip
    kvtrace.write(columns, path, block_size=BLOCK)
    return path


def _once():
    if CONVERSATIONS.exists():
        return kvtrace.read(CONVERSATIONS)
    return synthetic(REFERENCES // 24, np.random.default_rng(7))


def build_rival(folder: str) -> str:
    """The folder that holds the compiled rival."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    source = Path(__file__).with_name("lru_rival.py")
    directives = {"boundscheck": False, "wraparound": False, "initializedcheck": False}
    modules = cythonize(
        [Extension("lru_rival", [str(source)], extra_compile_args=["-O3"])],
        build_dir=folder, language_level=3, compiler_directives=directives, quiet=True,
    )  # fmt: skip
    distribution = Distribution({"name": "lru_rival", "ext_modules": modules})
    build = distribution.get_command_obj("build_ext")
    build.build_lib = build.build_temp = folder
    distribution.run_command("build_ext")
    return folder


def _rival(build):
    sys.path.insert(0, build)
    import lru_rival

    return lru_rival


def _best(run) -> float:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
