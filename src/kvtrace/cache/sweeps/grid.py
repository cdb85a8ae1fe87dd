"""The grid of a sweep: the values of each axis, the traces that they apply to, and the cells that they form.

A workload is a trace file, or a sample of a fitted model, optionally folded to larger blocks. It is a small description
that can be sent to another machine, which reads the trace from its file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import product
from typing import Any

from ..._base.errors import InputError, KvtraceError, UsageError
from ..._base.files import base_names, is_regular
from ..._base.input_files import open_read
from ..._base.units import leading_rows
from ...analysis.capacities import log_spaced, parse_capacities
from ...formats.reading import read
from ...formats.sidecar import sidecar_path
from ...synthesis.model_files import is_model, load_model
from ...synthesis.sampling import sample
from ...trace.building import toy
from ...trace.conversion import fold
from ...trace.domains import in_domains
from ...trace.trace import Trace
from ...trace.unknown import PREFIXES, require_known
from .. import engines
from ..demand import Mode, block_demand
from ..engines import EngineName
from ..policies import POLICIES
from ..setup import AXES, CacheSetup, Grid
from ..simulation import Setting, build


@dataclass(frozen=True)
class TraceSource:
    """A trace file, or a model and the seed of a sample; its path and its digest when the sweep was planned."""

    name: str  # as given on the command line
    path: str  # absolute
    sha256: str  # of the file and its sidecar
    seed: int | None = None  # of a sample; None = a trace
    requests: int | None = None  # of a sample; None = the number that the model was fitted on
    block_size: int | None = None  # of a trace whose sidecar lacks it
    chain: bool = False
    label: str = ""  # in the table: the name without folders


@dataclass(frozen=True)
class SweepWorkload:
    """A source, and the whole factor by which its blocks are enlarged."""

    source: TraceSource
    factor: int = 1


@lru_cache(maxsize=1)
def trace_of(workload: SweepWorkload) -> Trace:
    """The trace of a workload. InputError if its file has changed since the sweep was planned; UsageError as in `read`.

    The last trace is cached, since the cells of a workload are neighbours; `forget` clears the cache.
    """
    return fold(source_trace(workload.source), workload.factor)


@lru_cache(maxsize=1)
def source_trace(source: TraceSource) -> Trace:
    """The trace of a source, in its own block size."""
    if digest(source.path) != source.sha256:
        raise InputError(f"{source.name} has changed since the sweep was planned. Start the sweep again.")
    if source.seed is not None:
        return sample(load_model(source.path), source.requests, seed=source.seed)
    trace = _read(source)
    require_known(trace, trace.meta, f"{source.name}: the hit rate of a simulated cache", PREFIXES)
    return in_domains(trace.chained() if source.chain else trace.require_chained())


def _read(source) -> Trace:
    """Read the trace of a source; errors name the file as the user did, and the option of this command."""
    try:
        return read(source.path, block_size=source.block_size)
    except (InputError, UsageError) as error:
        kind = UsageError if isinstance(error, UsageError) else InputError
        message = str(error).replace(source.path, source.name)
    raise kind(message)


def forget() -> None:
    """Clear the cached traces."""
    trace_of.cache_clear()
    source_trace.cache_clear()


def sources_of(
    name: str, label: str, seeds: tuple[int, ...], requests: int | None, block_size: int | None, chain: bool
) -> list[TraceSource]:
    """The sources of a file: one for a trace, one per seed for a model."""
    if not (is_regular(name) or os.path.isdir(name)):
        raise UsageError(
            f"{name} is not a file or folder. A sweep reads a trace several times: write it to a file first."
        )
    path = os.path.abspath(name)
    sha256 = digest(name)
    if is_model(name):
        return [TraceSource(name, path, sha256, seed, requests, label=label) for seed in seeds]
    return [TraceSource(name, path, sha256, block_size=block_size, chain=chain, label=label)]


def digest(path: str) -> str:
    """SHA-256 of a trace: the uncompressed file and its sidecar, or all files of a data set; InputError if unreadable.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     digest(file.name)[:8]
    'cf589700'
    """
    digest_of_all = hashlib.sha256()
    for name, part in _files(path):
        digest_of_all.update(f"{name}\0".encode())
        with open_read(part) as stream:
            digest_of_all.update(hashlib.file_digest(stream, "sha256").digest())  # type: ignore[arg-type]
    return digest_of_all.hexdigest()


def _files(path) -> Iterator[tuple[str, str]]:
    """(name, path) of the files of a trace: a file and its sidecar, or all files of a data set. No name is absolute."""
    if os.path.isdir(path):
        for folder, folders, names in os.walk(path):
            folders.sort()
            for part in (os.path.join(folder, name) for name in sorted(names)):
                yield os.path.relpath(part, path), part
        return
    yield "trace", path
    if os.path.exists(beside := sidecar_path(path)) and not os.path.islink(beside):  # `read` refuses a link
        yield "sidecar", beside


def factor_of(text: str, block_size: int, name: str) -> int:
    """The factor by which blocks are enlarged: `2x` doubles them, `1024` is a size in tokens; UsageError otherwise.

    >>> factor_of("2x", 512, "day.jsonl"), factor_of("1024", 512, "day.jsonl")
    (2, 2)
    """
    number = text.removesuffix("x")
    if not (number.isdecimal() and len(number) < 16 and int(number)):
        raise UsageError(f"{text!r} is not a block size. Try 1024 (tokens) or 2x (twice the trace's block size).")
    if text.endswith("x"):
        return int(number)
    if int(number) % block_size:
        raise UsageError(
            f"--block-sizes {number} is not a multiple of the block size of {name}, {block_size:,} tokens. "
            f"Try {2 * block_size} or 2x."
        )
    return int(number) // block_size


POINTS = 10  # capacities of `auto`


@dataclass(frozen=True)
class Cell:
    """One simulation of a sweep."""

    workload: SweepWorkload
    setting: Setting
    warm_up: str = "0"
    kv_bytes_per_token: int | None = None


def plan(grid: Grid, on_workload: Callable[[SweepWorkload, Trace], None] | None = None) -> list[Cell]:
    """The cells in the order of the table: trace, block size, engine, mode, schedule, policy, capacity, seed.

    It reads each trace and draws each sample once, to resolve `auto` and shares of the working set.

    Args:
        grid: The grid.
        on_workload: Receives each workload and its trace.

    Raises:
        UsageError: A value of an axis is valid in no combination of the grid.
        InputError: A trace cannot be read.
    """
    _refuse_misfits(grid)
    placed: dict[Cell, tuple[int, ...]] = {}  # the first place of each
    for place, workload in _workloads(grid):
        trace = trace_of(workload)
        leading_rows(grid.warm_up, trace.timestamp)  # raises here if it is not a part of the trace
        for at, setting in _settings(grid, trace):
            key = (*place[:2], *at, place[2])
            placed.setdefault(Cell(workload, setting, grid.warm_up, grid.kv_bytes_per_token), key)
        if on_workload is not None:
            on_workload(workload, trace)
    return sorted(placed, key=placed.__getitem__)


def _workloads(grid) -> Iterator[tuple[tuple[int, int, int], SweepWorkload]]:
    """(places of trace, block size and seed) and workload; the workloads of a source are neighbours."""
    names = list(dict.fromkeys(grid.traces))
    given = [
        sources_of(name, label, grid.seeds, grid.requests, grid.block_size, grid.chain)
        for name, label in zip(names, base_names(*names), strict=True)
    ]
    if not any(source.seed is not None for sources in given for source in sources):
        for option, is_set in (("--seed", grid.seeds != (0,)), ("--requests", grid.requests is not None)):
            if is_set:
                raise UsageError(f"{option} needs a fitted model as a TRACE. Leave it out.")
    for first, sources in enumerate(given):
        for last, source in enumerate(sources):
            size = source_trace(source).block_size
            for place, text in enumerate(grid.block_sizes):
                yield (first, place, last), SweepWorkload(source, factor_of(text, size, source.name))


def _settings(grid, trace) -> Iterator[tuple[tuple[int, ...], Setting]]:
    """(places of engine, mode, schedule, policy, capacity) and setting; settings may repeat."""
    units = {
        "block_size": trace.block_size, "working_set": trace.working_set, "kv_bytes_per_token": grid.kv_bytes_per_token,
    }  # fmt: skip
    capacities = {
        mode: auto(trace, mode) if grid.capacity == "auto" else parse_capacities(grid.capacity, **units)
        for mode in grid.modes
    }
    axes = (grid.engines, grid.modes, grid.schedules, grid.policies)
    for places in product(*(range(len(values)) for values in axes)):
        engine, mode, schedule, policy = (values[place] for values, place in zip(axes, places, strict=True))
        settings = setup_of(grid, engine, mode, schedule, policy, capacities[mode]).settings()
        for place, setting in enumerate(settings):
            yield (*places, place), setting


def setup_of(
    grid: Grid, engine: EngineName, mode: Mode, schedule: str, policy: str, capacities: Sequence[int]
) -> CacheSetup:
    """One combination of the grid: an upper bound belongs to no engine; an engine gets the options that it has."""
    name = policy.partition(":")[0]
    engine = "reference" if name in POLICIES and POLICIES[name].bound else engine
    options: dict[str, Any] = {
        name: value for name, value in grid.engine_options if name in engines.find(engine).options
    }
    return CacheSetup(capacities, [policy], [engine], mode=mode, schedule=schedule, **options)


def auto(trace: Trace, mode: Mode) -> list[int]:
    """Ten capacities from the longest request to the working set.

    >>> auto(toy("0 1", "2", "0 1"), "block")
    [2, 3]
    """
    longest = int(block_demand(trace, mode).max_blocks.max(initial=1))
    return log_spaced(longest, max(trace.working_set, longest), POINTS)


def _refuse_misfits(grid) -> None:
    """Raise UsageError if a value of an axis is valid in no combination, such as a misspelt name.

    Each combination is built for one request. A combination that fails beside valid ones fills the column `error`.
    """
    for name in ("traces", *AXES):
        if not getattr(grid, name):
            raise UsageError(f"The sweep needs one or more {name.replace('_', ' ')}.")
    for engine in grid.engines:
        engines.find(engine)
    for name, value in grid.engine_options:
        if not any(name in engines.find(engine).options for engine in grid.engines):
            raise UsageError(
                f"No engine of the sweep has the option --{name.replace('_', '-')} ({value}). Leave it out."
            )
    combinations = product(*(getattr(grid, name) for name in AXES))
    faults = {combination: _fault(grid, *combination) for combination in combinations}
    for axis in range(len(AXES)):
        for value in dict.fromkeys(combination[axis] for combination in faults):
            of_value = [fault for combination, fault in faults.items() if combination[axis] == value]
            if all(of_value):
                raise UsageError(of_value[0])


def _fault(grid, engine, mode, schedule, policy) -> str | None:
    """The fault of a combination; None also if it depends on the trace."""
    try:
        (setting,) = setup_of(grid, engine, mode, schedule, policy, [1 << 10]).settings()
        build(setting, block_demand(toy("0", block_size=256), mode))
    except UsageError as error:
        return str(error)
    except KvtraceError:
        return None  # the one request lacks something, such as a column priority
    except Exception:
        return None  # a user's policy may need more than one request
    return None


def stated(grid: Grid) -> dict[str, object]:
    """The grid by its command-line options, without the traces."""
    flags = {
        f"--{part.metadata.get('name') or part.name.replace('_', '-')}": getattr(grid, part.name)
        for part in fields(grid)
        if part.name not in ("traces", "engine_options")
    }
    return flags | {f"--{name.replace('_', '-')}": value for name, value in grid.engine_options}
