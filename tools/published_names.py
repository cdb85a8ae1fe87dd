"""The names that a published sidecar may state, from the tables that own them (`make docs`).

The room privacy stands below most of these tables, so it reads them from a file.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import orjson

from kvtrace.capture.sources import SOURCES
from kvtrace.ingest.logs import READERS
from kvtrace.ingest.logs.times import POWERS, SPANS, Unit
from kvtrace.serving.hardware import GPUS
from kvtrace.serving.models import MODELS
from kvtrace.synthesis.fidelity import BOUNDS
from kvtrace.text.encodings import ENCODINGS
from kvtrace.text.tokenizer_files import BUILTIN
from kvtrace.text.tokenizers import CHOICES

FILE = Path(__file__).parents[1] / "src/kvtrace/privacy/published_names.json"


def published_names() -> bytes:
    """The file as it is now: a list of names for each kind of them."""
    times = (str(Unit(name, span)) for name, span in product((*POWERS, "iso"), SPANS))
    checkpoints = [name for entry in MODELS.values() for name in entry.checkpoints]
    names = {
        "readers": READERS, "live_sources": SOURCES, "figures": BOUNDS, "times": dict.fromkeys(times),
        "tokenizers": [*ENCODINGS, *BUILTIN], "tokenizer_choices": CHOICES,
        "models": [*MODELS, *checkpoints], "gpus": GPUS,
    }  # fmt: skip
    lists = {kind: list(each) for kind, each in names.items()}
    return orjson.dumps(lists, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def write() -> None:
    """Write the file."""
    FILE.write_bytes(published_names())
