"""The data card: one page of Markdown beside a trace: its content, its making, and what it reveals."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from .._base.files import Content, NamedFile, require_distinct, require_name
from .._base.input_files import read_unfollowed
from .._base.output_files import Role, write_atomically
from ..formats import reading
from ..formats.dataset import MANIFEST, is_dataset
from ..formats.sidecar import sidecar_path
from ..formats.writing import card_path as card_path  # re-exported
from ..trace.columns import MEASURED
from ..trace.trace import Trace
from ..trace.trace_figures import figures as figures_of
from ..trace.trace_figures import output_words
from ..trace.unknown import TOO_LOW
from .allowed_values import ENGINES
from .contributors import meaning_of_k
from .profiles import counted_kind_of, protects_senders, unprotected

if TYPE_CHECKING:
    from .checks.finding import Audit

FIELDS = {
    "timestamp": ("ms", "arrival, counted from the first request"),
    "input_length": ("tokens", "the prompt, including the chat template"),
    "output_length": ("tokens", "the generated output"),
    "hash_ids": ("ids", "the prompt's blocks; equal ids mean equal prefixes, and ids reveal nothing else"),
    "output_hash_ids": ("ids", "the output's blocks, continuing the prompt's; optional"),
    "session_id": ("number", "conversation; optional"),
    "type, turn": ("word, number", "kind of request, and its turn in the conversation; optional"),
}
COUNTS = ("requests", "sessions", "tokens", "output_tokens", "blocks", "distinct_blocks")
LICENCE = "* Licence: TODO"
LICENCES = (  # what the audit accepts in place of TODO
    "CC0-1.0", "CC-BY-4.0", "CC-BY-SA-4.0", "CC-BY-NC-4.0", "CC-BY-NC-SA-4.0", "Apache-2.0", "MIT", "BSD-3-Clause",
    "ODC-By-1.0", "ODbL-1.0", "PDDL-1.0", "CDLA-Permissive-2.0",
)  # fmt: skip
RATES = ("block_hit_rate", "token_hit_rate", "request_hit_rate")


def card(audit: Audit, trace: Trace | Mapping[str, Any] | None = None, meta: Mapping[str, Any] | None = None) -> str:
    """The card's text in Markdown, with TODO for facts that only the publisher knows.

    Args:
        audit: the audit of the trace.
        trace: the trace, or its figures (requests, tokens, blocks, hits, ...). By default those of the sidecar.
        meta: the sidecar's values. No value of a row appears in the card.
    """
    meta, audit = meta or {}, audit.of_trace()
    figures = _figures(trace) if isinstance(trace, Trace) else {**meta, **_object(meta, "figures"), **(trace or {})}
    sections = [
        ("", _opening(figures)),
        ("Licence and citation", _to_fill_in()),
        ("Fields", _fields(meta, _shown(audit))),
        ("How it was made", _making(figures, meta)),
        (f"Release profile: {audit.profile.name}", _profile(audit, meta)),
        ("Figures", _figures_table(figures)),
        ("Audit", _audit(audit)),
        ("What is protected, and what is not", _protection(audit, counted_kind_of(meta.get("release")))),
        ("How to read it", READ_FOLDER if meta.get("format") == "dataset" else READ),
    ]
    title = "# TODO: title\n\n"
    return title + "\n\n".join(f"## {head}\n\n{text}" if head else text for head, text in sections) + "\n"


def write_card(audit: Audit, path: str | Path, card_path: str | Path, **read_options: Any) -> None:
    """Write the card of an audited file or data set, as `kvtrace audit --card` does.

    Args:
        audit: the audit of the file.
        path: the file; its sidecar, or the manifest of a data set, states how it was made.
        card_path: the Markdown file to write.
        read_options: as in `read`.

    Raises:
        UsageError: the card would overwrite the trace or its sidecar, or has the name of another kind of file.
    """
    require_name(card_path, Content.MARKDOWN, "a data card", option="--card")
    is_folder = is_dataset(path)
    sidecar = os.path.join(path, MANIFEST) if is_folder else sidecar_path(path)
    inputs = [NamedFile("the trace", path), NamedFile("the trace", sidecar, "sidecar")]
    require_distinct(inputs, [NamedFile("the card", card_path)])
    trace = None if is_folder else reading.read(path, extra="ignore", **read_options)  # a manifest has the figures
    meta: dict[str, Any] = {} if trace is None else trace.meta
    if os.path.exists(sidecar):  # it also has the version of kvtrace that wrote it
        meta = orjson.loads(read_unfollowed(sidecar))
    with write_atomically(card_path, Role.ASIDE) as stream:
        stream.write(card(audit, trace, meta).encode())


READ = """```python
import kvtrace

trace = kvtrace.read("TODO: file name")
print(trace, kvtrace.analysis.basics(trace).hits.block_hit_rate)
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
    return f"{LICENCE}\n* Cite as: TODO\n* Contact: TODO (a public page rather than a person's address)"


WAITS = (
    "row, words, ms",
    "what the request waits for: the start or the end of an earlier row, then a delay (think time, or a tool's)",
)
SERVICE = ("ms", "from the start of the request to its end")
AGENT = ("number", "agent of the session: 0 is the main one, 1, 2, ... are subagents; optional")
DOMAIN = ("number", "isolation domain: tenant, adapter, salt and model; equal ids are equal text in any domain")


def _fields(meta, shown):
    more = {"domains": {"domain": DOMAIN}, "waits": {"dependencies": WAITS, "agent": AGENT},
            "service": {"service_ms": SERVICE}}  # fmt: skip
    name, fields = meta.get("format") or "mooncake", dict(FIELDS)
    for kind, rows in more.items():
        fields |= rows if shown[kind] else {}
    fields |= {column: (MEASURED[column].unit, MEASURED[column].meaning) for column in shown["measured"]}
    lines = [
        f"One row for each request, in order of arrival ({_code(name)} format).",
        "",
        "| field | unit | meaning |",
        "|---|---|---|",
    ]
    return "\n".join([*lines, *(f"| `{field}` | {unit} | {meaning} |" for field, (unit, meaning) in fields.items())])


def _making(figures, meta):
    tokenizer, template, log = (_object(meta, key) for key in ("tokenizer", "chat_template", "log"))
    entries = [
        ("kvtrace", _object(meta, "kvtrace").get("version")),
        ("log", log.get("reader")), ("times", log.get("time")), ("sample", _sample(log)),
        ("tokenizer", _public(tokenizer)), ("chat template", _public(template)),
        ("prompts", _rendering(_object(meta, "rendering"))), ("prompt lengths", _usage(_object(meta, "usage"))),
        ("hash", meta.get("hash")), ("tokens per block", figures.get("block_size") or meta.get("block_size")),
        ("last, partial block", meta.get("tail") or figures.get("tail")),
        ("service times", _service(_object(meta, "service_times"))),
    ]  # fmt: skip
    return "\n".join(f"* {name}: {_quoted(value)}" for name, value in entries if value not in (None, "", {}))


def _sample(log) -> str | None:
    """What a log that is a sample by request means for the figures."""
    share = log.get("request_sample")
    return None if not isinstance(share, float) else TOO_LOW.format(share=f"{100 * share:.3g}%")


def _rendering(section) -> str | None:
    """How prompts became tokens, and what of the requests did not."""
    if not section:
        return None
    how, version = ENGINES.get(str(section.get("engine")), "by an unknown renderer"), section.get("version")
    left_out = [f"{name}{_counted(count, 'request')}" for name, count in _object(section, "not_rendered").items()]
    lost = [f"not rendered: {', '.join(left_out)}"] if left_out else []
    if "unsized_media" in section:
        lost.append(f"media of unknown size{_counted(section['unsized_media'], 'item')}")
    return "; ".join([f"{how} (version {version})", *lost])


def _counted(count, noun) -> str:
    """A count of two digits in brackets; nothing for 0, which a sample states in its place."""
    return f" (about {count:,} {noun}s)" if count else ""


def _usage(section) -> str | None:
    """How our counts of prompt tokens compare with those that the log states."""
    difference = section.get("difference")
    if not isinstance(difference, float):
        return None
    side = "more than" if difference > 0 else "fewer than"
    percent = f"{100 * abs(difference):.1f} % {side}" if difference else "as many tokens as"
    return f"{percent} the log states (of about {_number(section, 'requests')} requests)"


def _service(section) -> str | None:
    """Where the service times come from."""
    if not section:
        return None
    names = " on ".join(str(section[name]) for name in ("model", "gpu") if section.get(name))
    estimated = f"estimated by the {section.get('costs')} for a request alone" + (f" ({names})" if names else "")
    sources = ["measured by the log"] if section.get("measured") else []
    return ", others ".join([*sources, *([estimated] if section.get("estimated") else [])])


def _profile(audit, meta):
    release = _object(meta, "release")
    lines = ["| setting | value |", "|---|---|"]
    lines += [f"| `{name}` | {_code(_words(value))} |" for name, value in audit.profile.settings().items()]
    counted = release.get("k_counted")
    lines += [f"| contributors that k counted | {_quoted(counted)} |"] if counted else []
    lines += [f"| sampled | {'yes' if release.get('sampled') is True else 'no'} |"]
    if not audit.declared:
        lines = ["The trace declares no profile; the audit graded it against these settings.", "", *lines]
    return "\n".join(lines)


def _words(setting) -> Any:
    return ", ".join(setting) if isinstance(setting, list) else setting


def _figures_table(figures):
    rows = [(name.replace("_", " "), _number(figures, name)) for name in COUNTS if figures.get(name)]
    rows += [("output tokens", output_words(figures))] if figures.get("unknown_outputs") else []
    hits = figures.get("hits") if isinstance(figures.get("hits"), Mapping) else {}
    rows += [(f"{rate.replace('_', ' ')}, without eviction", f"{hits[rate]:.4f}") for rate in RATES if rate in hits]
    rows += [] if hits else [("hit rates", "unknown: the log does not record shared prefixes")]
    lines = ["| figure | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    return "\n".join(lines)


def _audit(audit):
    lines = [audit.verdict, "", "| check | level | finding |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {f.name} | {f.level} | {_plain(f.sentence)} |" for f in audit.findings)])


def _protection(audit, counted):
    k = audit.profile.k
    meaning = [meaning_of_k(k, counted), ""] if counted and k > 1 else []
    if audit.publishable:
        lines = ["Protected:", "", *(f"* {sentence}" for sentence in _protected(audit.profile, counted)), ""]
    else:
        lines = ["Nothing is protected: the audit failed, or the trace declares no profile that coarsens it.", ""]
    return "\n".join(
        [
            *meaning,
            *lines,
            "Not protected:",
            "",
            *(f"* {sentence}" for sentence in unprotected(audit.profile, counted, **_shown(audit))),
        ]
    )


def _shown(audit) -> dict[str, Any]:
    """What the audited rows state: their isolation domain, what they wait for, how long they took, measured columns."""
    figures = {name: value for finding in audit.findings for name, value in finding.figure.items()}
    return {
        "domains": "domains" in figures, "waits": bool(figures.get("delays")),
        "service": bool(figures.get("service_times")), "measured": figures.get("measured_columns", []),
    }  # fmt: skip


def _protected(profile, counted):
    """The facts that a trace of this profile hides, if its audit passed and k counted contributors of this kind."""
    yield "text of prompts and outputs, users, keys, and names in the log: a release writes none of them"
    yield "content of blocks: ids count by first appearance and do not depend on the content"
    if profile.resample:
        yield "single requests, sessions and times: all rows are new, and made of what the log has in common"
        yield (
            "other senders of a text: contributors share no blocks, but for prefixes that at least "
            f"{profile.k} drawn accounts have"
        )
    elif protects_senders(profile, counted):
        yield f"other senders of a text: blocks shared by fewer than {profile.k} {counted} are split, one copy each"
    if profile.tail != "kept":
        yield "last few tokens of a prompt: no tail block is shared"
    if profile.time_step_ms > 1:
        yield f"times, delays and service times finer than {profile.time_step_ms / 1000:g} s, and the date"


def _figures(trace: Trace) -> dict[str, Any]:
    return figures_of(trace) | {"block_size": trace.block_size, "tail": trace.tail}


def _object(meta, key) -> Mapping[str, Any]:
    return section if isinstance(section := meta.get(key), Mapping) else {}


def _public(described) -> str:
    """The name and digest of a tokenizer or template, without a name that is a path."""
    from .allowed_values import kinds

    name, digest = str(described.get("name") or ""), str(described.get("sha256") or "")
    named = "" if set(kinds(name)) - {"host name"} or name.count("/") > 1 else name
    return ", ".join([*([named] if named else []), *([f"SHA-256 {digest}"] if len(digest) == 64 else [])])


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
