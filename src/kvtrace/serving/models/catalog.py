"""Models by name: the fields of their config.json that decide memory and time, with the page that publishes them.

catalog.json has one entry a model; docs/serving/models.md says how to add one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import orjson


@dataclass(frozen=True)
class CatalogEntry:
    """A model as its publisher describes it."""

    name: str  # in lower case
    config: Mapping[str, Any]  # fields of its config.json
    sources: tuple[str, ...]  # the address of its config.json, then of pages that state fields of it
    date: str  # the day on which they were read, YYYY-MM-DD
    parameters: float | None = None  # as the publisher states them, in its name or on its page
    active: float | None = None  # parameters that a token uses, likewise


def _entry(name: str, row: dict[str, Any]) -> CatalogEntry:
    published = row.get("published", {})
    return CatalogEntry(
        name, row["config"], tuple(row["sources"]), row["date"], published.get("parameters"), published.get("active")
    )


_ROWS: dict[str, Any] = orjson.loads((Path(__file__).parent / "catalog.json").read_bytes())["models"]
MODELS = {name: _entry(name, row) for name, row in _ROWS.items()}


def model_name(text: object) -> str | None:
    """The name of a model of the catalog, in any case; None if the text is not one.

    >>> model_name("Llama-3.1-8B"), model_name("config.json")
    ('llama-3.1-8b', None)
    """
    return text.lower() if isinstance(text, str) and text.lower() in MODELS else None


def near_models(text: str) -> list[str]:
    """Up to three names of the catalog that are spelt like a wrong one.

    >>> near_models("Qwen/Qwen3-30B-A3B-Instruct"), near_models("nothing like it")
    (['qwen3-30b-a3b'], [])
    """
    wanted = text.rstrip("/").rpartition("/")[2].lower()
    inside = sorted((name for name in MODELS if name in wanted), key=len, reverse=True)
    return inside[:1] or get_close_matches(wanted, MODELS, n=3, cutoff=0.6)
