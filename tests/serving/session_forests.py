"""Random session forests for tests, whose recorded times agree with their dependencies and service times."""

import random

import numpy as np

from kvtrace.trace.columns import Columns
from kvtrace.trace.dependencies import Dependencies
from kvtrace.trace.trace import Trace

KINDS = ("dispatch", "completion")


def random_session(rng, turns):
    """Requests of one session: (arrival, service, prompt, output, dependencies), times in ms, arrivals ascending."""
    rows, paths = [], [[0]]
    for turn in range(turns):
        waits, arrival = [], 0.0
        if turn and rng.random() < 0.9:
            chosen = rng.sample(range(turn), min(turn, rng.choice([1, 1, 1, 2, 3])))
            kinds = [rng.choice(KINDS[1:] if rng.random() < 0.8 else KINDS) for _ in chosen]
            pairs = list(zip(chosen, kinds, strict=True))
            moments = [rows[one][0] + (rows[one][1] if kind == "completion" else 0) for one, kind in pairs]
            delay = float(rng.choice([0, 0, 250, 500, 2000, 9000]))
            arrival = max(moments) + delay
            waits = [(one, kind, "sequence", delay) for one, kind in pairs]
        elif turn:
            arrival = float(rng.randrange(20) * 500)
        path = [*rng.choice(paths), *(rng.randrange(10**9) for _ in range(rng.randrange(4)))]
        paths.append(path)
        rows.append((arrival, float(rng.randrange(1, 40) * 125), path, rng.choice([1, 2, 3, 5, 8, 40]), waits))
    order = sorted(range(turns), key=lambda row: (rows[row][0], row))
    place = {row: new for new, row in enumerate(order)}
    first = rows[order[0]][0]
    return [
        (rows[row][0] - first, *rows[row][1:4], [(place[one[0]], *one[1:]) for one in rows[row][4]]) for row in order
    ]


def random_forest(seed, sessions=6, turns=7, named=True):
    """A trace of random sessions; a request comes after what it waits for, also of those at the same time."""
    rng = random.Random(seed)
    flat = []
    for session in range(rng.randrange(1, sessions + 1)):
        begin = float(rng.randrange(0, 20) * 500)
        rows = random_session(rng, rng.randrange(1, turns + 1))
        if not named and any(not waits for *_, waits in rows[1:]):
            rows = rows[:1]
        flat += [(begin + arrival, session, row, *rest) for row, (arrival, *rest) in enumerate(rows)]
    flat.sort(key=lambda one: one[:3])
    place = {one[1:3]: row for row, one in enumerate(flat)}
    waits = [[(place[one[1], wait[0]], *wait[1:]) for wait in one[6]] for one in flat]
    prompts = [one[4] for one in flat]
    columns = Columns(
        [one[0] for one in flat], [4 * len(path) for path in prompts], [one[5] for one in flat],
        np.array([block for path in prompts for block in path], dtype=np.int64),
        np.cumsum([0, *map(len, prompts)]), session=[one[1] for one in flat] if named else None,
        dependencies=Dependencies.of(waits), service_ms=[one[3] for one in flat],
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=4)


def lists_of(trace):
    """request -> its dependencies: (row, trigger, delay in seconds)."""
    waits = trace.dependencies
    flat = [
        (int(row), KINDS[trigger], delay / 1000)
        for row, trigger, delay in zip(waits.row, waits.trigger, waits.delay_ms, strict=True)
    ]
    return [flat[waits.offsets[row] : waits.offsets[row + 1]] for row in range(len(trace))]
