"""The arrivals of each stream of a mixture: those of its model, dealt to clients, or bursts of each client's own.

By default the requests of a model are dealt to its clients at random, in proportion to their rates: all clients
together arrive as the model does. With `tenant_cv`, each client has gamma gaps (ServeGen); the drift is the model's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._base.errors import InputError
from .client_arrivals import Arrivals, first_arrivals, flow_of, gamma_counts, model_arrivals
from .clients import Client
from .flow import Flow
from .mixture import Mixture
from .rate_profile import RateProfile


@dataclass(frozen=True, eq=False)
class Place:
    """A stream whose arrivals are not drawn yet."""

    client: Client
    share: float  # of all requests
    seeds: np.random.SeedSequence


def arrival_times(
    mixture: Mixture, places: list[Place], n: int, copies: int, rates: RateProfile | None, seeds: np.random.SeedSequence
) -> list[np.ndarray]:
    """The arrival times of each stream in ms, n in all; time begins before the first.

    Args:
        mixture: The models.
        places: The streams; their shares sum to 1.
        n: Requests in all.
        copies: How many times the rate of the mixture.
        rates: The requests per second over time, in place of those of the models.
        seeds: Of all draws.

    Raises:
        InputError: All requests of a model arrive together, so that it has no rate.
    """
    flows = [flow_of(model) for model in mixture.models]
    for flow, name in zip(flows, mixture.names, strict=True):
        if not flow.period_ms:
            raise InputError(f"{name}: all requests arrive together, so it has no rate. Leave it out of the mixture.")
    rate = mixture.rate * copies
    whole = Flow(np.array([0.0, 1.0]), np.array([0.0, rate])) if rates is None else rates.flow(rate)
    end_ms = float(whole.time_at(np.array([float(n)]))[0])
    if rates is None:  # model -> a flow, and what to multiply a share by
        parts = [(flow, copies * mixture.speed(number)) for number, flow in enumerate(flows)]
    else:
        parts = [(whole, 1.0)] * len(flows)
    if mixture.tenant_cv is not None:
        return first_arrivals(_with_own_bursts(mixture.tenant_cv, places, parts, seeds), n, end_ms)
    return _dealt(mixture, places, parts, n, end_ms, seeds)


def _with_own_bursts(cv, places, parts, seeds) -> list[Arrivals]:
    processes = []
    for place, seed in zip(places, seeds.spawn(len(places)), strict=True):
        flow, speed = parts[place.client.model]
        processes.append(Arrivals(flow.times(place.share * speed), gamma_counts(cv, np.random.default_rng(seed))))
    return processes


def _dealt(mixture, places, parts, n, end_ms, seeds) -> list[np.ndarray]:
    marks, *own = seeds.spawn(1 + len(parts))
    of_models = [
        model_arrivals(model, flow, share * speed, seed)
        for model, (flow, speed), share, seed in zip(mixture.models, parts, mixture.shares, own, strict=True)
    ]
    owner = np.repeat(np.arange(len(parts)), [len(processes) for processes in of_models])
    drawn = first_arrivals([process for processes in of_models for process in processes], n, end_ms)
    rng = np.random.default_rng(marks)
    times = [np.empty(0)] * len(places)
    for number in range(len(parts)):
        mine = [place for place in range(len(places)) if places[place].client.model == number]
        arrivals = np.sort(np.concatenate([drawn[process] for process in np.flatnonzero(owner == number)]))
        weight = np.array([places[place].share for place in mine])
        mark = rng.choice(len(mine), size=len(arrivals), p=weight / weight.sum())
        cuts = np.cumsum(np.bincount(mark, minlength=len(mine)))[:-1]
        for place, part in zip(mine, np.split(arrivals[np.argsort(mark, kind="stable")], cuts), strict=True):
            times[place] = part
    return times
