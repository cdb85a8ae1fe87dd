"""Arrival times that a model makes up: a plain loop over the log's requests, with the same draws."""

import numpy as np


def times_s(conversation, rate, think_s, seed):
    """The time of each request in seconds; -1 in `conversation` is a request by itself."""
    names = [f"alone {row}" if name < 0 else name for row, name in enumerate(conversation)]
    rng = np.random.default_rng(seed)
    starts = iter(rng.exponential(1 / rate, len(set(names))))  # in the order in which conversations first appear
    waits = rng.exponential(think_s, len(names))  # one a request; a conversation's first has no use for its own
    last, begun, times = {}, 0.0, []
    for row, name in enumerate(names):
        if name in last:
            last[name] += waits[row]
        else:
            begun += next(starts)
            last[name] = begun
        times.append(last[name])
    return times
