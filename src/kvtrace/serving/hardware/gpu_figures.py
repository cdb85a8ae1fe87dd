"""The figures of GPUs and links in gpus.json: peaks, memory, measured shares of the peaks, prices; each has a source.

No figure was fitted to a recording of a served model. docs/serving/models.md has the table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

FIGURES: dict[str, Any] = orjson.loads(Path(__file__).with_name("gpus.json").read_bytes())
