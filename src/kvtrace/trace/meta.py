"""`Trace.meta`: the values of a sidecar file besides the size of the trace. Each section has one type and one maker.

The keys that describe the file itself (`block_size`, `requests`, `format`, ...) are in formats/sidecar.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NotRequired, TypedDict, cast


class LogSection(TypedDict, total=False):
    """`log`: how the raw log was read. Maker: ingest/preparation.py."""

    reader: str
    time: str
    arrivals: dict[str, Any]  # the arrival model of a log without times
    measured: list[str]  # the columns of MEASURED that the log gave the trace
    request_sample: float  # the share of the requests that the log is a sample of; hit rates of it are too low


class ReleaseSection(TypedDict):
    """`release`: the settings of the release profile. Maker: privacy/account.py."""

    settings: Mapping[str, Any]
    k_counted: NotRequired[str | None]  # the kind of contributors
    sampled: bool
    tenants_isolated: NotRequired[bool]


class Claims(TypedDict):
    """The sections that only an audited trace has."""

    profile: str  # the release profile that the trace was audited against
    release: ReleaseSection


class RenderingSection(TypedDict, total=False):
    """`rendering`: how the prompts of the log became tokens. Maker: ingest/.

    A trace without it is of version 0: rendered before 0.1, or not from a log with prompts.
    """

    engine: str  # whose rendering it is: "vllm", "sglang" or "raw"
    version: int  # of the renderer; block ids of other versions may differ for equal prompts
    not_rendered: dict[str, int]  # field that changes a prompt -> requests in which it was left out
    unsized_media: int  # images, sounds and videos whose number of tokens is unknown
    # both count the whole log, to two digits; 0 = not stated, because the release is a sample


class ServiceSection(TypedDict, total=False):
    """`service_times`: where the service times come from. Maker: privacy/session_times.py."""

    measured: bool  # by the log, for some or all requests
    estimated: bool  # for the others
    model: str  # that the estimates are for
    gpu: str
    gpus: int
    costs: str  # "calibrated", if they were fitted to a recording; else "roofline"


class ConvertedSection(TypedDict, total=False):
    """`converted`: the steps of a conversion. Maker: trace/conversion.py."""

    chained: bool
    folded_from: int
    speedup_ratio: float
    part: bool
    assumed_output: int  # tokens of each output whose length is unknown


class WekaSection(TypedDict, total=False):
    """`weka`: what the rows of Weka sessions do not hold. Maker: formats/weka_columns.py."""

    sessions: list[dict[str, Any]]  # file, fields, agents, number of requests, runs of ids
    start_ms: float  # subtracted from all times
    fields: list[str]  # of requests, in order
    json: list[str]  # those whose column holds JSON


class RecordingSection(TypedDict):
    """`recording`: what a recorder of live requests missed. Maker: capture/sealing.py."""

    sources: list[str]
    lost: int  # requests accepted, but not digested before a crash; to two digits
    dropped: int  # requests that the queue had no room for; to two digits


class UsageSection(TypedDict):
    """`usage`: our counts of prompt tokens beside those that the log states. Maker: ingest/usage.py."""

    requests: int  # that have a count, to two digits
    difference: float  # (ours - the log's) / the log's, to three decimals


class Meta(TypedDict, total=False):
    """All sections of `Trace.meta`. A handwritten sidecar may have others, which are kept."""

    log: LogSection
    tokenizer: dict[str, str] | None
    chat_template: dict[str, str] | None
    rendering: RenderingSection  # only if the log has prompts
    hash: str
    session_mode: str
    prefixes: str  # only if the log has lengths but no prompts: shared prefixes are unknown
    profile: str  # of Claims
    release: ReleaseSection  # of Claims
    counts: dict[str, int | str]  # the rows of the whole log, to two digits; `rounded` says so
    usage: UsageSection  # only if the log states counts of prompt tokens
    figures: Mapping[str, Any]  # of the whole trace
    service_times: ServiceSection  # only if the trace has service times
    converted: ConvertedSection
    synthetic: dict[str, Any]  # the model and the options of a synthetic trace
    recording: RecordingSection  # only if the trace is a window of live requests
    client: str  # the client that the file is for
    weka: WekaSection


PREFIXES_UNKNOWN = "unknown: the log has lengths only, so no block is shared"
Rendering = tuple[str, int]  # an engine and a version
UNRENDERED: Rendering = ("", 0)  # before 0.1, or not from a log with prompts
STALE = ("counts", "usage", "figures")  # they describe the whole trace, and would reveal its size beside a part of it
CLAIMS = ("profile", "release")  # only an audited trace has them


def merge(meta: Mapping[str, Any] | Meta | None, sections: Meta | Claims) -> dict[str, Any]:
    """The sections of a trace with others that replace them or come after them.

    >>> merge({"hash": "a", "profile": "exact"}, {"profile": "strict", "client": "vllm"})
    {'hash': 'a', 'profile': 'strict', 'client': 'vllm'}
    """
    return {**(meta or {}), **cast(dict[str, Any], sections)}


def without_stale(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The sections without those that describe the whole trace.

    >>> without_stale({"hash": "a", "counts": {"rows": 3}})
    {'hash': 'a'}
    """
    return {name: value for name, value in meta.items() if name not in STALE}


def without_claims(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The sections without the claims that only an audited trace has.

    >>> without_claims({"hash": "a", "profile": "exact"})
    {'hash': 'a'}
    """
    return {name: value for name, value in meta.items() if name not in CLAIMS}


def without_rendering_counts(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The sections for a sample: what was not rendered is named, but not counted.

    >>> without_rendering_counts({"rendering": {"engine": "vllm", "not_rendered": {"tools": 1200}}})
    {'rendering': {'engine': 'vllm', 'not_rendered': {'tools': 0}}}
    """
    if "rendering" not in meta:
        return dict(meta)
    section = dict(meta["rendering"])
    if "not_rendered" in section:
        section["not_rendered"] = dict.fromkeys(section["not_rendered"], 0)
    if "unsized_media" in section:
        section["unsized_media"] = 0
    return {**meta, "rendering": section}


def with_unknown_prefixes(
    meta: Mapping[str, Any] | Meta | None, sources: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """The sections for a trace made of others: shared prefixes are unknown if they are in any of them.

    >>> with_unknown_prefixes({"hash": "a"}, [{}, {"prefixes": PREFIXES_UNKNOWN}])["prefixes"]
    'unknown: the log has lengths only, so no block is shared'
    """
    is_known = all(shares_prefixes(source) for source in sources)
    return merge(meta, {} if is_known else {"prefixes": PREFIXES_UNKNOWN})


def rendering_of(meta: Mapping[str, Any]) -> Rendering:
    """The engine and the version of a trace's rendering; version 0 without the section.

    >>> rendering_of({"rendering": {"engine": "vllm", "version": 1}}), rendering_of({})
    (('vllm', 1), ('', 0))
    """
    section = meta.get("rendering") or {}
    return str(section.get("engine") or ""), int(section.get("version") or 0)


def rendering_words(meta: Mapping[str, Any]) -> str:
    """The rendering of a trace in words.

    >>> rendering_words({"rendering": {"engine": "vllm", "version": 1}}), rendering_words({})
    ('vllm, version 1', 'version 0: rendered before 0.1')
    """
    engine, version = rendering_of(meta)
    return f"{engine}, version {version}" if version else "version 0: rendered before 0.1"


def shares_prefixes(meta: Mapping[str, Any] | Meta) -> bool:
    """Whether the trace knows which prompts share prefixes: logs of lengths do not.

    >>> shares_prefixes({"prefixes": "unknown: the log has lengths only, so no block is shared"})
    False
    """
    return "prefixes" not in meta
