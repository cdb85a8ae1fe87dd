"""The block size of live sources, as far as it is known before the first request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .._base.errors import RowError, UsageError
from ..ingest import logs
from ..ingest.encoding_options import EncodingOptions
from ..ingest.logs.sources import find, sample
from ..ingest.preparation import DEFAULT_BLOCK_SIZE, block_size_of
from .live import LiveOptions


def known_block_size(live: LiveOptions, options: EncodingOptions) -> int | None:
    """The tokens of a block of all sources; None if only requests can tell.

    Text gets blocks of the requested size, or of the default. Followed files that hold hashes have a size of their own.

    Args:
        live: The sources.
        options: How followed files are read, and the requested block size.

    Raises:
        UsageError: the sources have blocks of different sizes, or hashes of another size than the requested one.
    """
    requested = options.block_size
    found = {path: about for path in live.follow if (about := _size_of(path, options)) is not None}
    hashed = {
        size: f"--follow {path} has hashes of blocks of {size:,} tokens"
        for path, (size, is_hashed) in found.items()
        if is_hashed
    }
    texts = [f"--follow {path}" for path, (_, is_hashed) in found.items() if not is_hashed]
    texts += [name for name, runs in (("--otlp", live.otlp), ("--proxy", live.proxy)) if runs]
    text_size = requested or DEFAULT_BLOCK_SIZE
    if len(hashed) > 1:
        raise UsageError(f"{', and '.join(hashed.values())}. Run one kvtrace watch for each.")
    for size, sentence in hashed.items():
        if texts and size != text_size:
            raise UsageError(f"{sentence}, and {texts[0]} would have blocks of {text_size:,}. Add --block-size {size}.")
        return size
    return text_size if texts else requested


def _size_of(path: Path, options: EncodingOptions) -> tuple[int, bool] | None:
    """The size of a file's blocks, and whether it holds hashes; None if the file does not tell."""
    lines = list(_first_lines(path))
    try:
        reader = logs.open_reader(
            options.log_format, lines, field_map=options.field_map, time_unit=options.time_unit,
            allow_truncated=options.allow_truncated,
        )  # fmt: skip
    except RowError:
        return None
    if not lines or not (reader.holds_prompts or reader.block_size is not None):
        return None
    return block_size_of(options.block_size, reader), reader.block_size is not None


def _first_lines(path: Path) -> Iterator[bytes]:
    """The first lines of a file, as the detection of log formats takes them; none if it cannot be read yet."""
    if path.is_file() and path.stat().st_size:
        yield from sample(find([path]))
