"""Join linked windows of a recording to one trace: blocks, sessions and domains that the links equate are one again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from .._base.errors import InputError, UsageError
from .._base.row_counts import rounded
from ..formats import reading
from ..formats.links import Links, fingerprint_of, links_path, read_links
from ..formats.sidecar import sidecar_path
from ..trace.building import TraceBuilder
from ..trace.columns import Columns, replace_columns
from ..trace.meta import rendering_of, rendering_words, with_unknown_prefixes, without_stale
from ..trace.session_trees import previous_turn, turn_numbers
from ..trace.trace import Trace
from .contributors import WARNINGS, Contributors, contributors
from .profiles import declared
from .releases import share_by_k
from .trace_draft import TraceDraft

KINDS = [None, *WARNINGS]  # what k counts, from the strongest to the weakest; None = nothing was counted


def join_windows(paths: Iterable[str | Path]) -> Trace:
    """Join the linked windows of one recording (`kvtrace record --link-windows`) to one trace, in order of time.

    With the profile "exact", the trace has the ids, lengths and order that anonymising the whole log at once gives.
    With others, blocks that the release of a window kept apart stay apart. `kvtrace.privacy.publish` audits the trace.

    Args:
        paths: The windows, each with its sidecar and its links file beside it, in any order.

    Returns:
        The trace; its `meta` declares the windows' release profile.

    Raises:
        InputError: A window cannot be read, or its links are missing or belong to another file.
        UsageError: The windows are of different recordings or profiles, or one is given twice.

    >>> import tempfile
    >>> from kvtrace.formats.links import Links, write_links
    >>> from kvtrace.formats.writing import write
    >>> from kvtrace.trace.building import toy
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for number, ids in enumerate([[4, 5], [4, 6]]):  # both windows begin with the same block
    ...         window, path = toy("0 1", block_size=16), f"{folder}/window-{number}.jsonl"
    ...         files, none = write(window, path, meta={}), np.empty(0, np.int64)
    ...         links = Links("9b", number, 60_000 * number, fingerprint_of(window), np.array(ids), none, none)
    ...         write_links(links, path)
    ...     joined = join_windows([f"{folder}/window-0.jsonl", f"{folder}/window-1.jsonl"])
    >>> joined.hash_ids, joined.timestamp
    (array([0, 1, 0, 2]), array([    0., 60000.]))
    """
    windows = sorted((_read(path) for path in paths), key=lambda window: window.links.window)
    if not windows:
        raise UsageError("join needs at least one window.")
    _require_one_recording(windows)
    builder, fresh = TraceBuilder(), _Fresh()
    first_row = 0
    for window in windows:
        builder.add(_renumbered(window, fresh, first_row))
        first_row += len(window.trace)
    columns = builder.columns()
    columns = columns.take(np.argsort(columns.timestamp, kind="stable"))
    _join_sessions(columns)
    first = windows[0].trace
    meta = _meta([window.trace.meta for window in windows])
    joined = Trace.from_columns(columns, block_size=first.block_size, tail=first.tail, meta=meta)
    if not joined.is_chained and all(window.trace.is_chained for window in windows):
        joined = joined.chained()  # a block is only equal below equal blocks
    return _shared_again(joined)


@dataclass(frozen=True)
class _Window:
    path: str
    trace: Trace
    links: Links

    @property
    def kind(self) -> dict[str, Any]:
        """What must be equal in all windows, by its name in messages."""
        meta, release = self.trace.meta, self.trace.meta.get("release") or {}
        return {
            "release profiles": meta.get("profile"), "release settings": release.get("settings"),
            "tenants": release.get("tenants_isolated"), "block sizes": self.trace.block_size, "tails": self.trace.tail,
        }  # fmt: skip


class _Fresh:
    """Numbers that no link has."""

    def __init__(self) -> None:
        self._next = 1 << 40

    def mapped(self, values: np.ndarray, links: np.ndarray) -> np.ndarray:
        """The values by their links; those without a link get a new number each, -1 stays."""
        numbers, missing = links.copy(), links < 0
        numbers[missing] = self._next + np.arange(int(missing.sum()))
        self._next += int(missing.sum())
        return np.append(numbers, -1)[values]


def _read(path: str | Path) -> _Window:
    """A window with its links; InputError if the links are missing, or of another file."""
    links = read_links(path)
    trace = reading.read(path)
    distinct = (trace.distinct, _count(trace.session), _count(trace.domain))
    linked = (len(links.blocks), len(links.sessions), len(links.domains))
    fits = distinct[:2] == linked[:2] and (trace.domain is None or distinct[2] == linked[2])
    if not fits or fingerprint_of(trace) != links.fingerprint:
        raise InputError(f"{links_path(path)}: belongs to another window. Keep the links of each window beside it.")
    if not _has_valid_sections(trace.meta):
        raise InputError(f"{sidecar_path(path)}: log, release, rendering or recording is not as a recorder writes it.")
    return _Window(str(path), trace, links)


def _has_valid_sections(meta: Mapping[str, Any]) -> bool:
    """Whether the sections of a sidecar that a join reads have their types; a release has valid settings."""
    with suppress(ValueError, TypeError, KeyError, AttributeError, OverflowError):
        _meta([meta])
        rendering_of(meta)
        return "release" not in meta or declared(dict(meta)) is not None
    return False


def _count(values: np.ndarray | None) -> int:
    return 0 if values is None else int(values.max(initial=-1)) + 1


def _require_one_recording(windows: list[_Window]) -> None:
    first = windows[0]
    for before, window in pairwise([first, *windows]):
        if window.links.recording != first.links.recording:
            raise UsageError(
                f"{first.path} and {window.path} are windows of different recordings: nothing links them. Join the "
                "windows of one recording."
            )
        if window is not before and window.links.window == before.links.window:
            raise UsageError(f"{before.path} and {window.path} are the same window. Name each window once.")
        if rendering_of(window.trace.meta) != rendering_of(first.trace.meta):
            raise UsageError(
                f"{first.path} and {window.path} were rendered differently ({rendering_words(first.trace.meta)}, "
                f"{rendering_words(window.trace.meta)}), so equal prompts have other blocks. Join windows of one "
                "rendering."
            )
        for name, value in first.kind.items():
            if window.kind[name] != value:
                raise UsageError(f"{first.path} and {window.path} have different {name}. Join windows that agree.")


def _renumbered(window: _Window, fresh: _Fresh, first_row: int) -> Columns:
    """The rows of a window with the numbers and times of the recording."""
    part, links = replace_columns(window.trace), window.links
    part.timestamp = part.timestamp + links.offset_ms
    blocks = fresh.mapped(np.arange(len(links.blocks)), links.blocks)
    part.hash_ids = blocks[part.hash_ids]
    part.output_ids = None if part.output_ids is None else blocks[part.output_ids]
    part.session = None if part.session is None else fresh.mapped(part.session, links.sessions)
    if part.domain is None and len(links.domains) == 1:
        part.domain = np.full(len(part), links.domains[0])
    elif part.domain is not None:
        part.domain = fresh.mapped(part.domain, links.domains)
    part.parent = None if part.parent is None else np.where(part.parent < 0, -1, part.parent + first_row)
    part.dependencies = None if part.dependencies is None else part.dependencies.shifted(first_row)
    return part


def _join_sessions(columns: Columns) -> None:
    """Number the turns of sessions again, and link the first one in a window to the last one before it."""
    if columns.domain is not None and (columns.domain == columns.domain[:1]).all():
        columns.domain = None
    if columns.session is None:
        return
    if columns.parent is not None:
        columns.parent = np.where(columns.parent < 0, previous_turn(columns.session), columns.parent)
    if "turn" in columns.extra:
        columns.extra["turn"] = turn_numbers(columns.session)


def _shared_again(joined: Trace) -> Trace:
    """The trace with k-sharing among its sessions or inferred conversations, if its release counts these.

    A window may have counted accounts, and another one sessions, because its requests named no account.
    """
    release = joined.meta.get("release")
    kind = release.get("k_counted") if release else None
    if kind not in ("sessions", "inferred"):
        return joined
    assert release is not None
    profile = declared(joined.meta)
    assert profile is not None  # as _has_valid_sections verified
    draft = TraceDraft.of(joined)

    def find(infer: Callable[[], np.ndarray]) -> Contributors:
        return Contributors(infer(), kind) if kind == "inferred" else contributors(draft.rows, None, kind, infer=infer)

    share_by_k(draft, profile.k, find)
    return draft.trace()


def _meta(metas: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The sections that all windows have in common, and what was recorded in all of them."""
    first, *others = map(without_stale, metas)
    common = {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}
    if all("release" in meta for meta in metas):
        kinds = [meta["release"].get("k_counted") for meta in metas]
        common["release"] = {**metas[0]["release"], "k_counted": max(kinds, key=KINDS.index)}
    logs = [meta["log"] for meta in metas if "log" in meta]
    if len(logs) == len(metas):
        log = {name: value for name, value in logs[0].items() if all(section.get(name) == value for section in logs)}
        measured = {name: None for section in logs for name in section.get("measured", [])}
        common["log"] = log | ({"measured": list(measured)} if measured else {})
    if all("rendering" in meta for meta in metas):  # of one engine and version, as _require_one_recording verified
        common["rendering"] = _rendering([meta["rendering"] for meta in metas])
    parts = [meta["recording"] for meta in metas if "recording" in meta]
    if parts:
        names = dict.fromkeys(name for part in parts for name in part["sources"])
        sums = {name: rounded(sum(part[name] for part in parts)) for name in ("lost", "dropped")}
        common["recording"] = {"sources": list(names), **sums}
    return with_unknown_prefixes(common, metas)


def _rendering(sections: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The rendering of all windows, with the sums of what was not rendered."""
    left_out: dict[str, int] = {}
    for section in sections:
        for name, count in section.get("not_rendered", {}).items():
            left_out[name] = left_out.get(name, 0) + count
    media = sum(section.get("unsized_media", 0) for section in sections)
    joined = {name: value for name, value in sections[0].items() if name not in ("not_rendered", "unsized_media")}
    joined |= {"not_rendered": {name: rounded(count) for name, count in left_out.items()}} if left_out else {}
    return joined | ({"unsized_media": rounded(media)} if media else {})
