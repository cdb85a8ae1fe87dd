"""The first answer from a log: ten lines on its traffic, its hits, what they save, and a deployment.

Each line stands on one part (the trace, the curve, the lint report, the plan). A part that is missing has a reason,
which is its line. Names of the log's content do not occur: models are those of the catalog.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._base.results import Result, columns_of
from .._base.units import GIB, short
from ..serving.hardware.room import kv_room
from ..serving.hardware.roofline import roofline_of
from ..trace.hits import leading_tokens
from ..trace.unknown import OUTPUTS, TIMES, TOO_LOW, unknown

if TYPE_CHECKING:
    from ..analysis.curves import HitCurve
    from ..privacy.account import Account
    from ..privacy.publishing import Published
    from ..serving.deployment import Deployment
    from ..serving.planning.plan_result import Plan
    from ..trace.trace import Trace

SCHEMA = 1  # version of the keys of to_dict
WIDTH = 80  # columns
NAME_WIDTH = 9  # of the name of a line
MOST_HITS = 0.9  # share of the possible hits at which memory counts as enough
FINDINGS = 3
DAY_S = 86_400
SHORT_S = 60  # a log of less time does not tell what a day has


class AnswerLine(NamedTuple):
    """One line: its name, and its sentences."""

    name: str
    text: str

    def wrapped(self, width: int = WIDTH) -> str:
        """The line in a number of columns.

        >>> print(AnswerLine("hits", "0.21 of the prompt tokens need no prefill.").wrapped(40))
        hits     0.21 of the prompt tokens need
                 no prefill.
        """
        indent = " " * NAME_WIDTH
        name = f"{self.name:<{NAME_WIDTH}}"
        return textwrap.fill(
            self.text, width, initial_indent=name, subsequent_indent=indent, break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip


@dataclass(frozen=True)
class Saving:
    """The prefill that hits save, in hours of one GPU."""

    prefill_gpu_hours: float  # of the log, without hits
    saved_gpu_hours: float  # of it, with every possible hit
    instance_gpu_hours: float  # of it, with the memory of one instance
    usd_per_gpu_hour: float
    days: float | None  # that the log covers; None: unknown, or too short to tell


@dataclass(frozen=True, repr=False, kw_only=True)
class Answer(Result):
    """The result of `kvtrace.start`: it prints ten lines, and has the parts that they rest on."""

    trace: Trace
    log: str  # what was read, in words
    deployment: Deployment  # the model, and the GPUs of one instance
    assumed: Sequence[str] = ()  # names of what nobody stated: model, gpu_price, times
    lint: Any = None  # LintReport; None: see `missing`
    curve: HitCurve | None = None
    saving: Saving | None = None
    plan: Plan | None = None
    published: Published | None = None
    account: Account | None = None  # of the release
    missing: Mapping[str, str] = field(default_factory=dict)  # part -> why it is missing
    notes: Sequence[str] = ()  # on the log
    rejected: int = 0  # bad rows
    folder: str = ""
    files: Sequence[str] = ()
    next: Sequence[str] = ()  # commands to paste

    @property
    def lines(self) -> list[AnswerLine]:
        """The ten lines; fewer if `lint` has fewer findings."""
        rows = [
            ("log", self._log()), ("private", self._private()), ("traffic", self._traffic()), ("hits", self._hits()),
            ("saved", self._saved()), ("memory", self._memory()), *(("sharing", text) for text in self._sharing()),
            ("run", self._run()),
        ]  # fmt: skip
        return [AnswerLine(*row) for row in rows]

    def text(self, width: int = WIDTH) -> str:
        """The ten lines in a number of columns, then the files and the commands to paste."""
        wrote = [f"{'wrote':<{NAME_WIDTH}}{name}" for name in self.files]
        commands = [f"{'next':<{NAME_WIDTH}}{command}" for command in self.next]
        return "\n".join([*(line.wrapped(width) for line in self.lines), *wrote, *commands])

    def __str__(self) -> str:
        return self.text()

    def _headline(self) -> str:
        return f"{len(self.trace):,} requests, {self._run()}"

    def _columns(self) -> dict[str, list[Any]]:
        """One row for each line."""
        return columns_of(line._asdict() for line in self.lines)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object: the lines and the figures of each part; `schema` is its version."""
        hits = None if self.curve is None else self.curve.at(self.curve.working_set).to_dict()
        return {
            "schema": SCHEMA,
            "lines": [line._asdict() for line in self.lines],
            "requests": len(self.trace),
            "prompt_tokens": int(self.trace.input_length.sum()),
            "unlimited": hits,
            "saving": None if self.saving is None else vars(self.saving),
            "memory": self._memory_figures(),
            "findings": [] if self.lint is None else [each.to_dict() for each in self.lint.findings[:FINDINGS]],
            "deployment": self.deployment.to_dict(),
            "plan": None if self.plan is None else self.plan.to_dict(),
            "assumed": list(self.assumed),
            "missing": dict(self.missing),
            "notes": list(self.notes),
            "rejected": self.rejected,
            "files": list(self.files),
            "next": list(self.next),
        }

    # -- the lines -------------------------------------------------------------------------------------------------

    def _log(self) -> str:
        rejected = f" {self.rejected:,} bad rows were skipped." if self.rejected else ""
        return f"{self.log}.{rejected}"

    def _private(self) -> str:
        if reason := self.missing.get("release"):
            return reason
        assert self.published is not None and self.account is not None
        alone = self.published.audit.of_file_alone()
        levels = [finding.level for finding in alone.findings]
        counts = f"{levels.count('PASS')} checks passed, {levels.count('WARN')} warn"
        return f"the trace holds no text; profile {self.account.profile.name}, audit: {counts}.{self._cost()}"

    def _cost(self) -> str:
        """What the release costs in hits, if that is much."""
        steps = self.account.steps if self.account else []
        if not steps:
            return ""
        before, after = steps[0].hits.block_hit_rate, steps[-1].hits.block_hit_rate
        return f" It hides {100 * (before - after):.0f} points of the block hit rate." if before - after > 0.02 else ""

    def _traffic(self) -> str:
        trace, missing = self.trace, unknown(self.trace, self.trace.meta)
        over = f" over {duration(self._seconds)}" if self._seconds else " at one time"
        over = ", times unknown" if TIMES in missing else over
        sessions = "sessions unknown" if trace.session is None else f"{int(trace.session.max()) + 1:,} sessions"
        tokens = int(trace.input_length.sum())
        known = trace.output_length[trace.output_length >= 0]
        outputs = f"{short(int(known.sum()))} output tokens"
        if OUTPUTS in missing:
            outputs = "output tokens unknown" + (f" for {len(trace) - len(known):,} requests" if len(known) else "")
        mean = tokens / max(len(trace), 1)
        return (
            f"{len(trace):,} requests{over}, {sessions}; {short(tokens)} prompt tokens ({mean:,.0f} a request), "
            f"{outputs}."
        )

    @property
    def _seconds(self) -> float:
        """The time that the trace covers, in seconds."""
        return float(self.trace.timestamp[-1] - self.trace.timestamp[0]) / 1000 if len(self.trace) else 0.0

    def _hits(self) -> str:
        curve = self.curve
        if curve is None:
            return f"unknown: {self.missing['curve']}"
        best = curve.at(curve.working_set).token_hit_rate
        low = (self.trace.meta.get("log") or {}).get("request_sample")
        memory = self._memory_figures()
        here = "" if memory is None else (
            f", {curve.at(memory['instance_blocks']).token_hit_rate:.2f} in the memory of {self._instance()}"
        )  # fmt: skip
        return (
            f"{best:.2f} of the prompt tokens are repeated beginnings, which need no prefill if the cache keeps them"
            f"{here}." + (f" {TOO_LOW.format(share=f'{low:.3g}')}" if low else "")
        )

    def _saved(self) -> str:
        if self.saving is None:
            return f"unknown: {self.missing.get('saving') or self.missing.get('curve', '')}"
        saving = self.saving
        price = f"{saving.usd_per_gpu_hour:.2f} USD" + (", assumed" if "gpu_price" in self.assumed else "")
        factor, per = (1.0, "for this log") if saving.days is None else (1 / saving.days, "a day")
        saved, whole, here = (
            hours * factor for hours in (saving.saved_gpu_hours, saving.prefill_gpu_hours, saving.instance_gpu_hours)
        )
        usd = saved * saving.usd_per_gpu_hour
        return (
            f"up to {hours_of(saved)} of {hours_of(whole)} GPU-hours of prefill {per}, {usd:,.2f} USD (an hour of "
            f"{self._gpu()}: {price}); {hours_of(here)} with the memory of {self._instance()}."
        )

    def _memory_figures(self) -> dict[str, Any] | None:
        """The memory for most of the possible hits, and that of one instance; None if either is unknown."""
        if self.curve is None or "memory" in self.missing:
            return None
        room = kv_room(self.deployment)
        if not room.tokens or not room.token_bytes:
            return None
        blocks = self.curve.least_capacity(MOST_HITS, "hit_tokens")
        gpus = self.deployment.gpus_per_instance
        token_bytes = room.token_bytes * gpus
        instance_blocks = max(1, room.tokens // self.trace.block_size)
        return {
            "share": MOST_HITS, "blocks": blocks, "gib": blocks * self.trace.block_size * token_bytes / GIB,
            "instance_blocks": instance_blocks,
            "instance_gib": instance_blocks * self.trace.block_size * token_bytes / GIB,
        }  # fmt: skip

    def _memory(self) -> str:
        memory = self._memory_figures()
        if memory is None:
            return f"unknown: {self.missing.get('memory') or self.missing.get('curve', '')}"
        if not self.curve or not self.curve.at(self.curve.working_set).hit_tokens:
            return "no amount of memory brings hits: no two prompts begin alike."
        model = f"{self.deployment.model_name}{', assumed' if 'model' in self.assumed else ''}"
        need, have = memory["gib"], memory["instance_gib"]
        enough = f"{self._instance()} {verb(self.deployment, 'has', 'have')} {size_of(have)} beside the weights"
        advice = "enough." if have >= need else (
            f"so it takes {-(-need // have):,.0f} of them that share their cache, or host memory of that size."
        )  # fmt: skip
        return f"90 % of these hits need {size_of(need)} of KV cache ({model}); {enough}: {advice}"

    def _sharing(self) -> list[str]:
        if self.lint is None:
            return [f"unknown: {self.missing.get('lint', '')}"]
        if not self.lint.findings:
            return ["nothing found that breaks the sharing of prefixes."]
        return [
            f"{finding.requests:,} requests diverge at {finding.where}: {finding.what}. It "
            f"costs {short(finding.tokens)} prompt tokens ({100 * self.lint.share(finding):.1f} % of all). "
            f"{finding.sentence}"
            for finding in self.lint.findings[:FINDINGS]
        ]

    def _run(self) -> str:
        if self.plan is None:
            return f"unknown: {self.missing.get('plan', '')}"
        return recommended(self.plan, self.assumed)

    def _gpu(self) -> str:
        return self.deployment.gpu_name.upper()

    def _instance(self) -> str:
        """The GPUs of an instance."""
        gpus = self.deployment.gpus_per_instance
        return f"{'one' if gpus == 1 else gpus} {self._gpu()}{'' if gpus == 1 else 's'}"


def verb(deployment: Deployment, one: str, many: str) -> str:
    """The form of a verb for the GPUs of an instance."""
    return one if deployment.gpus_per_instance == 1 else many


def duration(seconds: float) -> str:
    """A duration in one unit.

    >>> duration(42), duration(6448), duration(7200), duration(90_000 * 4)
    ('42 s', '1.8 h', '2 h', '4.2 days')
    """
    for unit, size, least in (("days", DAY_S, 2 * DAY_S), ("h", 3600, 3600), ("min", 60, 120)):
        if seconds >= least:
            return f"{seconds / size:,.2g} {unit}"
    return f"{seconds:,.2g} s"


def hours_of(hours: float) -> str:
    """Hours with two digits.

    >>> hours_of(0.00311), hours_of(5.84), hours_of(1234.5)
    ('0.0031', '5.8', '1,234')
    """
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"


def size_of(gib: float) -> str:
    """A size of memory.

    >>> size_of(0.04), size_of(54.2), size_of(1964.7)
    ('0.04 GiB', '54 GiB', '1.9 TiB')
    """
    return f"{gib / 1024:,.2g} TiB" if gib >= 1000 else f"{gib:,.0f} GiB" if gib >= 10 else f"{gib:.2g} GiB"


def saving_of(trace: Trace, curve: HitCurve, deployment: Deployment) -> Saving:
    """The GPU-hours of prefill that the hits of a trace save.

    Args:
        trace: The trace.
        curve: Its hit curve.
        deployment: The model and the GPUs that compute the prompts.
    """
    roofline, tokens = roofline_of(deployment), trace.input_length
    room = kv_room(deployment).tokens or 0

    def gpu_hours(capacity: int) -> float:
        hit = leading_tokens(trace, curve.hits_per_request(capacity))
        seconds = roofline.compute_s(tokens) - roofline.compute_s(tokens - hit, hit)
        return float(np.sum(seconds)) * roofline.gpus / 3600

    seconds = float(trace.timestamp[-1] - trace.timestamp[0]) / 1000
    is_timed = TIMES not in unknown(trace, trace.meta) and seconds >= SHORT_S
    return Saving(
        prefill_gpu_hours=float(np.sum(roofline.compute_s(tokens))) * roofline.gpus / 3600,
        saved_gpu_hours=gpu_hours(curve.working_set), instance_gpu_hours=gpu_hours(max(1, room // trace.block_size)),
        usd_per_gpu_hour=roofline.gpu.price_per_hour, days=seconds / DAY_S if is_timed else None,
    )  # fmt: skip


def recommended(plan: Plan, assumed: Sequence[str] = ()) -> str:
    """The deployment that a plan recommends, in a sentence."""
    part, setting = plan.instances, plan.setting
    best, target = part.best, part.target
    quantile = f"p{100 * target.quantile:g}"
    model = f"{setting.model}{' (assumed)' if 'model' in assumed else ''}"
    gpus = f"{setting.gpus_per_instance} x " if setting.gpus_per_instance > 1 else ""
    if best is None:
        reason = next((row.reason for row in part.routers if row.instances is None), "")
        return (
            f"no number of {gpus}{setting.gpu.upper()} gives {model} a {quantile} TTFT of {target.ttft_s:g} s. {reason}"
        )
    count = best.instances * setting.gpus_per_instance
    price = best.instances * setting.usd_per_instance_hour
    each = f" ({best.instances:,} instances of {setting.gpus_per_instance})" if gpus else ""
    load = "at an assumed 1 request a second, " if "times" in assumed else ""
    return (
        f"{load}{count:,} x {setting.gpu.upper()}{each} with {model} in vLLM behind a {best.router} router, "
        f"{price:,.2f} USD an hour: {quantile} time to first token {best.ttft_s:.2g} s (target {target.ttft_s:g} s), "
        f"{best.utilisation:.0%} busy.{_sure(plan)}"
    )


def _sure(plan: Plan) -> str:
    """The number of instances that the errors of simulated times make sure."""
    error, best = plan.instances.model_error, plan.instances.best
    if error is None or best is None or error.sure_instances in (None, best.instances):
        return ""
    return f" {error.sure_instances * plan.setting.gpus_per_instance:,} are sure, as simulated times are off by up to {error.error:.0%}."
