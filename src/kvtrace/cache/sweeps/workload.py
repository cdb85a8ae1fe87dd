"""The workloads of a sweep: a trace file, or a sample of a fitted model, optionally folded to larger blocks.

A workload is a small description that can be sent to another machine, which reads the trace from its file.
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
from ...synthesis.models import is_model, load_model
from ...synthesis.sampling import sample
from ...trace.conversion import fold
from ...trace.domains import in_domains
from ...trace.trace import Trace
from ...trace.unknown import PREFIXES, require_known


@dataclass(frozen=True)
class Source:
    """A trace file, or a model and the seed of a sample; its path and its digest when the sweep was planned."""

    name: str  # as given on the command line
    path: str  # absolute
    sha256: str  # of the file and its sidecar
    seed: int | None = None  # of a sample; None = a trace
    requests: int | None = None  # of a sample; None = the number that the model was fitted on
    block_size: int | None = None  # of a trace whose sidecar lacks it
    chain: bool = False
    label: str = ""  # in the table: the name without folders


@dataclass(frozen=True)
class Workload:
    """A source, and the whole factor by which its blocks are enlarged."""

    source: Source
    factor: int = 1


@lru_cache(maxsize=1)
def trace_of(workload: Workload) -> Trace:
    """The trace of a workload. InputError if its file has changed since the sweep was planned; UsageError as in `read`.

    The last trace is cached, since the cells of a workload are neighbours; `forget` clears the cache.
    """
    return fold(source_trace(workload.source), workload.factor)


@lru_cache(maxsize=1)
def source_trace(source: Source) -> Trace:
    """The trace of a source, in its own block size."""
    if digest(source.path) != source.sha256:
        raise InputError(f"{source.name} has changed since the sweep was planned. Start the sweep again.")
    if source.seed is not None:
        return sample(load_model(source.path), source.requests, seed=source.seed)
    trace = _read(source)
    require_known(trace, trace.meta, f"{source.name}: the hit rate of a simulated cache", PREFIXES)
    return in_domains(trace.chained() if source.chain else trace.require_chained())


def _read(source) -> Trace:
    """Read the trace of a source; errors name the file as the user did, and the option of this command."""
    try:
        return read(source.path, block_size=source.block_size)
    except (InputError, UsageError) as error:
        kind = UsageError if isinstance(error, UsageError) else InputError
        message = str(error).replace(source.path, source.name).replace(" --block-size", " --trace-block-size")
    raise kind(message)


def forget() -> None:
    """Clear the cached traces."""
    trace_of.cache_clear()
    source_trace.cache_clear()


def sources_of(
    name: str, label: str, seeds: tuple[int, ...], requests: int | None, block_size: int | None, chain: bool
) -> list[Source]:
    """The sources of a file: one for a trace, one per seed for a model."""
    if not (is_regular(name) or os.path.isdir(name)):
        raise UsageError(
            f"{name} is not a file or folder. A sweep reads a trace several times: write it to a file first."
        )
    path = os.path.abspath(name)
    sha256 = digest(name)
    if is_model(name):
        return [Source(name, path, sha256, seed, requests, label=label) for seed in seeds]
    return [Source(name, path, sha256, block_size=block_size, chain=chain, label=label)]


def digest(path: str) -> str:
    """SHA-256 of a trace: the uncompressed file and its sidecar, or all files of a data set; InputError if unreadable.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     digest(file.name)[:8]
    'cf589700'
    """
    digest_of_all = hashlib.sha256()
    for name, part in _files(path):
        digest_of_all.update(f"{name}\0".encode())
        with open_read(part) as stream:
            digest_of_all.update(hashlib.file_digest(stream, "sha256").digest())  # type: ignore[arg-type]
    return digest_of_all.hexdigest()


def _files(path) -> Iterator[tuple[str, str]]:
    """(name, path) of the files of a trace: a file and its sidecar, or all files of a data set. No name is absolute."""
    if os.path.isdir(path):
        for folder, folders, names in os.walk(path):
            folders.sort()
            for part in (os.path.join(folder, name) for name in sorted(names)):
                yield os.path.relpath(part, path), part
        return
    yield "trace", path
    if os.path.exists(beside := sidecar_path(path)) and not os.path.islink(beside):  # `read` refuses a link
        yield "sidecar", beside


def factor_of(text: str, block_size: int, name: str) -> int:
    """The factor by which blocks are enlarged: `2x` doubles them, `1024` is a size in tokens; UsageError otherwise.

    >>> factor_of("2x", 512, "day.jsonl"), factor_of("1024", 512, "day.jsonl")
    (2, 2)
    """
    number = text.removesuffix("x")
    if not (number.isdecimal() and len(number) < 16 and int(number)):
        raise UsageError(f"{text!r} is not a block size. Try 1024 (tokens) or 2x (twice the trace's block size).")
    if text.endswith("x"):
        return int(number)
    if int(number) % block_size:
        raise UsageError(
            f"--block-size {number} is not a multiple of the block size of {name}, {block_size:,} tokens. "
            f"Try {2 * block_size} or 2x."
        )
    return int(number) // block_size
