"""A trace of two sessions of agents whose every figure can be worked out by hand."""

import numpy as np

from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.dependencies import Dependencies
from kvtrace.trace.trace import Trace

#   row  arrives  ends  session  agent  prompt
#    0       0     10      0       0    0 1 2 3
#    1       5     10      1       0    0 1 2             hits 3 blocks of the other session
#    2      20     25      0       0    0 1 2 3 4 5       10 ms after row 0 ended
#    3      30     40      0       1    6 7               a subagent
#    4      32     42      0       2    6 8               another one, at the same time
#    5      50     60      0       0    0 1 2 3 4 5 9     8 ms after both of them ended
#    6      70     80      0       0    0 1               10 ms after row 5 ended: a compaction
#    7     100      ?      1       0    0 1 2 10          90 ms after row 1 ended
PROMPTS = ("0 1 2 3", "0 1 2", "0 1 2 3 4 5", "6 7", "6 8", "0 1 2 3 4 5 9", "0 1", "0 1 2 10")
ARRIVES = (0, 5, 20, 30, 32, 50, 70, 100)
SERVICE = (10, 5, 5, 10, 10, 10, 10, np.nan)
SESSION = (0, 1, 0, 0, 0, 0, 0, 1)
AGENT = (0, 0, 0, 1, 2, 0, 0, 0)
WAITS = (
    [],
    [],
    [(0, "completion", "sequence", 10.0)],
    [(2, "completion", "spawn", 5.0)],
    [(2, "completion", "spawn", 7.0)],
    [(2, "completion", "sequence", 8.0), (3, "completion", "join", 8.0), (4, "completion", "join", 8.0)],
    [(5, "completion", "sequence", 10.0)],
    [(1, "completion", "sequence", 90.0)],
)


def two_sessions(agent: bool = True, **changed) -> Trace:
    """The trace above in blocks of one token, some of its columns replaced; `agent`: whether it has that column."""
    columns = replace_columns(
        toy(*PROMPTS), timestamp=np.array(ARRIVES, dtype=float), service_ms=np.array(SERVICE, dtype=float),
        session=np.array(SESSION), dependencies=Dependencies.of(WAITS),
        extra={"agent": np.array(AGENT)} if agent else {},
    )  # fmt: skip
    return Trace.from_columns(replace_columns(columns, **changed), block_size=1)
