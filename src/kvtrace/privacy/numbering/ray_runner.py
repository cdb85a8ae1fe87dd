"""Run the stages on a Ray cluster: one task at a time on a CPU; the tasks of a lost worker or node run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

RETRIES = 5


class RayRunner:
    """Runs tasks on the cluster that `on_ray` connected to."""

    is_far: bool = True
    workers: int

    def __init__(self, workers: int):
        self.workers = workers

    def map(self, function: Callable[..., Any], items: Sequence[Any]) -> Iterator[Any]:
        """function(item) for each item, in order."""
        from ..._base.ray_cluster import ordered

        return ordered(function, items, in_flight=2 * self.workers, retries=RETRIES)


@contextmanager
def on_ray(address: str | None = None, workers: int | None = None) -> Iterator[RayRunner]:
    """A runner on the cluster at an address, or on a local cluster that stops when the block ends.

    `workers` is the maximum number of concurrent tasks; by default all CPUs of the cluster.
    """
    from ..._base.ray_cluster import connected

    with connected(address) as ray:
        yield RayRunner(workers or max(1, int(ray.cluster_resources().get("CPU", 1))))
