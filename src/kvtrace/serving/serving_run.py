"""The result of serving a trace in simulated time: the times of each request, and their quantiles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._base.results import any_value, column
from ..cache.tiered import SharedTierDict, hits_by_tier
from .deployment import Deployment
from .expectations import ExpectedError, expected_error
from .instances import FEW_OVERLAP, FleetSimulation, Timeline
from .overload import Overload, overload
from .quantiles import Quantiles as Quantiles
from .quantiles import quantiles_of as quantiles_of
from .quantiles import served_only as served_only
from .schedulers.base import Scheduler, Tier

FIRST_TIER = "hbm"
REJECTED = "requests that do not fit into an instance, even alone; their times do not count"
PREEMPTED = "times that a running request lost its blocks and started over"
TTFT_MEANING = "time to first token, the median over the requests"
TTFT = {("p50",): "TTFT p50", ("p90",): "p90", ("p99",): "p99"}  # quantile -> its heading
TPOT = {("p50",): "TPOT p50"}


@dataclass(frozen=True, eq=False, repr=False)
class ServingRun(FleetSimulation):
    """The result of each request: its times in seconds, NaN if it was rejected."""

    started_s: np.ndarray = None  # type: ignore[assignment]  # when the request was admitted
    first_s: np.ndarray = None  # type: ignore[assignment]  # when its first token was computed
    ended_s: np.ndarray = None  # type: ignore[assignment]
    cached_tokens: np.ndarray = None  # type: ignore[assignment]  # prompt tokens that were not computed
    busy_s: tuple[float, ...] = ()  # compute time of each instance
    lower_tier_hits: np.ndarray | None = None  # (tier below the first, request) -> hit blocks that came from the tier
    scheduler: Scheduler | None = None
    steps: tuple[int, ...] = ()  # that each instance took
    preemptions: np.ndarray = None  # type: ignore[assignment]  # request -> times that it was preempted
    recomputed_tokens: np.ndarray = None  # type: ignore[assignment]  # request -> tokens computed again after that
    timelines: tuple[Timeline, ...] = ()  # of each instance, if they were kept
    tiers: tuple[Tier, ...] = ()  # below the first one of each instance
    unfitted: Deployment | None = None  # whose roofline the costs are; None: a recording's, or not known

    def _headline(self) -> str:
        ttft = quantiles_of(self.ttft_s)
        return f"{super()._headline()}, ttft_p50_s={ttft['p50']:.4g}, ttft_p99_s={ttft['p99']:.4g}"

    def _columns(self) -> dict[str, np.ndarray]:
        names = ("started_s", "first_s", "ended_s", "cached_tokens", "preemptions", "recomputed_tokens")
        times = {name: getattr(self, name) for name in names}
        return super()._columns() | times | {"ttft_s": self.first_s - self.trace.timestamp / 1000}

    def _remedy(self) -> str:
        return FEW_OVERLAP if self.router not in ("overlap", "sticky") else super()._remedy()

    @property
    def counted(self) -> slice:
        """The requests that count."""
        return slice(None)

    @property
    def schedule(self) -> str:
        """Requests are active as the simulated time has them."""
        return "events"

    @property
    @column()
    def served(self) -> int:
        """Requests that were served."""
        return len(self.ended_s[self.counted]) - self.rejected

    @property
    @column("rejected", ",", place=23, when=any_value, meaning=REJECTED)
    def rejected(self) -> int:
        """Requests that do not fit into an instance."""
        return int(np.isnan(self.ended_s[self.counted]).sum())

    @property
    @column(key="cached_tokens")
    def _cached_tokens(self) -> int:
        return int(self.cached_tokens[self.counted].sum())

    @property
    @column()
    def makespan_s(self) -> float:
        """Time from the start of the trace to the last end."""
        return float(np.nanmax(self.ended_s)) if np.isfinite(self.ended_s).any() else 0.0

    @property
    @column("requests/s", ".2f", rank=3, place=25)
    def requests_per_s(self) -> float:
        """Requests served for each second up to the last end."""
        return self.served / self.makespan_s if self.makespan_s else 0.0

    @property
    @column()
    def utilisation(self) -> list[float]:
        """Compute time of each instance, as a share of the time up to the last end."""
        return [busy / self.makespan_s if self.makespan_s else 0.0 for busy in self.busy_s]

    @property
    def instance_names(self) -> list[str]:
        """The instances in words, in the order of `busy_s`."""
        return [f"instance {number}" for number in range(len(self.busy_s))]

    @property
    def requests_at_once(self) -> float:
        """Requests that an instance runs when one starts, with that one, on average."""
        started, ended = served_only(self.started_s), served_only(self.ended_s)
        before = np.searchsorted(np.sort(started), started, "right")  # request -> those that started by then
        running = before - np.searchsorted(np.sort(ended), started, "right")
        return float(running.mean()) / self.instances if len(running) else 0.0

    @property
    @column(optional=True)
    def expected_error(self) -> ExpectedError | None:
        """The measured error of times like these; None if a recording is behind them, or if they have no deployment."""
        if self.unfitted is None:
            return None
        return expected_error(self.unfitted, self.requests_at_once * self.unfitted.data_parallel_size)

    @property
    @column(optional=True)
    def overload(self) -> Overload | None:
        """The load, if it exceeds what the instances serve; else None."""
        arrival_s = self.trace.timestamp / 1000
        return overload(arrival_s, self.started_s, self.ended_s, self.instance, self.busy_s)

    @property
    @column(key="scheduler")
    def _scheduler(self) -> str:
        return f"{self.scheduler.name} {self.scheduler.version}".strip() if self.scheduler else ""

    @property
    @column("preempted", ",", rank=2, place=24, key="preemptions", when=any_value, meaning=PREEMPTED)
    def _preemptions(self) -> int:
        return int(self.preemptions[self.counted].sum())

    @property
    @column(key="recomputed_tokens")
    def _recomputed_tokens(self) -> int:
        return int(self.recomputed_tokens[self.counted].sum())

    @property
    @column(key="steps")
    def _steps(self) -> int:
        return sum(self.steps)

    @property
    @column(value=quantiles_of)
    def queued_s(self) -> np.ndarray:
        """Time from arrival to admission, of the requests that were served."""
        return served_only(self.started_s - self.trace.timestamp / 1000)

    @property
    @column("TTFT p50", ".3f", unit=" s", none="-", place=21, value=quantiles_of, parts=TTFT, meaning=TTFT_MEANING)
    def ttft_s(self) -> np.ndarray:
        """Time to first token, from arrival, of the requests that were served."""
        return served_only(self.first_s - self.trace.timestamp / 1000)

    @property
    @column(
        "TPOT p50", ".1f", unit=" ms", none="-", scale=1000, rank=2, place=22, value=quantiles_of, parts=TPOT,
        meaning="time per output token, the median over the requests",
    )  # fmt: skip
    def tpot_s(self) -> np.ndarray:
        """Time per output token after the first, of the served requests with two output tokens or more."""
        several = self.trace.output_length > 1
        return served_only((self.ended_s - self.first_s)[several] / (self.trace.output_length[several] - 1))

    @property
    @column(value=quantiles_of)
    def e2e_s(self) -> np.ndarray:
        """Time from arrival to the last token, of the requests that were served."""
        return served_only(self.ended_s - self.trace.timestamp / 1000)

    @property
    @column("in each tier", ",", place=12, parts=hits_by_tier, key="tiers", optional=True)
    def _hits_of_tiers(self) -> list[SharedTierDict] | None:
        """The hit blocks of each tier, the first one first; None without lower tiers."""
        if self.lower_tier_hits is None:
            return None
        lower = self.lower_tier_hits[:, self.warm_up :].sum(axis=1).tolist()
        first = int(self.hit_blocks[self.warm_up :].sum()) - sum(lower)
        rows: list[SharedTierDict] = [{"name": FIRST_TIER, "capacity": self.setting.capacity, "hit_blocks": first}]
        for tier, hits in zip(self.tiers, lower, strict=True):
            rows.append({"name": tier.name, "capacity": tier.capacity, "hit_blocks": hits})
        return rows
