"""The hit curve of every capacity beside a compiled simulation of one, and its cost a block as traces grow."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import kvtrace

from .inputs import BLOCK, repeated
from .measuring import Line, apart, best, spent, wall

COPIES, CAPACITY = 105, 10_000


def lines(folder: str, share: float) -> Iterator[Line]:
    """The whole command beside the whole of one simulation, and seconds a block of a large trace beside a small one."""
    copies = round(COPIES * share)
    one, many = (os.path.join(folder, f"{count}.jsonl") for count in ("one", "many"))
    small, large = apart(repeated, one, 1), apart(repeated, many, copies)
    build = apart(build_rival, folder)
    yield Line(f"curve, {copies} copies / read + one LRU simulation", "s", (command, many), (rival, build, many), 3)
    ours, theirs = (curve_alone, many), (simulation_alone, build, many)
    yield Line("the curve alone / one LRU simulation alone", "s", ours, theirs, 3)
    ours, theirs = ((each_block, path, held) for path, held in ((many, large), (one, small)))
    yield Line(f"curve, a block of {copies} copies / of one", "ns", ours, theirs, 2)


def command(path: str) -> float:
    """Seconds of the whole command."""
    return wall("curve", path, "--block-size", str(BLOCK), "--json")


def each_block(path: str, references: int) -> float:
    """Processor seconds to read a trace and to take 25 points of its curve, for each block."""
    return best(lambda: kvtrace.analysis.hit_curve(kvtrace.read(path, block_size=BLOCK)).to_dict()) / references


def curve_alone(path: str) -> float:
    """Seconds from a trace in memory to 25 points of its curve."""
    trace = kvtrace.read(path, block_size=BLOCK)
    return best(lambda: kvtrace.analysis.hit_curve(trace).to_dict())


def simulation_alone(build: str, path: str) -> float:
    """Seconds of the rival on a trace in memory."""
    sys.path.insert(0, build)
    import lru_rival

    trace = kvtrace.read(path, block_size=BLOCK)
    return best(lambda: lru_rival.simulate(trace.hash_ids, trace.offsets, trace.distinct, CAPACITY))


def rival(build: str, path: str) -> float:
    """Seconds of a whole command that reads as we do and simulates one capacity."""
    code = (
        f"import sys; sys.path.insert(0, {build!r}); import kvtrace, lru_rival; "
        f"t = kvtrace.read({path!r}, block_size={BLOCK}); "
        f"print(lru_rival.simulate(t.hash_ids, t.offsets, t.distinct, {CAPACITY}))"
    )
    return spent(sys.executable, "-c", code).wall_s


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
