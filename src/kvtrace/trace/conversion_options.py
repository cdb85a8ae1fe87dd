"""How `convert` changes a trace: what it selects, and what it does to the rest."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from .._base.options import option

SELECTION, CHANGES = "Selection", "Changes"  # groups of --help


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """The steps of a conversion, in their order, each with its setting; the defaults change nothing."""

    chain: bool = option(
        False, "Re-chain the ids of a trace whose blocks were hashed without their prefix.", group="Input"
    )
    start_ms: float = option(
        0.0, "Drop requests that arrive before TIME, such as 90s, 10m or 1.5h.  [default: the beginning]",
        name="start", metavar="TIME", group=SELECTION,
    )  # fmt: skip
    stop_ms: float = option(
        inf, "Drop requests that arrive at TIME or later.  [default: the end]", name="stop", metavar="TIME",
        group=SELECTION,
    )  # fmt: skip
    session_share: float = option(
        1.0, "Keep this share of the sessions, each whole.", name="sample-sessions", metavar="SHARE", group=SELECTION
    )
    row_share: float = option(1.0, "Keep this share of the requests.", name="sample", metavar="SHARE", group=SELECTION)
    seed: int = option(0, "Seed of the samples.", metavar="N", minimum=0, group=SELECTION)
    limit: int | None = option(
        None, "Keep the first N requests.  [default: all]", metavar="N", minimum=1, group=SELECTION
    )
    assume_output: int | None = option(
        None, "Tokens of each output whose length is unknown, for clients that need one.  [default: unknown]",
        metavar="TOKENS", minimum=0, group="Input",
    )  # fmt: skip
    factor: int = option(1, "Merge FACTOR blocks into one.", name="fold", metavar="FACTOR", group=CHANGES)
    ratio: float = option(1.0, "Divide times by RATIO.", name="speedup-ratio", metavar="RATIO", group=CHANGES)
