"""The section `weka` of a trace's metadata, verified: a sidecar may hold anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .._base.errors import InputError
from ..trace.measured import MAX_TIME
from ..trace.meta import WekaSection
from .weka_session import GLOBAL, LOCAL

BROKEN = "the section weka of the trace's sidecar is not as kvtrace writes it. Delete that section."
MAX_ID = 1 << 64


def section_of(meta: Mapping[str, Any] | None) -> WekaSection:
    """The section of some metadata, empty if there is none; InputError if it is not valid.

    >>> section_of({"weka": {"sessions": 5}})
    Traceback (most recent call last):
    kvtrace._base.errors.InputError: the section weka of the trace's sidecar is not as kvtrace writes it. Delete that \
section.
    """
    section = (meta or {}).get("weka")
    if section is None:
        return {}
    if not (
        isinstance(section, dict)
        and _is_list(section.get("sessions"), _is_session)
        and _is_list(section.get("fields", []), _is_text)
        and _is_list(section.get("json", []), _is_text)
        and _is_time(section.get("start_ms", 0))
    ):
        raise InputError(BROKEN)
    return section  # type: ignore[return-value]


def id_runs(session: Mapping[str, Any], distinct: int) -> np.ndarray | None:
    """The ids of a session by first appearance, as uint64; None unless there are as many as `distinct`."""
    runs = [(int(first), int(count)) for first, count in session.get("ids", [])]
    if sum(count for _, count in runs) != distinct:
        return None
    names = [np.uint64(first % MAX_ID) + np.arange(count, dtype=np.uint64) for first, count in runs if count]
    return np.concatenate(names or [np.empty(0, dtype=np.uint64)])


def _is_session(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("fields"), dict)
        and value["fields"].get("hash_id_scope", LOCAL) in (LOCAL, GLOBAL)
        and _is_count(value.get("requests"))
        and isinstance(value.get("file", ""), str)
        and _is_list(value.get("ids", []), _is_run)
        and _is_list(value.get("agents", []), _is_agent)
    )


def _is_agent(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("fields"), dict)
        and _is_time(value["fields"].get("t"))
        and _is_count(value.get("place"))
        and type(value.get("relative")) is bool
    )


def _is_run(value: Any) -> bool:
    return _is_list(value, lambda one: type(one) is int) and len(value) == 2 and value[1] >= 0


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= MAX_TIME


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any, is_valid: Any) -> bool:
    return isinstance(value, list) and all(map(is_valid, value))
