"""The streams of a sample: who draws how many rows, and when they arrive.

A model alone draws one stream, or parallel ones if the rate grows, with its own arrivals. For the clients of a mixture,
and for a model at the rates of a profile, arrivals are drawn first, and say how many rows each stream draws.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .client_model import at_speed
from .clients import clients_of
from .dealing import Place, arrival_times
from .drawing import Stream
from .mixture import Mixture
from .rate_profile import RateProfile


def streams_of(mixture: Mixture, n: int, seed: int, scale: str, rates: RateProfile | None = None) -> list[Stream]:
    """The streams of a sample of n requests.

    Args:
        mixture: The models; one of them is a mixture, too.
        n: Requests in all.
        seed: Seed of all random draws.
        scale: `duration`, or `rate`: n / (fitted requests) streams in place of each.
        rates: The requests per second over time, in place of those of the models.

    Raises:
        InputError: All requests of a model arrive together, so that it has no rate.
    """
    root = np.random.SeedSequence(seed)
    copies = max(1, round(n / mixture.rows)) if scale == "rate" else 1
    clients = len(mixture.models) if mixture.tenants is None else mixture.tenants
    _, *seeds = root.spawn(1 + clients * copies)  # the first one is for the merge
    for_clients, for_arrivals, for_models = root.spawn(3)
    places = [  # a tree is one stream at any rate: its core does not grow
        Place(client, client.share / count, seeds[number * copies + copy])
        for number, client in enumerate(clients_of(mixture, np.random.default_rng(for_clients)))
        for count in [copies if mixture.models[client.model].method == "attach" else 1]
        for copy in range(count)
    ]
    if clients == 1 and rates is None and mixture.tenant_cv is None:
        model, count = mixture.models[0], len(places)
        return [
            Stream(model, place.seeds, n // count + (number < n % count), place.client.tenant)
            for number, place in enumerate(places)
        ]
    times = arrival_times(mixture, places, n, copies, rates, for_arrivals)
    rng = np.random.default_rng(for_models)
    tenants = _by_first_appearance(places, times)
    streams = []
    for place, arrival in zip(places, times, strict=True):
        model, client = mixture.models[place.client.model], place.client
        if len(arrival):
            own = at_speed(model, client.share * mixture.speed(client.model), rng)
            streams.append(Stream(own, place.seeds, len(arrival), tenants[client.tenant], client.model, arrival))
    return streams


def tenant_models(streams: list[Stream]) -> list[int]:
    """Tenant -> index of its model, of the tenants that have requests."""
    model = {stream.tenant: stream.source for stream in streams if stream.tenant >= 0}
    return [model[tenant] for tenant in sorted(model)]


def request_counts(mixture: Mixture, streams: list[Stream]) -> dict[str, Any]:
    """What a sidecar states of a sample of a mixture: requests of each model, and the model of each tenant."""
    values = mixture.to_dict()
    for place, model in enumerate(values["models"]):
        model["requests"] = sum(stream.rows for stream in streams if stream.source == place)
    return values if mixture.tenants is None else values | {"tenant_models": tenant_models(streams)}


def _by_first_appearance(places, times) -> dict[int, int]:
    """Tenant -> its number in the trace."""
    present = [number for number in range(len(places)) if len(times[number])]
    numbers = {-1: -1}
    for number in sorted(present, key=lambda number: float(times[number][0])):
        numbers.setdefault(places[number].client.tenant, len(numbers) - 1)
    return numbers
