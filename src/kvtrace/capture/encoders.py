"""Turn payloads of live sources into batches of lengths and digests, with the readers and the encoder of log files."""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..ingest import logs
from ..ingest.encoding import Batch, Encoder
from ..ingest.keys import Key
from ..ingest.logs.sources import LogPiece
from ..ingest.preparation import provenance, recipe_of
from ..ingest.tokenizer_choice import AUTO, DEFAULT, other_tokenizer
from ..privacy.profiles import Profile, profile_of
from .block_form import BlockForm
from .source import Source


@dataclass(frozen=True, kw_only=True)
class EncodingOptions:
    """How requests become digests; the options have the meaning that they have in `anonymize`."""

    profile: Profile
    tokenizer: str | None = AUTO  # which is the default here: a recorder loads it before its first request
    chat_template: str | Path | None = None
    use_template: bool = True
    generation_prompt: str | None = None
    render_as: str = "vllm"
    request_templates: bool = False
    block_size: int | None = None
    outputs: bool = False
    isolate_tenants: bool = False
    keep_domains: bool | None = None
    tenant_field: str | None = None
    allow_truncated: bool = False
    log_format: str = "auto"  # of followed files
    field_map: dict[str, str] = field(default_factory=dict)  # of followed files
    time_unit: str = "auto"  # of followed files


def to_message(options: EncodingOptions) -> dict[str, Any]:
    """The options as a JSON object, for the digester."""
    values = asdict(options)
    return values | {"chat_template": None if options.chat_template is None else str(options.chat_template)}


def options_of(values: dict[str, Any]) -> EncodingOptions:
    """The options that `to_message` made a JSON object of."""
    return EncodingOptions(**{**values, "profile": profile_of(values["profile"])})


class SourceEncoder:
    """Encodes the lines of one source. The first lines with a request tell what a reader detects."""

    def __init__(self, source: Source, options: EncodingOptions, key: Key, like: Encoder | None = None):
        self._source, self._options, self._key, self._like = source, options, key, like
        self._encoder: Encoder | None = None
        self._settled = False
        self._place = 0  # bytes encoded so far
        self.note: str | None = None  # on the tokenizer and the models of the first lines
        self._name = f"live/{source.name}/{secrets.token_hex(8)}"  # with the place, unique for each line

    @property
    def encoder(self) -> Encoder | None:
        """The encoder, once lines were read."""
        return self._encoder

    @property
    def block_size(self) -> int:
        """Tokens of a block, once lines were read."""
        assert self._encoder is not None
        return self._encoder.recipe.block_size

    @property
    def form(self) -> BlockForm:
        """The form of its blocks, once lines were read."""
        assert self._encoder is not None
        return BlockForm(self._encoder.recipe.block_size, self._encoder.recipe.tail)

    def rekey(self, key: Key) -> None:
        """Encode with another key from here on."""
        self._key = key
        if self._encoder is not None:
            self._encoder = Encoder(replace(self._encoder.recipe, key=key), like=self._encoder)

    def batch(self, lines: list[bytes]) -> Batch:
        """The requests of these lines. RowError if no reader knows the first lines."""
        if not self._settled:
            self._open(lines)
        assert self._encoder is not None
        data = b"\n".join(lines) + b"\n"
        batch = self._encoder(LogPiece(self._name, 0, self._place, len(data), 0, data))
        self._place += len(data)
        self._settled = self._settled or len(batch) > 0
        return batch

    def description(self) -> dict[str, Any]:
        """How the requests are read and hashed: sections of a sidecar, and what a collector of the batches needs."""
        assert self._encoder is not None
        recipe = self._encoder.recipe
        return {
            "meta": provenance(recipe, self._encoder), "block_size": recipe.block_size, "tail": recipe.tail,
            "outputs": recipe.outputs, "holds_hashes": recipe.reader.block_size is not None,
        }  # fmt: skip

    def _open(self, lines: list[bytes]) -> None:
        source, options = self._source, self._options
        is_auto = source.log_format == "auto"
        fields = options.field_map if is_auto else {}
        reader = logs.open_reader(
            options.log_format if is_auto else source.log_format, lines,
            field_map=fields if options.tenant_field is None else {**fields, "tenant": options.tenant_field},
            time_unit=options.time_unit if is_auto else source.time_unit, allow_truncated=options.allow_truncated,
        )  # fmt: skip
        reader = replace(reader, delays=False)  # a live request has a time
        if not is_auto:  # requests that arrive now; a wrong clock must not stretch the window
            reader = replace(reader, about_ns=time.time_ns())
        recipe = recipe_of(
            reader, options.profile, self._key, tokenizer=_named(options), chat_template=options.chat_template,
            use_template=options.use_template, generation_prompt=options.generation_prompt,
            render_as=options.render_as, request_templates=options.request_templates,
            block_size=options.block_size, outputs=options.outputs, isolate_tenants=options.isolate_tenants,
            keep_domains=options.keep_domains, maps_domain="domain" in fields,
            by_tenant=options.tenant_field is not None and not options.isolate_tenants, stop_at_error=False,
        )  # fmt: skip
        self._encoder = Encoder(recipe, self._like if reader.holds_prompts else None)
        self.note = other_tokenizer(recipe.tokenizer, reader.models) if options.tokenizer == AUTO else None


def _named(options: EncodingOptions) -> str | None:
    return DEFAULT if options.tokenizer == AUTO else options.tokenizer


def loaded(options: EncodingOptions) -> Encoder:
    """An encoder whose tokenizer and template the encoders of all sources use. It encodes nothing itself.

    Raises:
        UsageError: an option is not valid.
        InputError: the tokenizer or the template cannot be read.
    """
    name, unit = options.log_format, options.time_unit  # checked now: a followed file may have its first line later
    logs.open_reader("openai" if name == "auto" else name, [], time_unit="s" if unit == "auto" else unit)
    reader = logs.open_reader("openai", [], time_unit="s")
    settings: dict[str, Any] = {
        "tokenizer": _named(options), "chat_template": options.chat_template, "use_template": options.use_template,
        "generation_prompt": options.generation_prompt, "render_as": options.render_as,
        "request_templates": options.request_templates, "block_size": options.block_size, "outputs": options.outputs,
        "isolate_tenants": options.isolate_tenants, "keep_domains": options.keep_domains,
    }  # fmt: skip
    recipe = recipe_of(
        reader, options.profile, Key.random(), maps_domain=False, by_tenant=False, stop_at_error=False, **settings
    )  # fmt: skip
    return Encoder(recipe)
