"""canonical: the trace is, byte for byte, what kvtrace writes of its rows. Anything else may hide in other bytes."""

from __future__ import annotations

import numpy as np

from ...formats.rewriting import Difference, differences
from ...trace.normalise import by_first_appearance
from ..agents import agents_in_order
from .evidence import Evidence
from .finding import Finding, failed, passed

REMEDY = "`kvtrace release` or `kvtrace convert` writes the trace again, without the other bytes."
OTHER_VERSION = "Audit it with that version of pyarrow, or write it again with `kvtrace release`."


def check(evidence: Evidence) -> Finding:
    """Write the rows that were read again, and compare the bytes; look at the numbers of sessions, too."""
    found = differences(evidence.source, evidence.kept_ids())
    is_parquet = evidence.read_result.format == "parquet"  # other readers number these columns themselves
    renamed, renamed_domains = (
        is_parquet and values is not None and not np.array_equal(by_first_appearance(values), values)
        for values in (evidence.columns.session, evidence.columns.domain)
    )
    figure = {"differs": [one.value for one in found], "sessions_in_order": not renamed}
    if evidence.columns.domain is not None:
        figure["domains_in_order"] = not renamed_domains
    renamed_agents = not agents_in_order(evidence.columns)
    if "agent" in evidence.columns.extra:
        figure["agents_in_order"] = not renamed_agents
    if found:
        sentence = (
            f"the file differs from the one that kvtrace writes for these requests ({_listed(found)}), so text can "
            "be hidden in it."
        )
        return failed(figure, sentence, OTHER_VERSION if found == [Difference.LIBRARY] else REMEDY)
    if renamed_domains:
        sentence = "domains do not count from 0 in the order of their first requests: their numbers can hide text."
        return failed(figure, sentence, REMEDY)
    if renamed_agents:
        sentence = (
            "agents do not count from 1 in each session, in the order of their first requests: they can hide text."
        )
        return failed(figure, sentence, REMEDY)
    if renamed:
        sentence = "sessions do not count from 0 in the order of their first requests: their numbers can hide text."
        return failed(figure, sentence, REMEDY)
    return passed(figure, "the file is byte for byte what kvtrace writes for these requests.")


def _listed(found: list[Difference]) -> str:
    return " and ".join(difference.label for difference in found)
