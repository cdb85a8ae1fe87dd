"""From a log to an answer: `kvtrace start`, which runs lint, anonymize, audit, curve, plan and report in order.

It stands outside the rooms, since it needs all of them. A part that fails has its reason in the result, and the other
parts still come. Results hold no content of the log.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._base.errors import KvtraceError, StoppedError, UnknownError, UsageError, pasted, unwritable
from ._base.options import option
from ._base.units import milliseconds, share
from .formats import format_table, reading
from .ingest.encoding_options import EncodingOptions
from .privacy.release_options import ReleaseOptions
from .report.answer import ANSWER_TOKENS, Answer, Saving, saving_of
from .serving.planning.plan_target import PlanTarget
from .trace.columns import fields_of
from .trace.meta import shares_prefixes
from .trace.unknown import known_outputs

if TYPE_CHECKING:
    from ._base.row_counts import RowCounts
    from .analysis.curves import HitCurve
    from .ingest.linting.findings import LintReport
    from .ingest.logs import LogReader
    from .ingest.logs.sources import LogSource
    from .ingest.pipeline import AnonymizedRows
    from .ingest.preparation import Inputs
    from .privacy.account import ReleasedTrace
    from .serving.deployment import Deployment
    from .serving.planning.plan_result import Plan
    from .trace.trace import Trace

MODEL, GPU = "llama-3.1-8b", "h100"  # assumed, if nothing names them
FINE_BYTES = 64 << 20  # a log of more bytes gets the blocks of anonymize, since small ones would take minutes
LONG = 1 << 17  # tokens: the longest context of many models
ENGINE_BLOCK = 16  # tokens: vLLM's blocks
ARRIVALS = "rate=1/s"  # of a log without times
NO_MODEL = "the log names no model"
ONCE = "kvtrace start reads a log twice, so it cannot be a pipe or stdin. Save it in a file."
ONE_TRACE = "kvtrace start takes one trace. kvtrace report compares two; kvtrace join makes one of linked windows."
STEPS = ("read", "lint", "anonymize", "curve", "plan", "report")


def with_target(target: PlanTarget, text: str) -> PlanTarget:
    """A target with the times of a text such as ttft=2s or ttft=500ms,quantile=95%; UsageError if both state them.

    >>> with_target(PlanTarget(), "ttft=500ms,quantile=95%").ttft_s
    0.5
    """
    usual = PlanTarget()
    fields: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name == "ttft":
            fields["ttft_s"] = milliseconds(value) / 1000
        elif name == "quantile":
            fields["quantile"] = share(value)
        else:
            raise UsageError(f"{text!r} is not a target. Example: ttft=2s, or ttft=500ms,quantile=95%.")
    if any(getattr(target, name) not in (getattr(usual, name), value) for name, value in fields.items()):
        raise UsageError("--target and --ttft or --quantile state different targets. Give one of them.")
    return replace(target, **fields)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """What an answer is for, and where its files go."""

    output: str | Path | None = option(
        None, "Folder to create for the trace and the page.  [default: kvtrace-LOG, or a name after it that is free]",
        metavar="FOLDER", group="Output", aliases=("-o",),
    )  # fmt: skip
    model: str | None = option(
        None,
        f"Model to plan for: a name that kvtrace models lists, or its config.json.  [default: the log's, else {MODEL}]",
        metavar="M", group="Instances and time",
    )  # fmt: skip
    gpu: str | Path | None = option(
        None, f"GPU to plan for: {{rows}}, or a JSON file.  [default: {GPU}]", metavar="G", group="Instances and time",
    )  # fmt: skip
    target: str | None = option(
        None, "--ttft and --quantile in one. Example: ttft=500ms,quantile=95%.", metavar="ttft=TIME[,quantile=Q]",
        group="Target",
    )  # fmt: skip


def answer_from(
    log: Inputs,
    options: StartOptions,
    target: PlanTarget,
    encoding: EncodingOptions,
    release: ReleaseOptions,
    *,
    on_step: Callable[[str], None] | None = None,
) -> Answer:
    """The answer of `kvtrace.start`: from a log, or from one trace, to a new folder.

    Raises:
        UsageError: An option is not valid, the folder exists, or the log is a pipe.
        KvtraceError: The folder cannot be written.
        InputError: The log cannot be read, or holds no request.
    """
    paths = [log] if isinstance(log, (str, os.PathLike)) else list(log)
    if any(str(path) == "-" for path in paths):
        raise UsageError(ONCE)
    folder = _free_folder(paths, options.output)
    target = target if options.target is None else with_target(target, options.target)
    run = _Start(options, target, folder, on_step or (lambda step: None))
    run.deployment_of(options.model or MODEL)  # an error of an option comes before the work
    run.step("read")
    try:
        traces = [path for path in paths if format_table.is_trace(path)] or _traces_in(paths)
        if traces:
            if len(paths) > 1 or len(traces) > 1:
                raise UsageError(ONE_TRACE)
            run.make_folder()  # so does a folder that cannot be written
            return run.of_trace(traces[0], encoding.block_size)
        return run.of_log(paths, encoding, release)
    except BaseException:  # the same command can then be repeated
        if run.is_made:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        if run.is_made and folder.is_dir() and not os.listdir(folder):
            folder.rmdir()


@dataclass
class _Start:
    """A run: its options, and what it has so far."""

    options: StartOptions
    target: PlanTarget
    folder: Path
    step: Callable[[str], None]
    missing: dict[str, str] = field(default_factory=dict)  # part -> why it is missing
    notes: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    read_as: str = ""  # options with which the trace is read again
    status: int = 0
    is_made: bool = False  # whether the folder was created
    stated: EncodingOptions | None = None  # how the log is read, as the options say

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """A part that may fail; its reason is then that of the result."""
        try:
            yield
        except StoppedError:  # a full disk: the run can be repeated
            raise
        except KvtraceError as error:
            self.missing[name] = _reason(error)
            if name == "release":
                self.status = error.status

    def deployment_of(self, model: str) -> Deployment:
        """The model on one GPU at the price of the options."""
        from .serving.deployment import Deployment
        from .serving.hardware.gpus import gpu
        from .serving.models.layers import kv_bytes_per_token

        kv_bytes_per_token(model)  # raises the UsageError for a model that kvtrace does not have
        device = gpu(self.options.gpu or GPU)
        if self.target.gpu_price is not None:
            device = replace(device, price_per_hour=self.target.gpu_price)
        return Deployment(model, gpu=device)

    # -- a trace ---------------------------------------------------------------------------------------------------

    def of_trace(self, path: Any, block_size: int | None) -> Answer:
        """The answer from a trace."""
        trace = reading.read(path, block_size=block_size)
        self.read_as = "" if block_size is None else f" --block-size {block_size}"
        self.missing["lint"] = "a trace holds no text. kvtrace lint finds what breaks sharing in its log."
        self.missing["release"] = "the input is a trace already, so it was not anonymized."
        name = f"{os.path.basename(os.path.realpath(path))} is a trace in blocks of {trace.block_size:,} tokens"
        return self.answer(trace, name, os.fspath(path), [], None)

    # -- a log -----------------------------------------------------------------------------------------------------

    def of_log(self, paths: list[Any], encoding: EncodingOptions, release: ReleaseOptions) -> Answer:
        """The answer from a raw log."""
        from .ingest import preparation

        log_sources, reader = preparation.open_log(paths, encoding, untimed=True)
        if not all(source.form for source in log_sources):
            raise UsageError(ONCE)
        self.make_folder()
        self.stated = encoding
        encoding = self.completed(encoding, log_sources, reader)
        lint = None
        with self.part("lint"):
            self.step("lint")
            lint = _lint(paths, encoding)
        self.step("anonymize")
        rows = self.released(paths, encoding, release)
        trace = rows.trace()
        published = None
        with self.part("release"):
            published = self.publish(trace)
        path, logs = published.files[0] if published else "", [*map(os.fspath, paths)]
        return self.answer(
            trace, self.described(reader, trace), path, logs, self.logged_model(reader), lint=lint, published=published,
            account=trace.account, counts=rows.counts, caveats=_caveats(rows), models=len(reader.models),
        )  # fmt: skip

    def completed(self, encoding: EncodingOptions, log_sources: list[LogSource], reader: LogReader) -> EncodingOptions:
        """The options with what the log decides: tokenizer, block size, arrivals; bad rows are skipped."""
        from .ingest import tokenizer_choice
        from .ingest.logs import sources

        encoding = replace(encoding, max_errors=-1, on_mismatch="warn")
        if reader.holds_prompts and reader.text_models is not None and encoding.tokenizer == tokenizer_choice.AUTO:
            try:
                choice = tokenizer_choice.choose(encoding.tokenizer, reader.text_models)
            except UsageError:  # the log's models have several
                choice = tokenizer_choice.TokenizerChoice(tokenizer_choice.DEFAULT)
            encoding = replace(encoding, tokenizer=choice.tokenizer)
            if not (choice.is_of_model or choice.families):
                self.assumed.append("tokenizer")
        if encoding.block_size is None and reader.block_size is None and sources.total(log_sources) <= FINE_BYTES:
            encoding = replace(encoding, block_size=ENGINE_BLOCK)
        if encoding.arrivals is None and reader.unit is None and not reader.delays:
            self.assumed.append("times")
            encoding = replace(encoding, arrivals=ARRIVALS)
        return encoding

    def released(self, paths: list[Any], encoding: EncodingOptions, release: ReleaseOptions) -> AnonymizedRows:
        """The rows of the trace, and the counts of the log's."""
        from .ingest.pipeline import Listeners, anonymize_rows

        return anonymize_rows(paths, encoding, release, listeners=Listeners(on_note=self.notes.append))

    def publish(self, trace: ReleasedTrace) -> Any:
        """Write the trace with its sidecar and its data card, after the audit."""
        from .privacy.publishing import publish

        published = publish(trace, self.folder / "trace.jsonl")
        self.files += published.files
        return published

    def described(self, reader: LogReader, trace: Trace) -> str:
        """What was read, in words."""
        about = trace.meta.get("log") or {}
        kind = str(about.get("reader", reader.name)).replace("block-hash", "rows of timestamp, input and output")
        tokenizer = trace.meta.get("tokenizer") or {}
        name = tokenizer.get("name") or "the file that you named"
        reason = "no tokenizer of the log's model is here; --tokenizer names one" if reader.text_models else NO_MODEL
        assumed = f" (assumed: {reason})" if "tokenizer" in self.assumed else ""
        counted = f"; tokenizer: {name}{assumed}" if tokenizer else ""
        if tokenizer and reader.text_models is None:
            counted = "; token ids as logged"
        times = about.get("time", "unknown") + (
            "; name their field: --map timestamp=FIELD" if "times" in self.assumed else ""
        )
        return f"{kind}; times: {times}{counted}; blocks of {trace.block_size:,} tokens"

    def logged_model(self, reader: LogReader) -> str | None:
        """The first of the log's models that has times in the catalog, by its name there."""
        from .serving.models.config import model_name
        from .serving.models.listing import list_models

        for model in reader.models:
            parts = model.split("/")  # LiteLLM and others put a provider before the name
            for first in range(len(parts)):
                name = model_name("/".join(parts[first:]))
                if name is not None and any(each.shape is not None for each in list_models(name)):
                    return name
        return None

    # -- the answer ------------------------------------------------------------------------------------------------

    def answer(
        self, trace: Trace, log: str, path: str, logs: list[str], logged_model: str | None, **parts: Any
    ) -> Answer:
        """The answer from a trace, whose file has this path."""
        from .analysis.curves import hit_curve
        from .serving.planning.planning import plan
        from .trace.domains import in_domains

        model = self.options.model or logged_model or MODEL
        if model not in (self.options.model, logged_model):
            self.assumed.append("model")
        if self.target.gpu_price is None:
            self.assumed.append("gpu_price")
        deployment = self.deployment_of(model)
        view = in_domains(trace)
        self.step("curve")
        why = ""
        curve: HitCurve | None = None
        saving: Saving | None = None
        result: Plan | None = None
        with self.part("curve"):
            curve = hit_curve(view)
        planned = self.plannable(view)
        with self.part("memory"):
            deployment, why = sized(planned, deployment, self.target)
        with self.part("saving"):
            saving = saving_of(view, curve, deployment)
        self.step("plan")
        with self.part("plan"):
            result = plan(planned, deployment, self.target, curve=curve)
        with self.part("context"):
            parts["caveats"] = [*parts.get("caveats", ()), *_too_long(trace, deployment)]
        answer = Answer(
            trace=trace, log=log, deployment=deployment, why_gpus=why, assumed=self.assumed, curve=curve, saving=saving,
            plan=result, missing=self.missing, notes=self.notes, files=self.files, status=self.status,
            **parts,
        )  # fmt: skip
        self.step("report")
        with self.part("page"):
            self.write_page(answer, model)
        commands = self.commands(
            path, logs, model, deployment.gpus_per_instance, parts.get("lint"), parts.get("counts")
        )
        return replace(answer, folder=str(self.folder) if self.files else "", next=commands)

    def plannable(self, trace: Trace) -> Trace:
        """The trace with what a plan needs and the log does not tell: no hits, and answers of one length."""
        from .trace.conversion import assume_outputs
        from .trace.trace import Trace as Known

        if not shares_prefixes(trace.meta):
            self.assumed.append("prefixes")
            meta = {name: value for name, value in trace.meta.items() if name != "prefixes"}
            trace = Known(**fields_of(trace), block_size=trace.block_size, tail=trace.tail, meta=meta)
        if not known_outputs(trace).all():
            self.assumed.append("outputs")
            trace = assume_outputs(trace, ANSWER_TOKENS)
        return trace

    def write_page(self, answer: Answer, model: str) -> None:
        """Write the report page, which begins with the answer's lines."""
        from .report.html_page import write_report
        from .serving.models.layers import kv_bytes_per_token

        self.files += write_report(
            self.folder / "report.html", answer.trace, names=(self.folder.name, ""), lines=answer.lines,
            plan=None if "prefixes" in self.assumed else answer.plan, kv_bytes_per_token=kv_bytes_per_token(model),
            curve=answer.curve,
        )  # fmt: skip

    def make_folder(self) -> None:
        """Create the folder, once; UsageError if it exists by now."""
        if not self.is_made:
            try:
                self.folder.mkdir()
            except OSError as error:
                raise unwritable(self.folder, error) from None
            self.is_made = True

    def reading(self, counts: RowCounts | None) -> str:
        """The options with which the log was read, as a command has them."""
        usual, stated = EncodingOptions(), self.stated or EncodingOptions()
        fields = "".join(f" --map {pasted(f'{field}={path}')}" for field, path in (stated.field_map or {}).items())
        others = _options(
            ("--log-format", stated.log_format, usual.log_format), ("--time-unit", stated.time_unit, usual.time_unit),
            ("--tokenizer", stated.tokenizer, usual.tokenizer),
        )  # fmt: skip
        return fields + others + (" --on-error skip" if counts is not None and counts.rejected else "")

    def commands(
        self, path: str, logs: list[str], model: str, gpus: int, lint: LintReport | None, counts: RowCounts | None
    ) -> list[str]:
        """Three commands to paste, with the options of this run."""
        name, log = pasted(path) if path else "TRACE", " ".join(map(pasted, logs))
        if "prefixes" in self.assumed:
            watched = "kvtrace record --proxy 8001 --upstream http://127.0.0.1:8000 -o traces"
            return [f"kvtrace analyze {name}{self.read_as}", f"kvtrace audit {name}", watched]
        on = f"--model {pasted(model)} --gpu {pasted(self.options.gpu or GPU)}" + f" --gpus {gpus}" * (gpus > 1)
        asked, usual = self.target, PlanTarget()
        target = f"--ttft {asked.ttft_s:.15g}s" + _options(
            ("--quantile", asked.quantile, usual.quantile), ("--max-busy", asked.max_busy, usual.max_busy),
            ("--spare", asked.spare, usual.spare), ("--gpu-price", asked.gpu_price, usual.gpu_price),
        )  # fmt: skip
        outputs = f" --assume-output {ANSWER_TOKENS}" if "outputs" in self.assumed else ""
        third = f"kvtrace audit {name}" if logs else f"kvtrace analyze {name}{self.read_as}"
        return [
            f"kvtrace plan {name} {on} {target}{outputs}{self.read_as}",
            f"kvtrace explain {name} {on}{outputs}{self.read_as}",
            f"kvtrace lint {log}{self.reading(counts)}" if lint is not None and lint.findings else third,
        ]


def _options(*rows: tuple[str, Any, Any]) -> str:
    """The options, of (name, value, default), that are not at their defaults, as a command has them.

    >>> _options(("--quantile", 0.95, 0.9), ("--spare", 0, 0), ("--log-format", "openai", "auto"))
    ' --quantile 0.95 --log-format openai'
    """
    stated = [
        (name, f"{value:.15g}" if isinstance(value, (int, float)) else str(value))
        for name, value, usual in rows
        if value != usual
    ]
    return "".join(f" {name} {pasted(text)}" for name, text in stated)


def sized(trace: Trace, deployment: Deployment, target: PlanTarget) -> tuple[Deployment, str]:
    """The deployment on the fewest GPUs that suit a trace, and why it is more than one.

    They hold the weights and the longest request, and compute most prompts within the target.

    Raises:
        UsageError: No number of these GPUs holds them.
    """
    from .serving.hardware.room import least_gpus
    from .serving.planning.plan_runs import least_gpus_for
    from .serving.run_options import TimeSetup

    least = least_gpus(deployment, int(trace.prompt_blocks.max(initial=1)) * trace.block_size)
    if least is None:
        raise UsageError(
            f"no number of {deployment.gpu_name} holds {deployment.model_name} and the longest request. Name a GPU "
            "with more memory: --gpu."
        )
    fast = least_gpus_for(trace, target, TimeSetup(deployment=least))
    if fast is not None and fast > least.gpus_per_instance:
        return deployment.with_gpus(fast), f"On fewer than {fast} GPUs, prefill alone misses the target."
    held = least.gpus_per_instance
    return least, "" if held == 1 else f"Fewer than {held} GPUs do not hold the weights and the longest request."


def _lint(paths: list[Any], encoding: EncodingOptions) -> LintReport:
    from .ingest.linting.linter import lint_log
    from .ingest.preparation import DEFAULT_BLOCK_SIZE

    return lint_log(paths, replace(encoding, block_size=encoding.block_size or DEFAULT_BLOCK_SIZE))


def _caveats(rows: AnonymizedRows) -> list[str]:
    """What makes prompts differ from those that the engine got, in sentences."""
    from .report.raw_logs import not_rendered

    differing = rows.usage.difference if rows.usage.is_mismatch else None
    return [*filter(None, [differing]), *not_rendered(rows.counts.not_rendered, rows.counts.unsized_media)]


def _too_long(trace: Trace, deployment: Deployment) -> list[str]:
    """What prompts exceed: the context of the model, or the usual one where that is not known."""
    from .serving.hardware.vllm_memory import longest_context

    limit, name = longest_context(deployment), deployment.model_name
    count = int((trace.input_length > (limit or LONG)).sum())
    if not count:
        return []
    prompts = f"{count:,} prompt{' is' if count == 1 else 's are'} longer than"
    longest = f"the longest has {int(trace.input_length.max()):,} tokens"
    if limit is None:
        return [f"{prompts} {LONG:,} tokens, {longest}: it is not known whether {name} takes them."]
    return [f"{prompts} the context of {name} ({limit:,} tokens), {longest}: an engine refuses them."]


def _free_folder(paths: list[Any], output: str | Path | None) -> Path:
    """The folder of the results, which does not exist yet; UsageError if the named one does."""
    if output is not None:
        folder = Path(output)
        if folder.exists():
            raise UsageError(f"{folder} exists. Name a new folder: -o FOLDER.")
        if not folder.parent.is_dir():
            raise UsageError(f"{folder.parent} is not a folder. Create it, or name another one: -o FOLDER.")
        return folder
    name = Path(paths[0]).name if paths else ""
    stem = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in name.split(".")[0]).strip("-")
    base = Path(f"kvtrace-{stem or 'log'}")
    names = chain([base], (Path(f"{base}-{number}") for number in count(2)))
    return next(name for name in names if not name.exists())


def _traces_in(paths: list[Any]) -> list[str]:
    """The files of directories and globs, such as the windows of a recording, if all of them are traces."""
    from .ingest.logs import sources

    if all(map(os.path.isfile, paths)):
        return []
    files = [source.path for source in sources.find(paths)]
    return files if all(map(format_table.is_trace, files)) else []


def _reason(error: KvtraceError) -> str:
    """The message of an error as the end of a line."""
    text = str(error).strip()
    if isinstance(error, UnknownError):  # which says of what
        text = text.partition(" is unknown: ")[2] or text
    return text if text.endswith((".", "!", "?")) else f"{text}."
