"""The first answer from a log: ten lines on its traffic, its hits, what they save, and a deployment.

Each line stands on one part (the trace, the curve, the lint report, the plan). A part that is missing has a reason,
which is its line. Names of the log's content do not occur: models are those of the catalog.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._base.results import Result, columns_of
from .._base.units import GIB, duration, memory_size, short
from ..serving.hardware.roofline import roofline_of
from ..serving.hardware.room import kv_room
from ..trace.hits import leading_tokens
from ..trace.unknown import OUTPUTS, TIMES, TOO_LOW, unknown

if TYPE_CHECKING:
    from .._base.row_counts import RowCounts
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
NOTABLE_POINTS = 2  # of the block hit rate that a release hides
ANSWER_TOKENS = 128  # of an answer whose length is unknown
NEARLY_ALL = 0.99  # of the possible hits
MOSTLY_IDLE = 0.25  # busy time below which the target decides, and not the load
IDLE = "They are mostly idle: the target asks for so many, not the load. A longer --ttft needs fewer."
REJECTS = "To list them: kvtrace anonymize --on-error skip --rejects FILE"
AS_HITS = "the hits are unknown."


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
    saved_gpu_hours: float | None  # of it, with every possible hit; None: hits are unknown
    instance_gpu_hours: float | None  # of it, with the memory of one instance
    usd_per_gpu_hour: float
    days: float | None  # that the log covers; None: unknown, or too short to tell


@dataclass(frozen=True, repr=False, kw_only=True)
class Answer(Result):
    """The result of `kvtrace.start`: it prints ten lines, and has the parts that they rest on."""

    trace: Trace
    log: str  # what was read, in words
    deployment: Deployment  # the model, and the GPUs of one instance
    why_gpus: str = ""  # why an instance has more than one
    assumed: Sequence[str] = ()  # what nobody stated: model, gpu_price, tokenizer, times, outputs, prefixes
    lint: Any = None  # LintReport; None: see `missing`
    curve: HitCurve | None = None
    saving: Saving | None = None
    plan: Plan | None = None
    published: Published | None = None
    account: Account | None = None  # of the release
    missing: Mapping[str, str] = field(default_factory=dict)  # part -> why it is missing
    notes: Sequence[str] = ()  # on the log
    models: int = 0  # that the log's first rows name
    caveats: Sequence[str] = ()  # why prompts may differ from those that the engine got
    counts: RowCounts | None = None  # of the log's rows
    status: int = 0  # exit status: that of the trace, which nobody may take for written if it is not
    folder: str = ""
    files: Sequence[str] = ()
    next: Sequence[str] = ()  # commands to paste

    @property
    def lines(self) -> list[AnswerLine]:
        """The ten lines; fewer if `lint` has fewer findings, more if there are caveats."""
        rows = [
            ("log", self._log()), ("private", self._private()), ("traffic", self._traffic()), ("hits", self._hits()),
            ("saved", self._saved()), ("memory", self._memory()), *(("sharing", text) for text in self._sharing()),
            ("run", f"{self._run()}{self._expected()}"),
            *(("note", f"{text[:1].upper()}{text[1:]}") for text in self.caveats),
        ]  # fmt: skip
        return [AnswerLine(*row) for row in rows]

    def text(self, width: int = WIDTH) -> str:
        """The ten lines in a number of columns, then the files and the commands to paste."""
        page = [AnswerLine("page", f"unknown: {self.missing['page']}").wrapped(width)] if "page" in self.missing else []
        wrote = [f"{'wrote':<{NAME_WIDTH}}{name}" for name in self.files]
        commands = [f"{'next':<{NAME_WIDTH}}{command}" for command in self.next]
        return "\n".join([*(line.wrapped(width) for line in self.lines), *page, *wrote, *commands])

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
            "memory": self._memory_figures,
            "findings": [] if self.lint is None else [each.to_dict() for each in self.lint.findings[:FINDINGS]],
            "deployment": self.deployment.to_dict() | {"gpu": self.deployment.gpu_name},
            "plan": None if self.plan is None else self.plan.to_dict(),
            "assumed": list(self.assumed),
            "missing": dict(self.missing),
            "notes": list(self.notes),
            "caveats": list(self.caveats),
            "rejected": 0 if self.counts is None else self.counts.rejected,
            "reasons": {} if self.counts is None else dict(self.counts.reasons),
            "left_out": {} if self.counts is None else self.counts.left_out,
            "files": list(self.files),
            "next": list(self.next),
        }

    # -- the lines -------------------------------------------------------------------------------------------------

    def _log(self) -> str:
        if self.counts is None or not self.counts.rejected + self.counts.filtered:
            return f"{self.log}."
        out = [f"{count:,} {words}" for words, count in self.counts.left_out.items()]
        if self.counts.rejected:
            ((reason, count),) = self.counts.reasons.most_common(1)
            most = "" if count == self.counts.rejected else f"{count:,} of them: "
            out.append(f"{counted(self.counts.rejected, 'bad row')} ({most}{reason.rstrip('.')}). {REJECTS}")
        return f"{self.log}. Left out: {', '.join(out).rstrip('.')}."

    def _private(self) -> str:
        if reason := self.missing.get("release"):
            return reason
        assert self.published is not None and self.account is not None
        levels = [finding.level for finding in self.published.audit.of_file_alone().findings]
        return (
            f"trace.jsonl holds numbers in place of text (profile {self.account.profile.name}); its audit: "
            f"{levels.count('PASS')} checks pass, {levels.count('WARN')} warn.{self._cost()}"
        )

    def _cost(self) -> str:
        """What the release costs in hits, if that is much."""
        steps = self.account.steps if self.account else []
        if not steps:
            return ""
        points = 100 * (steps[0].hits.block_hit_rate - steps[-1].hits.block_hit_rate)
        return f" Anonymizing hides {points:.0f} points of the hit rate." if points >= NOTABLE_POINTS else ""

    def _traffic(self) -> str:
        trace, missing = self.trace, unknown(self.trace, self.trace.meta)
        over = f" over {duration(seconds_of(trace))}" if seconds_of(trace) else " at one time"
        over = f" at {self._arrivals}, as the log has no times" if TIMES in missing else over
        sessions = "sessions unknown"
        if trace.session is not None:
            single = int((trace.session < 0).sum())
            sessions = counted(int(trace.session.max()) + 1, "session")
            sessions += f" and {counted(single, 'single request')}" if single else ""
        tokens, known = int(trace.input_length.sum()), trace.output_length[trace.output_length >= 0]
        outputs = f"{short(int(known.sum()))} output tokens"
        if OUTPUTS in missing:
            outputs = f"output tokens unknown for {len(trace) - len(known):,} requests"
            outputs += " (name their field: --map output_length=FIELD, or output=FIELD)" if self.counts else ""
        return (
            f"{counted(len(trace), 'request')}{over}, {sessions}; {short(tokens)} prompt tokens "
            f"({tokens / max(len(trace), 1):,.0f} a request), {outputs}."
        )

    @property
    def _arrivals(self) -> str:
        """The arrivals of a log without times."""
        rate = ((self.trace.meta.get("log") or {}).get("arrivals") or {}).get("conversations_per_s")
        if rate is None:
            return "times of a model"
        name = "request" if self.trace.session is None else "conversation"
        return f"{'an assumed ' if 'times' in self.assumed else ''}{rate:g} {name}{'' if rate == 1 else 's'} a second"

    def _hits(self) -> str:
        if self.curve is None:
            return f"unknown: {self.missing['curve']}"
        best = self.curve.at(self.curve.working_set).token_hit_rate
        if not best:
            return f"0: no prompt begins with {self.trace.block_size:,} tokens or more of an earlier prompt."
        here = ""
        if self._memory_figures is not None and best:
            rate = self.curve.at(self._memory_figures["instance_blocks"]).token_hit_rate
            alone = "is enough for that" if rate >= NEARLY_ALL * best else f"alone gives {rate:.2f}"
            here = f" The memory of {self._instance} {alone}."
        sample = (self.trace.meta.get("log") or {}).get("request_sample")
        low = f" {TOO_LOW.format(share=f'{100 * sample:.3g}%')}" if sample else ""
        return (
            f"{best:.2f}: {100 * best:.0f} of 100 prompt tokens repeat the beginning of an earlier prompt. They need "
            f"no prefill if the cache still holds them.{here}{low}"
        )

    def _saved(self) -> str:
        saving = self.saving
        if saving is None:
            return f"unknown: {self.missing.get('saving') or AS_HITS}"
        factor, per = (1.0, "for this log") if saving.days is None else (1 / saving.days, "a day")
        per += " at this load" if saving.days is not None and saving.days < 1 else ""
        price = f"{saving.usd_per_gpu_hour:.2f} USD an hour{', assumed' if 'gpu_price' in self.assumed else ''}"
        whole = hours_of(saving.prefill_gpu_hours * factor)
        if saving.saved_gpu_hours is None:
            tenth = 0.1 * saving.prefill_gpu_hours * factor
            return (
                f"unknown, as the hits are. Prefill takes {whole} {self._gpu}-hours {per}; each 0.1 of hit rate saves "
                f"{hours_of(tenth)} of them, {tenth * saving.usd_per_gpu_hour:,.2f} USD ({price})."
            )
        if not saving.saved_gpu_hours:
            return f"nothing, without hits. Prefill takes {whole} {self._gpu}-hours {per}."
        saved, here = saving.saved_gpu_hours * factor, (saving.instance_gpu_hours or 0) * factor
        alone = f"; the memory of {self._instance} alone saves {hours_of(here)}" if here < NEARLY_ALL * saved else ""
        return (
            f"these hits save {hours_of(saved)} of {whole} {self._gpu}-hours of prefill {per}, "
            f"{saved * saving.usd_per_gpu_hour:,.2f} USD ({price}){alone}."
        )

    @cached_property
    def _memory_figures(self) -> dict[str, Any] | None:
        """The memory of an instance, and that for most of the possible hits; None if either is unknown."""
        if "memory" in self.missing:
            return None
        room, gpus, size = kv_room(self.deployment), self.deployment.gpus_per_instance, self.trace.block_size
        if not room.tokens or not room.token_bytes:
            return None
        token_gib = room.token_bytes * gpus / GIB
        blocks = None if self.curve is None else self.curve.least_capacity(MOST_HITS, "hit_tokens")
        return {
            "instance_blocks": max(1, room.tokens // size), "instance_gib": room.tokens * token_gib, "share": MOST_HITS,
            "blocks": blocks, "gib": None if blocks is None else blocks * size * token_gib,
        }  # fmt: skip

    def _memory(self) -> str:
        memory = self._memory_figures
        if memory is None:
            return f"unknown: {self.missing.get('memory') or AS_HITS}"
        have, need, model = memory["instance_gib"], memory["gib"], self._model
        room = f"{self._instance} {'has' if self.deployment.gpus_per_instance == 1 else 'have'} {memory_size(have)}"
        beside = f"{room[0].upper()}{room[1:]} for KV cache beside the weights of {model}."
        if need is None:
            return f"unknown, as the hits are. {beside}"
        assert self.curve is not None
        if not self.curve.at(self.curve.working_set).hit_tokens:
            return f"more memory brings no hits. {beside}"
        enough = f"{room} beside the weights, which is enough."
        if need > have:
            enough = (
                f"{room} beside the weights. Host memory for the cache, or a router that keeps equal beginnings "
                f"together on {-(-need // have):,.0f} instances, brings the rest."
            )
        return f"90 % of these hits need {memory_size(need)} of KV cache for {model}; {enough}"

    def _sharing(self) -> list[str]:
        if self.lint is None:
            return [f"unknown: {self.missing.get('lint', '')}"]
        if not self.lint.findings:
            return ["kvtrace lint finds nothing in the prompts that breaks the sharing of beginnings."]
        return [
            f"{counted(finding.requests, 'request')} diverge at {finding.where}: {finding.what}. Lost: "
            f"{short(finding.tokens)} prompt tokens ({100 * self.lint.share(finding):.1f} % of all). {finding.sentence}"
            for finding in self.lint.findings[:FINDINGS]
        ]

    def _run(self) -> str:
        if self.plan is None:
            return f"unknown: {self.missing.get('plan', '')}"
        conditions = {**CONDITIONS, "times": f"at {self._arrivals}"}
        is_one = self.models > 1 and "model" not in self.assumed
        note = f" (one of {self.models} models of the log)" if is_one else ""
        text = recommended(self.plan, self.assumed, conditions, note)
        return text + (f" {self.why_gpus}" if self.why_gpus else "")

    def _expected(self) -> str:
        """What was measured of the error of these times."""
        return f" {self.plan.expected_error.text}" if self.plan and self.plan.expected_error else ""

    @property
    def _model(self) -> str:
        return f"{self.deployment.model_name}{' (assumed)' if 'model' in self.assumed else ''}"

    @property
    def _gpu(self) -> str:
        return (self.deployment.gpu_name or "GPU").upper()

    @property
    def _instance(self) -> str:
        """The GPUs of an instance."""
        gpus = self.deployment.gpus_per_instance
        return f"one {self._gpu}" if gpus == 1 else f"{gpus} {self._gpu}s"


def counted(count: int, name: str) -> str:
    """A number of things.

    >>> counted(1, "session"), counted(1200, "request")
    ('1 session', '1,200 requests')
    """
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def seconds_of(trace: Trace) -> float:
    """The time that a trace covers, in seconds."""
    return float(trace.timestamp[-1] - trace.timestamp[0]) / 1000 if len(trace) else 0.0


def hours_of(hours: float) -> str:
    """Hours with two digits.

    >>> hours_of(0.00311), hours_of(5.84), hours_of(1234.5)
    ('0.0031', '5.8', '1,234')
    """
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:#.2g}" if hours else "0"


def saving_of(trace: Trace, curve: HitCurve | None, deployment: Deployment) -> Saving:
    """The GPU-hours of prefill that the hits of a trace save.

    Args:
        trace: The trace.
        curve: Its hit curve; None if its hits are unknown.
        deployment: The model and the GPUs that compute the prompts.

    >>> from kvtrace.analysis.curves import hit_curve
    >>> from kvtrace.serving.deployment import Deployment
    >>> from kvtrace.trace.building import toy
    >>> trace = toy("0 1", "0 1", block_size=512)
    >>> saving = saving_of(trace, hit_curve(trace), Deployment("llama-3.1-8b", gpu="h100"))
    >>> saving.saved_gpu_hours / saving.prefill_gpu_hours
    0.5
    """
    roofline, tokens = roofline_of(deployment), trace.input_length

    def gpu_hours(new: np.ndarray, cached: np.ndarray | int = 0) -> float:
        return float(np.sum(roofline.compute_s(new, cached))) * roofline.gpus / 3600

    whole = gpu_hours(tokens)

    def saved(capacity: int) -> float | None:
        if curve is None:
            return None
        hit = leading_tokens(trace, curve.hits_per_request(capacity))
        return whole - gpu_hours(tokens - hit, hit)

    is_timed = TIMES not in unknown(trace, trace.meta) and seconds_of(trace) >= SHORT_S
    room = kv_room(deployment).tokens or 0
    return Saving(
        prefill_gpu_hours=whole, saved_gpu_hours=saved(trace.working_set),
        instance_gpu_hours=saved(max(1, room // trace.block_size)), usd_per_gpu_hour=roofline.gpu.price_per_hour,
        days=seconds_of(trace) / DAY_S if is_timed else None,
    )  # fmt: skip


CONDITIONS = {  # what was assumed -> in words
    "outputs": f"with answers of an assumed {ANSWER_TOKENS} tokens",
    "prefixes": "without hits, which are unknown",
}


def recommended(plan: Plan, assumed: Sequence[str], conditions: Mapping[str, str], note: str = "") -> str:
    """The deployment that a plan recommends, in a few sentences.

    Args:
        plan: The plan.
        assumed: What was assumed for it: model, times, outputs, prefixes.
        conditions: What was assumed, in words.
        note: On the model.
    """
    part = plan.instances
    model = f"{plan.setting.model}{' (assumed)' if 'model' in assumed else ''}"
    stated = ", ".join(words for name, words in conditions.items() if name in assumed)
    lead = f"{stated}: " if stated else ""
    sentence = plan.answer.sentence.removeprefix("Run ").replace("TTFT", "time to first token")
    is_idle = part.best is not None and part.best.instances > 1 and part.best.utilisation < MOSTLY_IDLE
    idle = f" {IDLE}" if is_idle else ""
    return f"{lead}{sentence}. Model: {model}{note}, in vLLM; target: {part.target.ttft_s:g} s.{idle}"
