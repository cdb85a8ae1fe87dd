"""What requests of agents waited for, request by request, as trace/session_trees.py says it in words."""

import math


def shared(one, other):
    """The number of leading blocks that two prompts share."""
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    return same


def recorded_dependencies(start, service, prompts, session, agent):
    """Request -> its dependencies: (row, trigger, relation, delay). Rows are in the order of their starts."""
    end = [s + (0 if math.isnan(d) else d) for s, d in zip(start, service, strict=True)]
    waits = []
    for row in range(len(start)):
        mine = [r for r in range(row) if session[r] == session[row] >= 0 and agent[r] == agent[row]]
        main = [r for r in range(row) if session[r] == session[row] >= 0 and agent[r] == 0]
        found = []
        if mine:
            found.append(_continued(row, mine, start, end, prompts))
        elif agent[row] and main:
            found.append(_spawned(row, main, start, end))
        if agent[row] == 0 and session[row] >= 0:
            found += [(last, 1, 2) for last in _ended(row, mine, start, end, session, agent)]
        latest = max((end[r] if trigger else start[r] for r, trigger, _ in found), default=0)
        waits.append([(r, trigger, relation, start[row] - latest) for r, trigger, relation in found])
    return waits


def _continued(row, mine, start, end, prompts):
    done = [r for r in mine if end[r] <= start[row]]
    if not done:
        return mine[-1], 0, 0
    return max(done, key=lambda r: (shared(prompts[r], prompts[row]), end[r], r)), 1, 0


def _spawned(row, main, start, end):
    done = [r for r in main if end[r] <= start[row]]
    return (max(done, key=lambda r: (end[r], r)), 1, 1) if done else (main[-1], 0, 1)


def _ended(row, mine, start, end, session, agent):
    """The last-ending request of each subagent that ended after the main agent's previous start, and by this one."""
    for sub in sorted({agent[r] for r in range(len(start)) if session[r] == session[row] and agent[r] != 0}):
        rows = [r for r in range(len(start)) if session[r] == session[row] and agent[r] == sub]
        last = max(rows, key=lambda r: (end[r], r))

        def follows(r, last=last):
            return start[r] > end[last] or (start[r] == end[last] and r > last)

        if follows(row) and not any(follows(r) for r in mine):
            yield last
