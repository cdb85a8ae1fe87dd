"""Turn payloads of live sources into batches of lengths and digests, with the readers and the encoder of log files.

Requests of one window, or of one gauge, must have blocks of the same form.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from .._base.errors import UsageError
from ..ingest import logs
from ..ingest.encoding import Batch, Encoder, Recipe
from ..ingest.encoding_options import EncodingOptions
from ..ingest.keys import Key
from ..ingest.logs.sources import LogPiece
from ..ingest.preparation import check_options, provenance, recipe_of
from ..ingest.tokenizer_choice import AUTO, other_tokenizer
from ..privacy.profiles import chosen_profile, profile_of
from ..privacy.release_options import Profile, ReleaseOptions
from ..text.tokenizer_files import DEFAULT
from .source import Source


@dataclass(frozen=True)
class BlockForm:
    """The block size, and what becomes of the last, partial block of a prompt."""

    block_size: int  # tokens
    tail: str  # kept or dropped

    def misfit(self, first: BlockForm) -> str | None:
        """Why blocks of this form cannot be beside those of the first source; None if they can.

        >>> BlockForm(16, "kept").misfit(BlockForm(512, "kept"))
        'its blocks have 16 tokens, and those of the first source have 512. Use one block size, or another recorder.'
        """
        if self.block_size != first.block_size:
            return (
                f"its blocks have {self.block_size} tokens, and those of the first source have {first.block_size}. "
                "Use one block size, or another recorder."
            )
        if self.tail != first.tail:
            with_tail, without = ("it", "the first source") if self.tail == "kept" else ("the first source", "it")
            return (
                f"{with_tail} has the last, partial block of a prompt, and {without} has not. "
                "Use another recorder, or a profile that drops partial blocks."
            )
        return None


@dataclass(frozen=True)
class LiveEncoding:
    """How live requests become digests."""

    options: EncodingOptions  # log_format, field_map and time_unit are those of followed files
    profile: Profile
    keep_domains: bool | None = None

    @classmethod
    def of(cls, options: EncodingOptions, release: ReleaseOptions) -> LiveEncoding:
        """The encoding for a release. A bad row never ends a recording.

        Raises:
            UsageError: an option is not valid.
        """
        profile = chosen_profile(release)
        if profile.resample:
            raise UsageError(
                f"{profile.name} draws rows from a whole log, and each window of a recording would be a release of "
                "its own. Record with --profile exact, join the windows, and release them: kvtrace release."
            )
        check_options(options.block_size, profile, keep_order=False, outputs=options.outputs)
        return cls(replace(options, max_errors=-1), profile, release.keep_domains)

    def to_message(self) -> dict[str, Any]:
        """A JSON object, for the digester."""
        values, template = asdict(self), self.options.chat_template
        values["options"]["chat_template"] = None if template is None else str(template)
        return values

    def recipe(self, reader: logs.LogReader, options: EncodingOptions, key: Key) -> Recipe:
        """The settings of an encoder. `auto` is the default tokenizer: a recorder loads it before its first request."""
        named = replace(options, tokenizer=DEFAULT) if options.tokenizer == AUTO else options
        return recipe_of(reader, named, self.profile, key, keep_domains=self.keep_domains)

    @classmethod
    def from_message(cls, values: Mapping[str, Any]) -> LiveEncoding:
        """The encoding that `to_message` made a JSON object of."""
        return cls(EncodingOptions(**values["options"]), profile_of(values["profile"]), values["keep_domains"])


class SourceEncoder:
    """Encodes the lines of one source. The first lines with a request tell what a reader detects."""

    def __init__(self, source: Source, encoding: LiveEncoding, key: Key, like: Encoder | None = None):
        self._source, self._encoding, self._key, self._like = source, encoding, key, like
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
            "outputs": recipe.options.outputs, "holds_hashes": recipe.reader.block_size is not None,
        }  # fmt: skip

    def _open(self, lines: list[bytes]) -> None:
        source, options = self._source, self._encoding.options
        is_auto = source.log_format == "auto"
        if not is_auto:
            options = replace(options, log_format=source.log_format, field_map=None, time_unit=source.time_unit)
        reader = logs.open_reader(
            options.log_format, lines, field_map=options.fields, time_unit=options.time_unit,
            allow_truncated=options.allow_truncated,
        )  # fmt: skip
        reader = replace(reader, delays=False)  # a live request has a time
        if not is_auto:  # requests that arrive now; a wrong clock must not stretch the window
            reader = replace(reader, about_ns=time.time_ns())
        recipe = self._encoding.recipe(reader, options, self._key)
        self._encoder = Encoder(recipe, self._like if reader.holds_prompts else None)
        models = reader.text_models or ()
        self.note = other_tokenizer(recipe.choice.tokenizer, models) if options.tokenizer == AUTO else None


def loaded(encoding: LiveEncoding) -> Encoder:
    """An encoder whose tokenizer and template the encoders of all sources use. It encodes nothing itself.

    Raises:
        UsageError: an option is not valid.
        InputError: the tokenizer or the template cannot be read.
    """
    name, unit = encoding.options.log_format, encoding.options.time_unit
    # checked now: a followed file may have its first line later
    logs.open_reader("openai" if name == "auto" else name, [], time_unit="s" if unit == "auto" else unit)
    return Encoder(encoding.recipe(logs.open_reader("openai", [], time_unit="s"), encoding.options, Key.random()))
