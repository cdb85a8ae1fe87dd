"""What a trace does not know: shared prefixes, output lengths, times, sessions. A result that needs it says "unknown".

A result of a trace is computed from what the trace holds. Where the log did not hold it, the figure is "unknown",
never 0: `require_known` stops a function whose whole result needs it, and `unknown` names it for a result that
states the rest. Each row of NEEDS says what is missing and what makes it known. `remarks` are the sentences beside a
result: what is unknown, what was assumed in its place, and that a sample by request makes every hit rate too low.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._base.errors import UnknownError
from .meta import shares_prefixes

if TYPE_CHECKING:
    from .columns import Columns

UNKNOWN_LENGTH = -1  # the output length of a request whose log has no answer
NEGATIVE = -2  # the output length of a row whose file says -1, where unknown is null: a fault
PREFIXES, OUTPUTS, TIMES, SESSIONS = "prefixes", "outputs", "times", "sessions"


class Need(NamedTuple):
    """Something that a result needs, and a log may not hold."""

    missing: str  # what the trace lacks, as a sentence
    remedy: str  # what makes it known


NEEDS: dict[str, Need] = {
    PREFIXES: Need(
        "the log has lengths only, so it is unknown which prompts share a prefix",
        "Log the prompts, or hashes of their blocks. For prompts under another name: --map input=FIELD.",
    ),
    OUTPUTS: Need(
        "output lengths are unknown for {count} of {rows} requests", "Log the answers or their token counts."
    ),
    TIMES: Need("the log has no arrival times, so those of the trace are of a model", "Log the time of each request."),
    SESSIONS: Need("the trace has no sessions", "Name their field in the log: --map session=FIELD."),
}
ASSUME = {OUTPUTS: " Or assume a length: --assume-output 128, assume_outputs(trace, 128)."}


def known_outputs(columns: Columns) -> np.ndarray:
    """Request -> whether the length of its output is known.

    >>> from kvtrace.trace.columns import Columns
    >>> known_outputs(Columns([0, 1], [2, 2], [-1, 5], [], [0, 0, 0]))
    array([False,  True])
    """
    return columns.output_length != UNKNOWN_LENGTH


def unknown(columns: Columns, meta: Mapping[str, Any]) -> dict[str, str]:
    """What a trace does not know, each with a sentence that says what is missing and what makes it known.

    >>> from kvtrace.trace.building import toy
    >>> trace = toy("0", "1")
    >>> unknown(trace, trace.meta)
    {'sessions': 'the trace has no sessions. Name their field in the log: --map session=FIELD.'}
    """
    missing = {}
    if not shares_prefixes(meta):
        missing[PREFIXES] = sentence(PREFIXES)
    if count := int(np.count_nonzero(~known_outputs(columns))):
        missing[OUTPUTS] = sentence(OUTPUTS, count=f"{count:,}", rows=f"{len(columns):,}")
    if "arrivals" in (meta.get("log") or {}):
        missing[TIMES] = sentence(TIMES)
    if columns.session is None:
        missing[SESSIONS] = sentence(SESSIONS)
    return missing


def require_known(columns: Columns, meta: Mapping[str, Any], result: str, *needs: str) -> None:
    """UnknownError unless a trace holds what a result needs.

    Args:
        columns: The trace.
        meta: The values of its sidecar.
        result: The name of the result, as in "the hit curve".
        needs: Keys of NEEDS.

    >>> from kvtrace.trace.building import toy
    >>> require_known(toy("0"), {"prefixes": "unknown"}, "the hit curve", PREFIXES)
    Traceback (most recent call last):
    kvtrace._base.errors.UnknownError: the hit curve is unknown: the log has lengths only, so it is unknown which \
prompts share a prefix. Log the prompts, or hashes of their blocks. For prompts under another name: --map input=FIELD.
    """
    missing = unknown(columns, meta)
    for need in needs:
        if need in missing:
            raise UnknownError(f"{result} is unknown: {missing[need]}{ASSUME.get(need, '')}")


def knows(columns: Columns, meta: Mapping[str, Any], *needs: str) -> bool:
    """Whether a trace holds all of these.

    >>> from kvtrace.trace.building import toy
    >>> knows(toy("0"), {}, PREFIXES, OUTPUTS), knows(toy("0"), {}, SESSIONS)
    (True, False)
    """
    return not unknown(columns, meta).keys() & set(needs)


def remarks(columns: Columns, meta: Mapping[str, Any], *needs: str) -> dict[str, str]:
    """The sentences beside a result: what of these needs is unknown or assumed, and whether hit rates are too low.

    Args:
        columns: The trace.
        meta: The values of its sidecar.
        needs: What the result uses, of NEEDS; with PREFIXES it has hit rates.

    >>> from kvtrace.trace.building import toy
    >>> remarks(toy("0"), {"log": {"request_sample": 0.01}}, PREFIXES)["request_sample"]
    'The log is a sample by request (1%), so every hit rate is too low: most requests that share a prefix are not in \
it. Sample whole sessions instead: --sample-sessions 1% of the whole log keeps the prefixes within them.'
    """
    missing = unknown(columns, meta)
    sentences = {need: f"{missing[need][:1].upper()}{missing[need][1:]}" for need in needs if need in missing}
    users = {"assumed_output": OUTPUTS, "request_sample": PREFIXES}
    return sentences | {name: text for name, text in stated(meta).items() if users[name] in needs}


def stated(meta: Mapping[str, Any]) -> dict[str, str]:
    """What the sidecar states of every figure: that output lengths are assumed, that hit rates are too low.

    >>> stated({"converted": {"assumed_output": 128}})
    {'assumed_output': 'Unknown output lengths are assumed to be 128 tokens (--assume-output).'}
    """
    sentences = {}
    if (tokens := (meta.get("converted") or {}).get("assumed_output")) is not None:
        sentences["assumed_output"] = f"Unknown output lengths are assumed to be {tokens:,} tokens (--assume-output)."
    if (share := (meta.get("log") or {}).get("request_sample")) is not None:
        sentences["request_sample"] = TOO_LOW.format(share=f"{100 * share:.3g}%")
    return sentences


TOO_LOW = (
    "The log is a sample by request ({share}), so every hit rate is too low: most requests that share a prefix are "
    "not in it. Sample whole sessions instead: --sample-sessions {share} of the whole log keeps the prefixes within "
    "them."
)


def require_outputs(columns: Columns, client: str) -> None:
    """UnknownError unless all output lengths are known; it names the option that assumes one.

    Args:
        columns: The trace.
        client: What needs them: a client, or an option.

    >>> from kvtrace.trace.columns import Columns
    >>> require_outputs(Columns([0, 1], [2, 2], [-1, 5], [], [0, 0, 0]), "vllm")
    Traceback (most recent call last):
    kvtrace._base.errors.UnknownError: vllm needs the length of each output: output lengths are unknown for 1 of 2 \
requests. Log the answers or their token counts. Or assume a length: kvtrace convert --assume-output TOKENS.
    """
    if missing := unknown(columns, {}).get(OUTPUTS):
        raise UnknownError(
            f"{client} needs the length of each output: {missing} Or assume a length: kvtrace convert "
            "--assume-output TOKENS."
        )


def sentence(need: str, **counts: str) -> str:
    """What is missing, and what makes it known.

    >>> sentence(SESSIONS)
    'the trace has no sessions. Name their field in the log: --map session=FIELD.'
    """
    row = NEEDS[need]
    return f"{row.missing.format(**counts)}. {row.remedy}"
