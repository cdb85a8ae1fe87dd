"""A sweep as nested loops around `simulate`, in the order of the table's rows."""

from kvtrace._base.errors import InputError, UsageError
from kvtrace.cache.engines import ENGINES
from kvtrace.cache.policies import POLICIES
from kvtrace.cache.simulation import simulate
from kvtrace.trace.conversion import fold


def rows(traces, *, factors, engines, modes, schedules, policies, capacities, engine_options=None):
    """(name, trace) pairs and axes -> for each cell its settings, with its counts or its error."""
    found = []
    for name, trace in traces:
        for factor in factors:
            folded = fold(trace, factor)
            for engine in engines:
                for mode in modes:
                    for schedule in schedules:
                        for policy in policies:
                            for capacity in capacities:
                                row = row_of(folded, engine, mode, schedule, policy, capacity, engine_options or {})
                                row["trace"], row["block_size"] = name, folded.block_size
                                if row not in found:  # an upper bound comes once, whatever the engines
                                    found.append(row)
    return found


def row_of(trace, engine, mode, schedule, policy, capacity, engine_options):
    """The keys of one simulation, or its settings and its error."""
    if policy in POLICIES and POLICIES[policy].bound:
        engine = "reference"
    taken = {name: value for name, value in engine_options.items() if name in ENGINES[engine].options}
    try:
        done = simulate(trace, capacity, policy, engine=engine, mode=mode, schedule=schedule, **taken)
    except (UsageError, InputError) as error:
        settings = {"engine": engine, "policy": policy, "mode": mode, "schedule": schedule, "capacity": capacity}
        return settings | {"error": str(error)}
    return done.to_dict()
