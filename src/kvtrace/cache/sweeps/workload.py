"""What the cells of a sweep run on: a trace file, or a seed's sample of a fitted model, in blocks that may be larger.

A workload is a few words, small enough to send to another machine; whoever needs the trace reads it from its file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from ..._base.errors import InputError, UsageError
from ..._base.files import is_regular
from ..._base.input_files import open_read
from ...formats.reading import read
from ...formats.sidecar import sidecar_path
from ...synthesis.model import Model
from ...synthesis.sampling import sample
from ...trace.folding import fold
from ...trace.trace import Trace


@dataclass(frozen=True)
class Source:
    """A trace file, or a model and the seed of a sample; where it is, and what it held when the sweep was planned."""

    name: str  # as it was given
    path: str  # absolute
    sha256: str  # of the file's content and its sidecar's
    seed: int | None = None  # of a sample; None = a trace
    requests: int | None = None  # of a sample; None = as many as the model was fitted on
    block_size: int | None = None  # of a trace whose sidecar does not say it
    chain: bool = False


@dataclass(frozen=True)
class Workload:
    """A source whose blocks are made larger by a whole factor."""

    source: Source
    factor: int = 1


@lru_cache(maxsize=1)
def trace_of(workload: Workload) -> Trace:
    """The trace of a workload. InputError if its file has changed since the sweep was planned; UsageError as `read`.

    The last one is kept, since cells of one workload follow each other; `forget` lets it go.
    """
    return fold(source_trace(workload.source), workload.factor)


@lru_cache(maxsize=1)
def source_trace(source: Source) -> Trace:
    """The trace of a source, in blocks of its own size."""
    if digest(source.path) != source.sha256:
        raise InputError(f"{source.name}: is not what it was when the sweep was planned. Begin the sweep anew.")
    if source.seed is not None:
        model = Model.load(source.path)
        return sample(model, source.requests or model.rows, seed=source.seed)
    found = _read(source)
    return found.chained() if source.chain else found.require_chained()


def _read(source) -> Trace:
    """The trace in a file; errors name it as the user did, and the option as it is called here."""
    try:
        return read(source.path, block_size=source.block_size)
    except (InputError, UsageError) as error:
        kind = UsageError if isinstance(error, UsageError) else InputError
        told = str(error).replace(source.path, source.name).replace(" --block-size", " --trace-block-size")
    raise kind(told)


def forget() -> None:
    """Let go of the traces that were kept for the next cell."""
    trace_of.cache_clear()
    source_trace.cache_clear()


def sources_of(
    name: str, seeds: tuple[int, ...], requests: int | None, block_size: int | None, chain: bool
) -> list[Source]:
    """The sources that a file is: one if it holds a trace, one a seed if it holds a model."""
    if not (is_regular(name) or os.path.isdir(name)):
        raise UsageError(f"{name}: a sweep reads a trace more than once, so it must be a file. Write it to one first.")
    path = os.path.abspath(name)
    sha256 = digest(name)
    if Model.is_model(name):
        return [Source(name, path, sha256, seed, requests) for seed in seeds]
    return [Source(name, path, sha256, block_size=block_size, chain=chain)]


def digest(path: str) -> str:
    """SHA-256 of what a trace holds: file, unpacked, and sidecar, or all parts; InputError where one can't be read.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     digest(file.name)[:8]
    'cf589700'
    """
    found = hashlib.sha256()
    for name, part in _files(path):
        found.update(f"{name}\0".encode())
        with open_read(part) as stream:
            found.update(hashlib.file_digest(stream, "sha256").digest())  # type: ignore[arg-type]
    return found.hexdigest()


def _files(path) -> Iterator[tuple[str, str]]:
    """What a trace's content is spread over, by names that are no part of where it is: a file and its sidecar, or all
    of a folder of parts.
    """
    if os.path.isdir(path):
        for folder, folders, names in os.walk(path):
            folders.sort()
            for part in (os.path.join(folder, name) for name in sorted(names)):
                yield os.path.relpath(part, path), part
        return
    yield "trace", path
    if os.path.exists(beside := sidecar_path(path)):
        yield "sidecar", beside


def factor_of(text: str, block_size: int, name: str) -> int:
    """By how much blocks of a trace are made larger: `2x` twice, or `1024` to so many tokens; UsageError if neither.

    >>> factor_of("2x", 512, "day.jsonl"), factor_of("1024", 512, "day.jsonl")
    (2, 2)
    """
    number = text.removesuffix("x")
    if not (number.isdecimal() and len(number) < 16 and int(number)):
        raise UsageError(f"{text!r} is no block size. Try 1024 (tokens) or 2x (twice the trace's own).")
    if text.endswith("x"):
        return int(number)
    if int(number) % block_size:
        raise UsageError(
            f"{name}: its blocks of {block_size:,} tokens do not make up blocks of {int(number):,}. Try "
            f"{2 * block_size} or 2x."
        )
    return int(number) // block_size
