"""Prepare a run before any row is read: find the log files, choose the reader, load the tokenizer, check options."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from .._base.errors import InputError, RowError, UsageError
from .._base.files import name_of
from ..formats.file_kinds import require_log
from ..privacy import profiles
from ..privacy.profiles import Profile
from ..privacy.session_times import ServiceModel
from ..trace.meta import Meta, RenderingSection
from .encoding import Encoder, Recipe
from .keys import Key
from .logs.arrival_model import ArrivalModel
from .logs.sources import LogSource
from .tokenizer_choice import AUTO, TokenizerChoice, choose

if TYPE_CHECKING:
    from .logs import LogReader

Inputs = str | Path | Iterable[str | Path]  # paths, directories or globs

MAX_LOOKED_AT = 8  # files whose first bytes are looked at, for a trace or a sidecar among them
DEFAULT_BLOCK_SIZE = 512
MAX_BLOCK_SIZE = 1 << 24  # tokens
ENGINES = ("vllm", "sglang", "raw")  # the rows of text.engine_forms.FORMS


@dataclass(frozen=True)
class ReleaseSettings:
    """What the release of collected rows depends on, beside the rows."""

    profile: Profile
    meta: Meta  # provenance, for the sidecar
    seed: int  # of the sample of sessions; as hard to guess as the key
    holds_hashes: bool = False  # an engine hashed the blocks, perhaps without their prefix
    isolate_tenants: bool = False
    service_model: ServiceModel | None = None  # estimates service times that the log does not have


@dataclass(frozen=True)
class Job:
    """A checked anonymisation run: its inputs and all its settings."""

    sources: list[LogSource]
    recipe: Recipe
    encoder: Encoder
    profile: Profile
    arrival_model: ArrivalModel | None
    meta: Meta  # provenance, for the sidecar
    service_model: ServiceModel | None = None  # estimates service times that the log does not have

    @property
    def release(self) -> ReleaseSettings:
        """What the release of the rows depends on."""
        recipe = self.recipe
        return ReleaseSettings(
            self.profile, self.meta, recipe.key.number("sample"), recipe.reader.block_size is not None,
            recipe.isolate_tenants, self.service_model,
        )  # fmt: skip

    def report_notes(self, on_note: Callable[[str], None] | None) -> None:
        """Call `on_note` with the notes on fields of the log: those that were detected, and those that are not used."""
        reader = self.recipe.reader
        if on_note is None:
            return
        if detected := reader.detected_fields():
            on_note(f"read {detected} (detected; --map FIELD=PATH sets another field)")
        if reader.note:
            on_note(reader.note)
        if self.recipe.choice.note:
            on_note(self.recipe.choice.note)


class LogOptions(TypedDict, total=False):
    """The options of `prepare` that `anonymize_rows` passes on; `anonymize` describes them."""

    log_format: str
    field_map: dict[str, str] | None
    time_unit: str
    allow_truncated: bool
    tokenizer: str | None
    chat_template: str | Path | None
    use_template: bool
    generation_prompt: str | None
    render_as: str
    request_templates: bool
    block_size: int | None
    outputs: bool
    profile: Profile | str
    k: int | None
    k_counts: str | None
    tail: str | None
    time_step_ms: int | None
    round_input: str | int | None
    round_output: str | int | None
    drop_sessions: bool | None
    keep_measured: Iterable[str] | None
    tenant_field: str | None
    isolate_tenants: bool
    keep_domains: bool | None
    arrivals: str | None
    request_sample: float | None
    service_model: ServiceModel | None
    key: Key | None


def prepare(
    inputs: Inputs,
    *,
    log_format: str = "auto",
    field_map: dict[str, str] | None = None,
    time_unit: str = "auto",
    allow_truncated: bool = False,
    tokenizer: str | None = AUTO,
    chat_template: str | Path | None = None,
    use_template: bool = True,
    generation_prompt: str | None = None,
    render_as: str = "vllm",
    request_templates: bool = False,
    block_size: int | None = None,
    outputs: bool = False,
    profile: Profile | str = "standard",
    k: int | None = None,
    k_counts: str | None = None,
    tail: str | None = None,
    time_step_ms: int | None = None,
    round_input: str | int | None = None,
    round_output: str | int | None = None,
    drop_sessions: bool | None = None,
    keep_measured: Iterable[str] | None = None,
    tenant_field: str | None = None,
    isolate_tenants: bool = False,
    keep_domains: bool | None = None,
    arrivals: str | None = None,
    request_sample: float | None = None,
    service_model: ServiceModel | None = None,
    key: Key | None = None,
    keep_order: bool = False,
    stop_at_error: bool = True,
) -> Job:
    """Prepare the anonymisation of raw logs. `anonymize` describes the options.

    Raises:
        UsageError: options contradict each other or the log.
        InputError: the first rows of the log match no reader or no unit of time.
    """
    arrival_model = None if arrivals is None else ArrivalModel.parse(arrivals)
    if request_sample is not None and not 0 < request_sample <= 1:
        raise UsageError(f"--request-sample must be above 0 and at most 1, not {request_sample:g}. Example: 1%.")
    chosen = profiles.profile(
        profile, k=k, k_counts=k_counts, tail=tail, time_step_ms=time_step_ms, round_input=round_input,
        round_output=round_output, drop_sessions=drop_sessions, keep_measured=keep_measured,
    )  # fmt: skip
    check_options(block_size, chosen, keep_order=keep_order, outputs=outputs)
    if service_model is not None and chosen.drop_sessions:
        raise UsageError(f"--service-time is for sessions, but {chosen.name} drops them (drop_sessions). Leave it out.")
    log_sources, reader = open_log(
        inputs, log_format=log_format, field_map=_with_tenant(field_map, tenant_field), time_unit=time_unit,
        allow_truncated=allow_truncated, untimed=arrival_model is not None,
    )  # fmt: skip
    recipe = recipe_of(
        reader, chosen, key or Key.random(), tokenizer=tokenizer, chat_template=chat_template,
        use_template=use_template, generation_prompt=generation_prompt, render_as=render_as,
        request_templates=request_templates, block_size=block_size, outputs=outputs,
        isolate_tenants=isolate_tenants, keep_domains=keep_domains, maps_domain="domain" in (field_map or {}),
        by_tenant=tenant_field is not None and not isolate_tenants, stop_at_error=stop_at_error,
    )  # fmt: skip
    encoder = Encoder(recipe)
    meta = provenance(recipe, encoder, arrival_model, request_sample)
    return Job(log_sources, recipe, encoder, chosen, arrival_model, meta, service_model)


def recipe_of(
    reader: LogReader,
    profile: Profile,
    key: Key,
    *,
    tokenizer: str | None,
    chat_template: str | Path | None,
    use_template: bool,
    generation_prompt: str | None,
    render_as: str,
    request_templates: bool,
    block_size: int | None,
    outputs: bool,
    isolate_tenants: bool,
    keep_domains: bool | None,
    maps_domain: bool,
    by_tenant: bool,
    stop_at_error: bool,
) -> Recipe:
    """The settings of a worker that encodes rows of this reader, for a release with this profile.

    Raises:
        UsageError: the block size contradicts the hashes of the log.
    """
    require_engine(render_as)
    size = block_size_of(block_size, reader, outputs=outputs)
    reader = reader if reader.block_size is None else replace(reader, block_size=size)
    choice = choose(tokenizer, reader.models) if reader.holds_prompts else TokenizerChoice(None)
    has_tails = profile.tail != "dropped" and (reader.holds_prompts or reader.hashes_tails)
    return Recipe(
        reader=reader, tokenizer=choice.tokenizer, choice=choice,
        chat_template=None if chat_template is None else str(chat_template),
        use_template=use_template, generation_prompt=generation_prompt, key=key,
        render_as=render_as, request_templates=request_templates,
        block_size=size, tail="kept" if has_tails else "dropped",
        outputs=outputs, stop_at_error=stop_at_error, isolate_tenants=isolate_tenants,
        keep_domains=profiles.keeps_domains(profile, keep_domains), maps_domain=maps_domain, by_tenant=by_tenant,
    )  # fmt: skip


def open_log(
    inputs: Inputs,
    *,
    log_format: str = "auto",
    field_map: dict[str, str] | None = None,
    time_unit: str = "auto",
    allow_truncated: bool = False,
    untimed: bool = False,
) -> tuple[list[LogSource], LogReader]:
    """The sources of a log, and the reader of its rows.

    Raises:
        UsageError: a file is missing, or an option is not valid.
        InputError: the first rows of the log match no reader or no unit of time.
    """
    from . import logs
    from .logs import sources

    log_sources = sources.find(inputs)
    if log_format == "auto":
        for source in log_sources[:MAX_LOOKED_AT]:
            require_log(source.path)
    input_error = None
    try:
        reader = logs.open_reader(
            log_format, sources.sample(log_sources), field_map=field_map, time_unit=time_unit,
            allow_truncated=allow_truncated, untimed=untimed,
        )  # fmt: skip
    except RowError as error:
        input_error = InputError(f"{name_of(log_sources[0].path)}: {error}")
    if input_error is not None:  # raised outside the handler, so that its traceback has no frame that holds rows
        raise input_error
    return log_sources, reader


def check_options(block_size: int | None, profile: Profile, *, keep_order: bool, outputs: bool) -> None:
    """UsageError if the block size is not valid, or if options contradict the profile."""
    if block_size is not None:
        _check_block_size(block_size)
    if keep_order and replace(profile, tail="kept").coarsens:
        raise UsageError("--keep-order is for internal use only and requires --profile exact.")
    if outputs and (profile.round_input, profile.round_output) != ("exact", "exact"):
        raise UsageError(
            "--outputs requires exact lengths, since output blocks would reveal rounded lengths. "
            "Add --round-input exact --round-output exact, or leave out --outputs."
        )


def block_size_of(requested: int | None, reader: LogReader, *, outputs: bool = False) -> int:
    """The block size of the run: that of the log's hashes if it holds hashes, else the requested one.

    Raises:
        UsageError: the hashes have another size than the requested one, or one that nothing tells.
    """
    logged = reader.block_size
    if logged is None:
        return DEFAULT_BLOCK_SIZE if requested is None else requested
    if not reader.states_block_size and (requested or not logged):
        if requested is None:
            raise UsageError("the log holds hashes of blocks, but not their size in tokens. Set it: --block-size N.")
        logged = requested
    if requested not in (None, logged):
        hint = (
            f"Leave out --block-size; `kvtrace convert --fold {requested // logged}` makes larger blocks afterwards."
            if requested > logged
            else "Leave out --block-size."
        )
        raise UsageError(f"the log holds hashes of blocks of {logged:,} tokens, not {requested:,}. {hint}")
    if outputs:
        raise UsageError("the log holds hashes of prompts only. Leave out --outputs.")
    _check_block_size(logged)
    return logged


def require_engine(render_as: str) -> None:
    """UsageError if the engine is unknown."""
    if render_as not in ENGINES:
        raise UsageError(f"--render-as {render_as!r} is unknown. Choose one of: {', '.join(ENGINES)}.")


def _check_block_size(block_size):
    if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
        raise UsageError(f"--block-size is {block_size!r}; it must be a whole number of tokens, at least 1.")
    if block_size > MAX_BLOCK_SIZE:
        raise UsageError(f"--block-size is {block_size:,}; it must be at most {MAX_BLOCK_SIZE:,} tokens.")


def _with_tenant(field_map, tenant_field):
    return field_map if tenant_field is None else {**(field_map or {}), "tenant": tenant_field}


def provenance(
    recipe: Recipe, encoder: Encoder, arrival_model: ArrivalModel | None = None, request_sample: float | None = None
) -> Meta:
    """How the trace was made, for its sidecar. It names no key, host, path or user."""
    arrivals = {} if arrival_model is None else {"arrivals": arrival_model.describe()}
    sample = {} if request_sample in (None, 1) else {"request_sample": request_sample}
    rendering: RenderingSection = {"engine": recipe.render_as, "version": recipe.rendering_version}
    return {
        "log": recipe.reader.describe() | arrivals | sample,
        "tokenizer": None if encoder.tokenizer is None else encoder.tokenizer.describe(),
        "chat_template": None if encoder.template is None else encoder.template.describe(),
        **({"rendering": rendering} if recipe.reader.holds_prompts else {}),
        "hash": "SipHash-2-4-128, keyed, chained",
        "session_mode": "cumulative",
    }
