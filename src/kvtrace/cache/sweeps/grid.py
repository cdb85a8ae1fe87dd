"""The grid of a sweep: the values of each axis, and the cells that they form on the traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from itertools import product

from ..._base.errors import KvtraceError, UsageError
from ..._base.files import base_names
from ..._base.units import leading_rows, require_lists
from ...analysis.capacities import log_spaced, parse_capacities
from ...trace.building import toy
from ...trace.trace import Trace
from .. import engines
from ..demand import block_demand
from ..policies import POLICIES
from ..schedules import parse_schedule
from ..simulation import Setting, build
from .workload import Workload, factor_of, source_trace, sources_of, trace_of

POINTS = 10  # capacities of `auto`


@dataclass(frozen=True)
class Grid:
    """The values of each axis, then the options that all cells share; docs/cache/sweep.md lists the values."""

    traces: tuple[str, ...]  # trace files, or model files from which samples are drawn
    policies: tuple[str, ...] = ("lru",)
    capacity: str = "auto"  # comma-separated, as in `kvtrace simulate`; shares depend on the trace
    engines: tuple[str, ...] = ("reference",)
    modes: tuple[str, ...] = ("block",)
    schedules: tuple[str, ...] = ("serial",)
    block_sizes: tuple[str, ...] = ("1x",)  # multiples of the trace's block size, or tokens
    seeds: tuple[int, ...] = (0,)  # of samples
    requests: int | None = None  # of a sample
    engine_options: tuple[tuple[str, str], ...] = ()  # for the engines that have them
    warm_up: str = "0"
    kv_bytes_per_token: int | None = None
    trace_block_size: int | None = None
    chain: bool = False

    def __post_init__(self) -> None:
        require_lists(traces=self.traces, **{name: getattr(self, name) for name in (*AXES, "block_sizes", "seeds")})
        if not all(isinstance(policy, str) for policy in self.policies):
            raise UsageError('a sweep names a policy of your own: "module:Class".')


@dataclass(frozen=True)
class Cell:
    """One simulation of a sweep."""

    workload: Workload
    setting: Setting
    warm_up: str = "0"
    kv_bytes_per_token: int | None = None


def plan(grid: Grid, on_workload: Callable[[Workload, Trace], None] | None = None) -> list[Cell]:
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


def _workloads(grid) -> Iterator[tuple[tuple[int, int, int], Workload]]:
    """(places of trace, block size and seed) and workload; the workloads of a source are neighbours."""
    names = list(dict.fromkeys(grid.traces))
    given = [
        sources_of(name, label, grid.seeds, grid.requests, grid.trace_block_size, grid.chain)
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
                yield (first, place, last), Workload(source, factor_of(text, size, source.name))


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
        for place, capacity in enumerate(capacities[mode]):
            yield (*places, place), setting_of(grid, engine, mode, schedule, policy, capacity)


def setting_of(grid: Grid, engine: str, mode: str, schedule: str, policy: str, capacity: int) -> Setting:
    """One setting of the grid: an upper bound belongs to no engine; an engine gets the options that it has."""
    name = policy.partition(":")[0]
    engine = "reference" if name in POLICIES and POLICIES[name].bound else engine
    options = tuple(pair for pair in grid.engine_options if pair[0] in engines.find(engine).options)
    return Setting(capacity, policy, engine, mode, parse_schedule(schedule), options)


def auto(trace: Trace, mode: str) -> list[int]:
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


AXES = ("engines", "modes", "schedules", "policies")


def _fault(grid, engine, mode, schedule, policy) -> str | None:
    """The fault of a combination; None also if it depends on the trace."""
    try:
        build(setting_of(grid, engine, mode, schedule, policy, 1 << 10), block_demand(toy("0", block_size=256), mode))
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
        f"--{OPTIONS.get(field.name, field.name.replace('_', '-'))}": getattr(grid, field.name)
        for field in fields(grid)
        if field.name not in ("traces", "engine_options")
    }
    return flags | {f"--{name.replace('_', '-')}": value for name, value in grid.engine_options}


OPTIONS = {
    "policies": "policy", "engines": "engine", "modes": "mode", "schedules": "schedule", "block_sizes": "block-size",
    "seeds": "seed",
}  # fmt: skip
