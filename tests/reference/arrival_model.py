"""Generated arrival times: a plain loop over the log's requests, with the same random draws."""

import numpy as np


def times_s(conversation, rate, think_s, seed):
    """The time of each request in seconds; -1 in `conversation` means a request without a conversation."""
    names = [f"alone {row}" if name < 0 else name for row, name in enumerate(conversation)]
    rng = np.random.default_rng(seed)
    starts = iter(rng.exponential(1 / rate, len(set(names))))  # in the order in which conversations first appear
    waits = rng.exponential(think_s, len(names))  # one per request; the first of a conversation does not use its own
    last, begun, times = {}, 0.0, []
    for row, name in enumerate(names):
        if name in last:
            last[name] += waits[row]
        else:
            begun += next(starts)
            last[name] = begun
        times.append(last[name])
    return times
