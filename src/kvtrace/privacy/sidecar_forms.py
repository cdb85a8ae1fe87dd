"""The values that a published sidecar may state: the names of each section, and the forms of their values.

Nothing else is written or passes an audit. `trace/meta.py` types the sections and names their makers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

import orjson

from .._base.row_counts import ROUNDED, UNSTATED, RowCounts
from .._base.row_counts import rounded as two_digits_of
from .._base.units import UNITS as DURATION_UNITS
from ..formats.format_table import NAMES
from ..formats.sidecar import FORMAT_VERSION
from ..formats.targets import TARGETS
from ..trace.columns import BLOCK_RULES, MEASURED, TAILS
from ..trace.hits import HIT_KEYS
from ..trace.invariants import MAX_LENGTH
from ..trace.meta import PREFIXES_UNKNOWN
from .allowed_values import (
    ENGINES,
    RENDERED_FIELDS,
    ListOf,
    Section,
    digest,
    faults,
    fit,
    flag,
    number,
    one_of,
    pattern,
    rounded,
    whole,
)
from .contributors import WARNINGS
from .profiles import COUNTED, PROFILES

MANY = 10**12  # requests, tokens, blocks
SMALL = 10**8  # a first id, a time step: smaller than a telephone number
SEED = 10**6
TOKENS = 1 << 24  # in a block

# names that rooms above own: `make docs` writes the file from their tables (tools/published_names.py)
PUBLISHED: dict[str, list[str]] = orjson.loads(Path(__file__).with_name("published_names.json").read_bytes())
LIVE_SOURCES, FIGURES = PUBLISHED["live_sources"], PUBLISHED["figures"]
TOKENIZERS = (  # public ones; of others the digest remains
    *PUBLISHED["tokenizers"],
    "deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3.1",
    "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-72B-Instruct", "Qwen/Qwen3-8B", "Qwen/Qwen3-32B",
    "Qwen/Qwen3-235B-A22B", "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-70B-Instruct",
    "meta-llama/Llama-3.3-70B-Instruct", "mistralai/Mistral-7B-Instruct-v0.3", "openai/gpt-oss-20b",
    "openai/gpt-oss-120b", "moonshotai/Kimi-K2-Instruct", "zai-org/GLM-4.5",
)  # fmt: skip
ORIGINS = ("detected", "stated")
ROLE = "(?:system|user|assistant|tool)"
WANTS = (
    r"tool-call arguments as (?:objects|strings); "
    rf"lists of content parts (?:by the template: {ROLE}(?:, {ROLE}){{0,3}}|joined to text); "
    rf"null contents (?:kept: {ROLE}(?:, {ROLE}){{0,3}}|as empty text)"
)
STEP = rf"\d{{1,5}}(?:\.\d{{1,3}})?(?:/s)?@\d{{1,5}}(?:\.\d{{1,3}})? ?(?:{'|'.join(DURATION_UNITS)})"


def _with_origin(*words: str) -> list[str]:
    return [f"{word} ({origin})" for word, origin in product(words, ORIGINS)]


def _figure(value: Any) -> bool:
    """A figure of a trace, or None where the trace does not show it."""
    return value is None or (type(value) in (int, float) and rounded(MANY)(abs(value)))


_HITS = Section({
    name: number(1) if name.endswith("_rate") else number(MANY) if name == "request_hits" else whole(MANY)
    for name in HIT_KEYS
})  # fmt: skip
_FIGURES = Section({"working_set": whole(MANY), **dict.fromkeys(FIGURES, _figure)})
_FIDELITY = Section({
    "requests": whole(MANY), "seeds": whole(SMALL), "original": _FIGURES, "sample": _FIGURES,
    "kept": Section(dict.fromkeys(FIGURES, one_of(True, False, None))),
})  # fmt: skip
_SETTINGS = Section({
    "tail": one_of(*TAILS), "k": whole(10**6), "k_counts": one_of(*COUNTED), "time_step_ms": whole(SMALL),
    "round_input": whole(TOKENS, "exact", "block", "pow2"), "round_output": whole(TOKENS, "exact", "pow2"),
    "drop_sessions": flag, "alike": whole(10**6), "resample": flag,
    "keep_measured": ListOf(one_of(*MEASURED), limit=len(MEASURED)),
})  # fmt: skip


def two_digits(value: Any) -> bool:
    """A count as a sidecar states it: rounded up to two digits."""
    return type(value) is int and 0 <= value <= MANY and value == two_digits_of(value)


def share(value: Any) -> bool:
    """A share as a sidecar states it, above -1: to three decimals."""
    return type(value) is float and -1 <= value <= 1000 and value == round(value, 3)


_COUNTS = [field.name for field in fields(RowCounts) if field.name not in UNSTATED]
META = Section({
    "log": Section({
        "reader": one_of(*_with_origin(*PUBLISHED["readers"])),
        "time": one_of("none found in the first rows", *_with_origin(*PUBLISHED["times"])),
        "arrivals": Section({
            "model": one_of("poisson"), "conversations_per_s": rounded(SMALL), "mean_think_ms": rounded(SMALL),
            "seed": whole(SEED),
        }),
        "measured": ListOf(one_of(*MEASURED), limit=len(MEASURED)),
        "request_sample": rounded(1),
    }),
    "tokenizer": Section({
        "name": one_of(*TOKENIZERS), "sha256": digest,
        "backend": pattern(r"(?:fastokens|tokenizers) \d{1,2}(?:\.\d{1,2}){1,2}"),
        "why": one_of(*PUBLISHED["tokenizer_choices"]),
    }, nullable=True),
    "chat_template": Section({
        "name": one_of("chat_template.jinja", "tokenizer_config.json", "openai_chat.jinja"), "sha256": digest,
        "generation_prompt": one_of(None), "wants": pattern(WANTS),
    }, nullable=True),
    "hash": one_of("SipHash-2-4-128, keyed, chained"),
    "rendering": Section({
        "engine": one_of(*ENGINES), "version": whole(99),
        "not_rendered": Section(dict.fromkeys(sorted(RENDERED_FIELDS), two_digits)), "unsized_media": two_digits,
    }),
    "session_mode": one_of("cumulative"),
    "prefixes": one_of(PREFIXES_UNKNOWN),
    "profile": one_of(*PROFILES),
    "release": Section({
        "settings": _SETTINGS, "k_counted": one_of(None, *WARNINGS), "sampled": flag, "tenants_isolated": flag,
    }),
    "service_times": Section({
        "measured": flag, "estimated": flag, "costs": one_of("roofline", "calibrated"),
        "model": one_of(*PUBLISHED["models"]), "gpu": one_of(*PUBLISHED["gpus"]), "gpus": whole(1024),
    }),
    "counts": Section({"rounded": one_of(ROUNDED)} | dict.fromkeys(_COUNTS, two_digits)),
    "usage": Section({"requests": two_digits, "difference": share}),
    "figures": Section({
        "requests": whole(MANY), "tokens": whole(MANY), "output_tokens": whole(MANY),
        "known_output_tokens": whole(MANY), "unknown_outputs": whole(MANY), "blocks": whole(MANY),
        "distinct_blocks": whole(MANY), "sessions": whole(MANY), "duration_ms": number(MANY), "hits": _HITS,
        "hits_with_outputs": _HITS,
    }),
    "converted": Section({
        "chained": flag, "folded_from": whole(TOKENS), "speedup_ratio": rounded(SMALL),
        "assumed_output": whole(MAX_LENGTH), "part": flag,
    }),
    "synthetic": Section({
        "method": one_of("attach", "tree", "sessions", "mixture"), "requests": whole(MANY), "sessions": whole(MANY),
        "seed": whole(SEED),
        "scale": one_of("rate", "duration"), "speedup_ratio": rounded(SMALL), "prefix_len_multiplier": rounded(SMALL),
        "prompt_len_multiplier": rounded(SMALL), "osl_multiplier": rounded(SMALL),
        "prefix_root_multiplier": whole(SMALL), "min_isl": whole(SMALL), "max_isl": whole(SMALL),
        "min_osl": whole(SMALL), "max_osl": whole(SMALL), "max_rejections": whole(SMALL),
        "fidelity": _FIDELITY,
        "step_rates": pattern(rf"{STEP}(?:, ?{STEP}){{0,9}}"),
        "rates": Section({
            "times_s": ListOf(rounded(MANY), limit=SMALL), "rates": ListOf(rounded(MANY), limit=SMALL),
            "period_s": rounded(MANY), "relative": flag,
        }),
        "models": ListOf(Section({
            "method": one_of("attach", "tree"), "share": rounded(1), "fitted_requests": whole(MANY),
            "requests": whole(MANY), "fidelity": _FIDELITY,
        }), limit=SMALL),
        "tenants": whole(SMALL), "tenant_skew": rounded(SMALL), "tenant_cv": rounded(SMALL),
        "tenant_models": ListOf(whole(SMALL), limit=SMALL),
    }),
    "recording": Section({
        "sources": ListOf(one_of(*LIVE_SOURCES), limit=len(LIVE_SOURCES)), "lost": two_digits, "dropped": two_digits,
    }),
    "client": one_of(*TARGETS),
})  # fmt: skip

OWN = Section({
    "kvtrace": Section({
        "version": pattern(r"\d{1,2}\.\d{1,2}(?:\.\d{1,2})?(?:(?:a|b|rc|\.dev|\.post)\d{1,2})?"),
        "format_version": one_of(FORMAT_VERSION),
    }),
    "block_size": whole(TOKENS), "tail": one_of(*BLOCK_RULES), "requests": whole(MANY), "blocks": whole(MANY),
    "output_blocks": whole(MANY), "distinct_blocks": whole(MANY), "first_id": whole(SMALL), "format": one_of(*NAMES),
})  # fmt: skip
PARTS = ListOf(
    Section({"file": pattern(r"part-\d{5,7}\.parquet"), "requests": whole(MANY), "blocks": whole(MANY)}), limit=10**6
)
SIDECAR = Section({**OWN.forms, **META.forms, "parts": PARTS})


def count_private(meta: Mapping[str, Any]) -> int:
    """The number of names and values that `public` leaves out.

    >>> count_private({"note": "call me", "log": {"reader": "ours"}, "hash": "SipHash-2-4-128, keyed, chained"})
    2
    """
    return sum(1 for _ in faults(meta, META))


def public(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a trace that a published sidecar may have; all else is left out.

    >>> public({"note": "call me", "tokenizer": {"name": "acme/secret", "sha256": "ab" * 32}})["tokenizer"].keys()
    dict_keys(['sha256'])
    """
    return fit(meta, META)
