"""Many caches over one trace, in threads: policies x capacities x engines, each beside the offline optimum."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from threading import Event

from ..trace.trace import Trace
from .demand import jobs
from .simulation import Setting, Simulation, run


def sweep(
    trace: Trace,
    settings: Iterable[Setting],
    *,
    threads: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> list[Simulation]:
    """The simulation of each setting, in their order; `on_progress` gets numbers of requests served, from any thread.

    Errors as `simulate`; the first one ends the others. Compiled policies run side by side, Python ones in turn.

    >>> from kvtrace.trace.building import toy
    >>> [done.hits.hit_blocks for done in sweep(toy("0 1", "2", "0 1"), [Setting(2), Setting(3)])]
    [1, 2]
    """
    settings = list(settings)
    asked = {asks: jobs(trace, *asks) for asks in {setting.asks for setting in settings}}
    stopped = Event()

    def served(requests: int) -> None:
        if stopped.is_set():
            raise InterruptedError
        if on_progress:
            on_progress(requests)

    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        runs = [pool.submit(run, setting, trace, asked[setting.asks], served) for setting in settings]
        try:
            return [done.result() for done in runs]
        except BaseException:
            stopped.set()
            pool.shutdown(cancel_futures=True)
            raise


def settings_of(
    capacities: Iterable[int], policies: Iterable[str], engine_names: Iterable[str] = ("reference",), **common
) -> list[Setting]:
    """Every engine with every policy at every capacity; an upper bound, which is no engine's, comes once a capacity.

    >>> [(setting.policy, setting.capacity) for setting in settings_of([1, 2], ["lru", "belady"])]
    [('lru', 1), ('lru', 2), ('belady', 1), ('belady', 2)]
    """
    made = [
        Setting(capacity, policy, engine, **common)
        for engine, policy, capacity in product(engine_names, policies, capacities)
    ]
    return list(dict.fromkeys(replace(one, engine="reference") if one.bound else one for one in made))


def optimum_of(setting: Setting) -> Setting:
    """The setting of the offline optimum that bounds another one."""
    return replace(setting, policy="belady", engine="reference")
