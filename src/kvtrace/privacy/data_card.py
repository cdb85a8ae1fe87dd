"""The data card: one page of Markdown beside a trace that says what it is, how it was made, and what it shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..formats.trace_files import card_path as card_path  # it is the card's as well
from ..trace.figures import figures as figures_of
from ..trace.trace import Trace
from .unprotected import unprotected

if TYPE_CHECKING:
    from .checks.finding import Audit

FIELDS = {
    "timestamp": ("ms", "arrival, counted from the first request"),
    "input_length": ("tokens", "prompt, chat template included"),
    "output_length": ("tokens", "what was generated"),
    "hash_ids": ("ids", "the prompt's blocks; equal ids are equal prefixes, and nothing else can be read from them"),
    "output_hash_ids": ("ids", "the output's blocks, continuing the prompt's; only where the trace has them"),
    "session_id": ("number", "conversation; only where the trace has them"),
    "type, turn": ("word, number", "kind of request and turn of its conversation; only where the trace has them"),
}
COUNTS = ("requests", "sessions", "tokens", "output_tokens", "blocks", "distinct_blocks")
RATES = ("block_hit_rate", "token_hit_rate", "request_hit_rate")


def card(audit: Audit, trace: Trace | Mapping[str, Any] | None = None, meta: Mapping[str, Any] | None = None) -> str:
    """The card's text: Markdown, with TODO where only the publisher knows what to say.

    `meta` is what the sidecar says. `trace` is the trace itself, or its figures as a sidecar holds them (requests,
    tokens, blocks, hits, ...); without it, those of the sidecar are taken. No value of a row stands in the card.
    """
    meta = meta or {}
    figures = _figures(trace) if isinstance(trace, Trace) else {**meta, **_object(meta, "figures"), **(trace or {})}
    parts = [
        ("", _opening(figures)),
        ("Licence and citation", _to_fill_in()),
        ("Fields", _fields(meta)),
        ("How it was made", _made(figures, meta)),
        (f"Release profile: {audit.profile.name}", _profile(audit, meta)),
        ("Figures", _figures_table(figures, meta)),
        ("Audit", _audit(audit)),
        ("What is protected, and what is not", _protection(audit)),
        ("How to read it", READ_FOLDER if meta.get("format") == "dataset" else READ),
    ]
    title = "# TODO: title\n\n"
    return title + "\n\n".join(f"## {head}\n\n{text}" if head else text for head, text in parts) + "\n"


READ = """```python
import kvtrace

trace = kvtrace.read("TODO: file name")
print(trace, kvtrace.basics(trace).hits.block_hit_rate)
```

`kvtrace analyze`, `curve` and `simulate` take the file as it is; keep `<file>.meta.json` beside it."""

READ_FOLDER = """It is a folder of Parquet files, and `manifest.json`, which says what they hold.
`kvtrace analyze`, `curve` and `simulate` take the folder as it is, in a stream; so does Python:

```python
from kvtrace.formats.dataset import open_dataset

for columns in open_dataset("TODO: folder name").chunks():
    print(len(columns), columns.hash_ids[:5])
```"""


def _opening(figures):
    return (
        f"TODO: what service this is, in a sentence. {_number(figures, 'requests')} requests to a large language model "
        f"{_over(figures)}, as a prefix-cache trace: when they came, how long they "
        "were, and which share the beginning of their prompts. It holds no text."
    )


def _over(figures) -> str:
    duration = figures.get("duration_ms")
    return f"over {duration / 1000:,.0f} s" if isinstance(duration, (int, float)) else "in the order of their arrival"


def _to_fill_in():
    return "* Licence: TODO\n* Cite as: TODO\n* Contact: TODO (a public page rather than a person's address)"


def _fields(meta):
    name = meta.get("format") or "mooncake"
    lines = [
        f"One request a row, in the order of arrival ({_code(name)} format).",
        "",
        "| field | unit | meaning |",
        "|---|---|---|",
    ]
    return "\n".join([*lines, *(f"| `{field}` | {unit} | {meaning} |" for field, (unit, meaning) in FIELDS.items())])


def _made(figures, meta):
    tokenizer, template, log = (_object(meta, key) for key in ("tokenizer", "chat_template", "log"))
    made = [
        ("kvtrace", _object(meta, "kvtrace").get("version")),
        ("log", log.get("reader")), ("times", log.get("time")),
        ("tokenizer", _public(tokenizer)), ("chat template", _public(template)),
        ("hash", meta.get("hash")), ("tokens a block", figures.get("block_size") or meta.get("block_size")),
        ("last, partial block", meta.get("tail") or figures.get("tail")),
    ]  # fmt: skip
    return "\n".join(f"* {name}: {_plain(value)}" for name, value in made if value not in (None, "", {}))


def _profile(audit, meta):
    release = _object(meta, "release")
    lines = ["| setting | value |", "|---|---|"]
    lines += [f"| `{name}` | {_code(value)} |" for name, value in audit.profile.settings().items()]
    counted = release.get("k_counted")
    lines += [f"| k counted | {_plain(counted)} |"] if counted else []
    lines += [f"| sampled | {'yes' if release.get('sampled') is True else 'no'} |"]
    if not audit.declared:
        lines = ["The trace declares no profile of its own; these are the settings it was graded against.", "", *lines]
    return "\n".join(lines)


def _figures_table(figures, meta):
    rows = [(name.replace("_", " "), _number(figures, name)) for name in COUNTS if figures.get(name)]
    hits = figures.get("hits") if isinstance(figures.get("hits"), Mapping) else {}
    rows += [(f"{rate.replace('_', ' ')}, nothing ever evicted", f"{hits[rate]:.4f}") for rate in RATES if rate in hits]
    rows += [] if hits else [("hit rates", "not known: what prompts share is not in the log")]
    lines = ["| figure | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    costs = _object(meta, "release").get("costs")
    steps = [step for step in costs if _is_step(step)] if isinstance(costs, list) else []
    if len(steps) > 1:
        lines += ["", "What each step of the release cost in hits:", "", "| step | block hit rate |", "|---|---|"]
        lines += [f"| {_plain(step['step'])} | {step['block_hit_rate']:.4f} |" for step in steps]
    return "\n".join(lines)


def _audit(audit):
    lines = [audit.verdict, "", "| | check | level | finding |", "|---|---|---|---|"]
    return "\n".join(
        [*lines, *(f"| {f.number} | {f.name} | {f.level} | {_plain(f.sentence)} |" for f in audit.findings)]
    )


def _protection(audit):

    if audit.publishable:
        lines = ["Protected:", "", *(f"* {one}" for one in _protected(audit.profile)), ""]
    else:
        lines = ["Nothing is promised: the audit failed, or the trace declares no profile that coarsens it.", ""]
    return "\n".join([*lines, "Not protected:", "", *(f"* {one}" for one in unprotected(audit.profile))])


def _protected(profile):
    """What a trace of this profile does not show, once its audit has passed."""
    yield "the text of prompts and outputs, users, keys and names of the log: none is written"
    yield "block contents: ids are numbers by first appearance, and say nothing of what they stand for"
    if profile.k > 1:
        yield f"who else sent a text: a block that fewer than {profile.k} contributors share is split, one copy each"
    if profile.tail != "kept":
        yield "the last few tokens of a prompt: no tail block is shared"
    if profile.time_step_ms > 1:
        yield f"times finer than {profile.time_step_ms / 1000:g} s, and the calendar"


def _figures(trace: Trace) -> dict[str, Any]:
    return figures_of(trace) | {"block_size": trace.block_size, "tail": trace.tail}


def _object(meta, key) -> Mapping[str, Any]:
    return found if isinstance(found := meta.get(key), Mapping) else {}


def _public(described) -> str:
    """The name and digest of a tokenizer or template; a name that is a path stays out."""
    from .checks.marks import kinds

    name, digest = str(described.get("name") or ""), str(described.get("sha256") or "")
    named = "" if set(kinds(name)) - {"host name"} or name.count("/") > 1 else name
    return ", ".join([*([named] if named else []), *([f"SHA-256 {digest}"] if len(digest) == 64 else [])])


def _is_step(step) -> bool:
    return isinstance(step, Mapping) and "step" in step and isinstance(step.get("block_hit_rate"), (int, float))


def _number(figures, name) -> str:
    return f"{figures[name]:,}" if isinstance(figures.get(name), (int, float)) else "-"


def _code(value) -> str:
    return f"`{_plain(value)}`"


def _plain(value) -> str:
    """Text that stays one cell of a table."""
    return " ".join(str(value).split()).replace("|", "/")
