"""The clients of a sample: the model of each, how many rows it draws, and when they arrive.

A model alone draws one stream, or parallel ones if the rate grows, with its own arrivals. For the clients of a mixture,
and for a model at the rates of a profile, arrivals are drawn first, and say how many rows each stream draws.

A mixture has a client for each model, or tenants with heavy-tailed rates. ServeGen found that a few clients send most
requests, and that each has its own rate, bursts and lengths. Here the rates follow Zipf's law, and each tenant has one
model, drawn so that the models keep their shares of the requests. By default the requests of a model are dealt to its
clients at random, in proportion to their rates: all clients together arrive as the model does. With `tenant_cv`, each
client has gamma gaps; the drift is the model's.

Time passes for a faster or slower client as it passed in the trace: its windows have more or fewer requests, and
between two uses of a block it uses more or fewer other blocks. So reuse times stay, and a cache that all clients share
hits as before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.arrays import offsets_of
from .._base.errors import InputError
from .._native import numbering
from .arrival_processes import ArrivalStream, Flow, first_arrivals, flow_of, gamma_counts, model_arrivals
from .attach_model import Model
from .bins import Bins
from .drawing import Stream
from .mixture import Mixture
from .rate_profile import RateProfile

if TYPE_CHECKING:
    from .tree import Tree


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
        PendingStream(client, client.share / count, seeds[number * copies + copy])
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


@dataclass(frozen=True)
class Client:
    """A client: who it behaves like, and how often it sends requests."""

    model: int  # index of its model
    share: float  # of all requests
    tenant: int = -1  # -1 = requests have no tenant


def clients_of(mixture: Mixture, rng: np.random.Generator) -> list[Client]:
    """The clients of a mixture; their shares sum to 1, and those of a model to its share.

    >>> from kvtrace.synthesis.attach_fitting import fit
    >>> from kvtrace.synthesis.mixture import mix
    >>> from kvtrace.trace.building import toy
    >>> models = [fit(toy("0 1", "0 1 2")), fit(toy("0", "1"))]
    >>> clients = clients_of(mix(models, [0.7, 0.3], tenants=3), np.random.default_rng(1))
    >>> [(client.model, round(client.share, 3)) for client in clients]
    [(0, 0.525), (1, 0.3), (0, 0.175)]
    """
    if mixture.tenants is None:
        return [Client(place, share) for place, share in enumerate(mixture.shares)]
    shares = np.array(mixture.shares)
    rate = np.arange(1, mixture.tenants + 1) ** -mixture.tenant_skew
    rate /= rate.sum()
    model = _deal(rate, shares, rng)
    rate *= (shares / np.bincount(model, weights=rate, minlength=len(shares)))[model]
    return [Client(int(of), float(share), tenant) for tenant, (of, share) in enumerate(zip(model, rate, strict=True))]


def _deal(rates, shares, rng) -> np.ndarray:
    """Tenant -> model: drawn, from the largest tenant on, among the models that still have room for its rate."""
    room, model = shares.copy(), np.empty(len(rates), dtype=np.int64)
    empty = np.ones(len(shares), dtype=bool)
    for tenant, rate in enumerate(rates):
        waiting = len(rates) - tenant <= empty.sum()  # the last tenants go to the models that have none
        weight = np.where(empty | (not waiting), np.maximum(room, 0.0), 0.0)
        fits = weight * (room >= rate)
        if fits.any():
            model[tenant] = rng.choice(len(shares), p=fits / fits.sum())
        else:
            model[tenant] = int(np.argmax(np.where(empty | (not waiting), room, -np.inf)))
        room[model[tenant]] -= rate
        empty[model[tenant]] = False
    return model


DISTANCES = ("distance", "fork_distance")  # in distinct blocks


def at_speed(model: Model | Tree, speed: float, rng: np.random.Generator) -> Model | Tree:
    """The model with `speed` times the requests in each window; windows without requests are left out.

    >>> from kvtrace.synthesis.attach_fitting import fit
    >>> from kvtrace.trace.building import toy
    >>> model = fit(toy("0", "0 1", "0 2", "3"))
    >>> at_speed(model, 0.5, np.random.default_rng(1)).window_rows
    array([2])
    """
    if speed == 1 or not isinstance(model, Model):
        return model
    rows = np.diff(np.floor(offsets_of(model.window_rows) * speed + rng.random()).astype(np.int64))
    if not rows.any():
        rows[rng.integers(len(rows))] = 1
    kept = rows > 0
    sizes = np.diff(model.starts)[kept]
    records = numbering.ranges(model.starts[:-1][kept], sizes)
    return replace(
        model, records={name: column[records] for name, column in model.records.items()}, starts=offsets_of(sizes),
        window_rows=rows[kept], working_set=max(1, round(model.working_set * speed)),
        bins=model.bins | {name: _scaled(model.bins[name], speed) for name in DISTANCES},
    )  # fmt: skip


def _scaled(bins: Bins, factor: float) -> Bins:
    return Bins(np.rint(bins.low * factor).astype(np.int64), np.rint(bins.high * factor).astype(np.int64), bins.power)


@dataclass(frozen=True, eq=False)
class PendingStream:
    """A stream whose arrivals are not drawn yet."""

    client: Client
    share: float  # of all requests
    seeds: np.random.SeedSequence


def arrival_times(
    mixture: Mixture,
    places: list[PendingStream],
    n: int,
    copies: int,
    rates: RateProfile | None,
    seeds: np.random.SeedSequence,
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


def _with_own_bursts(cv, places, parts, seeds) -> list[ArrivalStream]:
    processes = []
    for place, seed in zip(places, seeds.spawn(len(places)), strict=True):
        flow, speed = parts[place.client.model]
        processes.append(ArrivalStream(flow.times(place.share * speed), gamma_counts(cv, np.random.default_rng(seed))))
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
