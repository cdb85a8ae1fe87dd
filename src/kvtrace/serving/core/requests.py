"""The requests of a simulation in time: what they ask for, where they stand, and their times in seconds."""

import numpy as np


class Requests:
    """One value for each request in each array, in order of arrival; requests.pxd names them."""

    def __init__(self, arrival, tokens, output, need, priority=None):
        rows = len(tokens)
        self.arrival = np.array(arrival, dtype=np.float64)
        self.tokens, self.output, self.need, self.priority = (
            np.ascontiguousarray(one, dtype=np.int64)
            for one in (tokens, output, need, np.zeros(rows) if priority is None else priority)
        )
        self.instance = np.full(rows, -1, dtype=np.int32)
        self.done, self.goal, self.cached, self.recomputed = np.zeros((4, rows), dtype=np.int64)
        self.following, self.preempted = np.zeros((2, rows), dtype=np.int32)
        self.sampled, self.sampled_before = np.full((2, rows), -1, dtype=np.int64)
        self.ready = np.zeros(rows)
        self.started, self.first, self.ended = np.full((3, rows), np.nan)

    @property
    def outcomes(self):
        """Results by name: arrays with one value per request."""
        return {
            "arrival": np.asarray(self.arrival), "instance": np.asarray(self.instance),
            "started": np.asarray(self.started), "first": np.asarray(self.first), "ended": np.asarray(self.ended),
            "cached": np.asarray(self.cached), "preempted": np.asarray(self.preempted),
            "recomputed": np.asarray(self.recomputed),
        }  # fmt: skip
