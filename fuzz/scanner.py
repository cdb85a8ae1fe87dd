"""The scanner of trace rows, run by Python and followed by a fuzzer: it finds what its twin finds, in every input.

    python -m fuzz.scanner --seconds 30 [corpus folder]

The source that is compiled elsewhere is imported as it stands, with the fuzzer's counters in it, and put in the place
of the compiled one: branches that only rare bytes reach are then seen. fuzz/kernels.py fuzzes what the compiler makes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import atheris
from atheris.instrument_bytecode import patch_code

with atheris.instrument_imports(include=["kvtrace.formats.reading"], enable_loader_override=False):
    from kvtrace.formats import jsonl_read

from fuzz.engine import fuzz
from fuzz.mutate import TOKENS
from fuzz.seeds import trace_files
from kvtrace import _native as _kernels
from tests.formats.test_rows import agree

SOURCE = Path(_kernels.__file__).parent / "rows.py"


def counted(source: Path) -> ModuleType:
    """A module run from its source, with counters at its branches and comparisons."""
    module = ModuleType(source.stem)
    code = compile(source.read_text(), str(source), "exec")
    exec(patch_code(code, trace_dataflow=True, nested=True), module.__dict__)
    return module


def one(data: bytes) -> None:
    """Scan the bytes as one piece; then, if the first byte says so, in small pieces."""
    agree(data[1:], piece=1 << 14)
    if data[:1] and data[0] < 64:
        agree(data[1:], piece=1 + 4 * data[0])


def seeds():
    """Trace files, each to be read whole and in pieces."""
    for data in trace_files():
        yield b"\xff" + data
        yield b"\x07" + data


if __name__ == "__main__":
    jsonl_read.Scanner = counted(SOURCE).Scanner  # type: ignore[misc]
    sys.exit(fuzz(one, seeds(), words=[token for token in TOKENS if len(token) < 60]))
