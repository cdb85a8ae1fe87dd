"""The data card: one page of Markdown beside a trace: its content, its making, and what it reveals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..formats.writing import card_path as card_path  # re-exported
from ..trace.trace import Trace
from ..trace.trace_figures import figures as figures_of
from .release_steps import label_of
from .unprotected import unprotected

if TYPE_CHECKING:
    from .checks.finding import Audit

FIELDS = {
    "timestamp": ("ms", "arrival, counted from the first request"),
    "input_length": ("tokens", "the prompt, including the chat template"),
    "output_length": ("tokens", "the generated output"),
    "hash_ids": ("ids", "the prompt's blocks; equal ids are equal prefixes, and ids contain nothing else"),
    "output_hash_ids": ("ids", "the output's blocks, continuing the prompt's; optional"),
    "session_id": ("number", "conversation; optional"),
    "type, turn": ("word, number", "kind of request, and its turn in the conversation; optional"),
}
COUNTS = ("requests", "sessions", "tokens", "output_tokens", "blocks", "distinct_blocks")
RATES = ("block_hit_rate", "token_hit_rate", "request_hit_rate")


def card(audit: Audit, trace: Trace | Mapping[str, Any] | None = None, meta: Mapping[str, Any] | None = None) -> str:
    """The card's text in Markdown, with TODO for facts that only the publisher knows.

    Args:
        audit: the audit of the trace.
        trace: the trace, or its figures (requests, tokens, blocks, hits, ...). By default those of the sidecar.
        meta: the sidecar's values. No value of a row appears in the card.
    """
    meta = meta or {}
    figures = _figures(trace) if isinstance(trace, Trace) else {**meta, **_object(meta, "figures"), **(trace or {})}
    sections = [
        ("", _opening(figures)),
        ("Licence and citation", _to_fill_in()),
        ("Fields", _fields(meta)),
        ("How it was made", _making(figures, meta)),
        (f"Release profile: {audit.profile.name}", _profile(audit, meta)),
        ("Figures", _figures_table(figures, meta)),
        ("Audit", _audit(audit)),
        ("What is protected, and what is not", _protection(audit)),
        ("How to read it", READ_FOLDER if meta.get("format") == "dataset" else READ),
    ]
    title = "# TODO: title\n\n"
    return title + "\n\n".join(f"## {head}\n\n{text}" if head else text for head, text in sections) + "\n"


READ = """```python
import kvtrace

trace = kvtrace.read("TODO: file name")
print(trace, kvtrace.basics(trace).hits.block_hit_rate)
```

`kvtrace analyze`, `curve` and `simulate` read the file directly; keep `<file>.meta.json` beside it."""

READ_FOLDER = """It is a data set: a folder of Parquet files, and a `manifest.json` that describes them.
`kvtrace analyze`, `curve` and `simulate` read the folder as a stream; so does Python:

```python
from kvtrace.formats.dataset import open_dataset

for columns in open_dataset("TODO: folder name").chunks():
    print(len(columns), columns.hash_ids[:5])
```"""


def _opening(figures):
    return (
        f"TODO: describe the service in a sentence. {_number(figures, 'requests')} requests to a large language model "
        f"{_period(figures)}, as a prefix-cache trace: arrival times, lengths, and shared prefixes of prompts. It "
        "contains no text."
    )


def _period(figures) -> str:
    duration = figures.get("duration_ms")
    return f"over {duration / 1000:,.0f} s" if isinstance(duration, (int, float)) else "in the order of their arrival"


def _to_fill_in():
    return "* Licence: TODO\n* Cite as: TODO\n* Contact: TODO (a public page rather than a person's address)"


def _fields(meta):
    name = meta.get("format") or "mooncake"
    lines = [
        f"One row for each request, in order of arrival ({_code(name)} format).",
        "",
        "| field | unit | meaning |",
        "|---|---|---|",
    ]
    return "\n".join([*lines, *(f"| `{field}` | {unit} | {meaning} |" for field, (unit, meaning) in FIELDS.items())])


def _making(figures, meta):
    tokenizer, template, log = (_object(meta, key) for key in ("tokenizer", "chat_template", "log"))
    made = [
        ("kvtrace", _object(meta, "kvtrace").get("version")),
        ("log", log.get("reader")), ("times", log.get("time")),
        ("tokenizer", _public(tokenizer)), ("chat template", _public(template)),
        ("hash", meta.get("hash")), ("tokens per block", figures.get("block_size") or meta.get("block_size")),
        ("last, partial block", meta.get("tail") or figures.get("tail")),
    ]  # fmt: skip
    return "\n".join(f"* {name}: {_quoted(value)}" for name, value in made if value not in (None, "", {}))


def _profile(audit, meta):
    release = _object(meta, "release")
    lines = ["| setting | value |", "|---|---|"]
    lines += [f"| `{name}` | {_code(value)} |" for name, value in audit.profile.settings().items()]
    counted = release.get("k_counted")
    lines += [f"| k counted | {_quoted(counted)} |"] if counted else []
    lines += [f"| sampled | {'yes' if release.get('sampled') is True else 'no'} |"]
    if not audit.declared:
        lines = ["The trace declares no profile; the audit graded it against these settings.", "", *lines]
    return "\n".join(lines)


def _figures_table(figures, meta):
    rows = [(name.replace("_", " "), _number(figures, name)) for name in COUNTS if figures.get(name)]
    hits = figures.get("hits") if isinstance(figures.get("hits"), Mapping) else {}
    rows += [(f"{rate.replace('_', ' ')}, nothing ever evicted", f"{hits[rate]:.4f}") for rate in RATES if rate in hits]
    rows += [] if hits else [("hit rates", "unknown: the log does not record shared prefixes")]
    lines = ["| figure | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    costs = _object(meta, "release").get("costs")
    steps = [step for step in costs if _is_step(step)] if isinstance(costs, list) else []
    if len(steps) > 1:
        lines += ["", "Block hit rate after each step of the release:", "", "| step | block hit rate |", "|---|---|"]
        lines += [f"| {_plain(label_of(str(step['step'])))} | {step['block_hit_rate']:.4f} |" for step in steps]
    return "\n".join(lines)


def _audit(audit):
    lines = [audit.verdict, "", "| check | level | finding |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {f.name} | {f.level} | {_plain(f.sentence)} |" for f in audit.findings)])


def _protection(audit):
    if audit.publishable:
        lines = ["Protected:", "", *(f"* {one}" for one in _protected(audit.profile)), ""]
    else:
        lines = ["Nothing is protected: the audit failed, or the trace declares no profile that coarsens it.", ""]
    return "\n".join([*lines, "Not protected:", "", *(f"* {one}" for one in unprotected(audit.profile))])


def _protected(profile):
    """What a trace of this profile does not reveal, if its audit passed."""
    yield "text of prompts and outputs, users, keys, and names in the log: a release writes none of them"
    yield "content of blocks: ids count by first appearance and do not depend on the content"
    if profile.k > 1:
        yield f"other senders of a text: blocks shared by fewer than {profile.k} contributors are split, one copy each"
    if profile.tail != "kept":
        yield "last few tokens of a prompt: no tail block is shared"
    if profile.time_step_ms > 1:
        yield f"times finer than {profile.time_step_ms / 1000:g} s, and the date"


def _figures(trace: Trace) -> dict[str, Any]:
    return figures_of(trace) | {"block_size": trace.block_size, "tail": trace.tail}


def _object(meta, key) -> Mapping[str, Any]:
    return section if isinstance(section := meta.get(key), Mapping) else {}


def _public(described) -> str:
    """The name and digest of a tokenizer or template, without a name that is a path."""
    from .checks.marks import kinds

    name, digest = str(described.get("name") or ""), str(described.get("sha256") or "")
    named = "" if set(kinds(name)) - {"host name"} or name.count("/") > 1 else name
    return ", ".join([*([named] if named else []), *([f"SHA-256 {digest}"] if len(digest) == 64 else [])])


def _is_step(step) -> bool:
    return isinstance(step, Mapping) and "step" in step and isinstance(step.get("block_hit_rate"), (int, float))


def _number(figures, name) -> str:
    return f"{figures[name]:,}" if isinstance(figures.get(name), (int, float)) else "-"


def _code(value) -> str:
    return "`{}`".format(_one_line(value).replace("`", "'"))


def _plain(value) -> str:
    """A sentence of ours that fits one cell of a table; it may have code, and names from the trace, but no HTML."""
    return _one_line(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _quoted(value) -> str:
    """A value of the sidecar: no HTML, and no link, image or code of Markdown.

    >>> _quoted("<b>[a](http://b)")
    '&lt;b&gt;\\\\[a\\\\](http://b)'
    """
    return re.sub(r"([\\`*\[\]])", r"\\\1", _plain(value))


def _one_line(value) -> str:
    return " ".join(str(value).split()).replace("|", "/")
