"""Prepare a run before any row is read: find the log files, choose the reader, load the tokenizer, check options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from .._base.errors import InputError, RowError, UsageError, wrong_word
from .._base.files import name_of
from ..formats.format_table import require_log
from ..privacy import profiles
from ..privacy.release_options import Profile, ReleaseOptions
from ..privacy.session_times import ServiceEstimate
from ..trace.meta import Meta, RenderingSection
from .encoding import Encoder, Recipe
from .encoding_options import EncodingOptions, RenderAs
from .keys import Key
from .logs.sources import LogSource, total
from .logs.times import ArrivalModel
from .tokenizer_choice import TokenizerChoice, choose
from .usage import require_choice

if TYPE_CHECKING:
    from .logs import LogReader

Inputs = str | Path | Iterable[str | Path]  # paths, directories or globs

MAX_LOOKED_AT = 8  # files whose first bytes are looked at, for a trace or a sidecar among them
DEFAULT_BLOCK_SIZE = 512
MAX_BLOCK_SIZE = 1 << 24  # tokens
ENGINES = get_args(RenderAs)


@dataclass(frozen=True)
class ReleaseSettings:
    """What the release of collected rows depends on, beside the rows."""

    profile: Profile
    meta: Meta  # provenance, for the sidecar
    seed: int  # of the sample of sessions; as hard to guess as the key
    holds_hashes: bool = False  # an engine hashed the blocks, perhaps without their prefix
    isolate_tenants: bool = False
    service_model: ServiceEstimate | None = None  # estimates service times that the log does not have


@dataclass(frozen=True)
class Job:
    """A checked anonymisation run: its inputs and all its settings."""

    sources: list[LogSource]
    recipe: Recipe
    encoder: Encoder
    profile: Profile
    arrival_model: ArrivalModel | None
    meta: Meta  # provenance, for the sidecar
    service_model: ServiceEstimate | None = None  # estimates service times that the log does not have

    @property
    def release(self) -> ReleaseSettings:
        """What the release of the rows depends on."""
        recipe = self.recipe
        return ReleaseSettings(
            self.profile, self.meta, recipe.key.number("sample"), recipe.reader.block_size is not None,
            recipe.options.isolate_tenants, self.service_model,
        )  # fmt: skip

    def notes(self) -> Iterator[str | None]:
        """The notes on fields of the log: those that were detected, and those that are not used."""
        reader = self.recipe.reader
        if detected := reader.detected_fields():
            yield f"read {detected} (detected; --map FIELD=PATH sets another field)"
        yield reader.note
        yield self.recipe.choice.note


def prepare(
    inputs: Inputs,
    encoding: EncodingOptions,
    release: ReleaseOptions,
    *,
    key: Key | None = None,
    service_model: ServiceEstimate | None = None,
    keep_order: bool = False,
) -> Job:
    """Prepare the anonymisation of raw logs. `anonymize` describes the options.

    Raises:
        UsageError: options contradict each other or the log.
        InputError: the first rows of the log match no reader or no unit of time.
    """
    require_choice(encoding.on_mismatch)
    arrival_model = None if encoding.arrivals is None else ArrivalModel.parse(encoding.arrivals)
    share = encoding.request_sample
    if share is not None and not 0 < share <= 1:
        raise UsageError(f"--request-sample must be above 0 and at most 1, not {share:g}. Example: 1%.")
    profile = profiles.chosen_profile(release)
    check_options(encoding.block_size, profile, keep_order=keep_order, outputs=encoding.outputs)
    if service_model is not None and profile.drop_sessions:
        raise UsageError(
            f"--service-time is for sessions, but {profile.name} drops them (drop_sessions). Leave it out."
        )
    log_sources, reader = open_log(inputs, encoding, untimed=arrival_model is not None)
    recipe = recipe_of(reader, encoding, profile, key or Key.random(), keep_domains=release.keep_domains)
    encoder = Encoder(recipe, log_bytes=total(log_sources))
    meta = provenance(recipe, encoder, arrival_model)
    return Job(log_sources, recipe, encoder, profile, arrival_model, meta, service_model)


def recipe_of(
    reader: LogReader, options: EncodingOptions, profile: Profile, key: Key, *, keep_domains: bool | None = None
) -> Recipe:
    """The settings of a worker that encodes rows of this reader, for a release with this profile.

    Raises:
        UsageError: the block size contradicts the hashes of the log, or an option is not valid.
    """
    require_engine(options.render_as)
    size = block_size_of(options.block_size, reader, outputs=options.outputs)
    reader = reader if reader.block_size is None else replace(reader, block_size=size)
    choice = choose(options.tokenizer, reader.text_models or ()) if reader.holds_prompts else TokenizerChoice(None)
    has_tails = profile.tail != "dropped" and (reader.holds_prompts or reader.hashes_tails)
    return Recipe(
        reader, options, key, block_size=size, tail="kept" if has_tails else "dropped", choice=choice,
        keep_domains=profiles.keeps_domains(profile, keep_domains),
    )  # fmt: skip


def open_log(inputs: Inputs, options: EncodingOptions, *, untimed: bool = False) -> tuple[list[LogSource], LogReader]:
    """The sources of a log, and the reader of its rows.

    Raises:
        UsageError: a file is missing, or an option is not valid.
        InputError: the first rows of the log match no reader or no unit of time.
    """
    from . import logs
    from .logs import sources

    log_sources = sources.find(inputs)
    if options.log_format == "auto":
        for source in log_sources[:MAX_LOOKED_AT]:
            require_log(source.path)
    rows, input_error = sources.sample(log_sources), None
    if not rows:
        raise empty_error(log_sources)
    try:
        reader = logs.open_reader(
            options.log_format, rows, field_map=options.fields or None,
            time_unit=options.time_unit, allow_truncated=options.allow_truncated, untimed=untimed,
        )  # fmt: skip
    except RowError as error:
        input_error = InputError(f"{name_of(log_sources[0].path)}: {error}")
    finally:
        rows = []  # a traceback shows this frame
    if input_error is not None:  # raised outside the handler, so that its traceback has no frame that holds rows
        raise input_error
    return log_sources, reader


def empty_error(log_sources: list[LogSource]) -> InputError:
    """The error for a log without a row."""
    names = name_of(log_sources[0].path) if len(log_sources) == 1 else f"{len(log_sources)} files"
    return InputError(f"{names}: the log is empty. A log holds one JSON object a line.")


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
        raise wrong_word(render_as, "a value of --render-as", ENGINES)


def _check_block_size(block_size):
    if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
        raise UsageError(f"--block-size is {block_size!r}; it must be a whole number of tokens, at least 1.")
    if block_size > MAX_BLOCK_SIZE:
        raise UsageError(f"--block-size is {block_size:,}; it must be at most {MAX_BLOCK_SIZE:,} tokens.")


def provenance(recipe: Recipe, encoder: Encoder, arrival_model: ArrivalModel | None = None) -> Meta:
    """How the trace was made, for its sidecar. It names no key, host, path or user."""
    arrivals = {} if arrival_model is None else {"arrivals": arrival_model.describe()}
    share = recipe.options.request_sample
    sample = {} if share in (None, 1) else {"request_sample": share}
    rendering: RenderingSection = {"engine": recipe.options.render_as, "version": recipe.rendering_version}
    return {
        "log": recipe.reader.describe() | arrivals | sample,
        "tokenizer": None if encoder.tokenizer is None else encoder.tokenizer.describe(),
        "chat_template": None if encoder.template is None else encoder.template.describe(),
        **({"rendering": rendering} if recipe.reader.holds_prompts else {}),
        "hash": "SipHash-2-4-128, keyed, chained",
        "session_mode": "cumulative",
    }
