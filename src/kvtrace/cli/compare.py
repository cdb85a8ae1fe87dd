"""`kvtrace compare`: the fidelity of one trace to another."""

from __future__ import annotations

import click

from .help import Command
from .options import ASSUME_OUTPUT, CHAIN, FIGURE, assumed, figure_writer, json_option, remarks_of, require_one
from .output import Outcome, console, print_notes, print_result, print_tables


@click.command("compare", cls=Command, examples=(
    "kvtrace compare trace.jsonl synthetic.jsonl",
    "kvtrace compare trace.jsonl synthetic.jsonl --csv",
))
@click.argument("a", metavar="TRACE")
@click.argument("b", metavar="TRACE2")
@json_option("analysis/compare.md")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a header and one line for each figure.")
@FIGURE
@click.option(
    "--block-size",
    type=click.IntRange(1),
    metavar="TOKENS",
    help="Tokens per block, in both traces.  [default: from each sidecar, else inferred]",
)
@ASSUME_OUTPUT
@CHAIN
def compare_command(a, b, as_json, as_csv, png, svg, block_size, assume_output, chain):
    """Score how similar two traces are.

    Each figure has the values of both traces and a score from 0 to 1; the fidelity is the mean of the scores.
    """
    from .._base.errors import UsageError
    from .._base.files import base_names
    from .._base.tables import printable
    from ..analysis.comparison import compare_prepared, comparison_csv
    from ..formats import reading
    from ..report.plots import hit_rates
    from ..report.plots.plot import Study
    from ..report.progress import COMPARE, Work
    from ..trace.domains import in_domains

    require_one(as_json, as_csv)
    write_figure = figure_writer(png, svg)
    if a == b == "-":
        raise UsageError("Both traces are stdin. Use a file for one of them.")
    name, other = base_names(a, b)
    with Work(console(), "compare", COMPARE, files=2) as work:
        work.step("read")
        traces = [assumed(reading.read(path, block_size=block_size, extra="ignore"), assume_output) for path in (a, b)]
        work.requests = sum(map(len, traces))
        work.step("compare")
        first, second = (in_domains(trace.chained() if chain else trace) for trace in traces)
        studies = Study(first, printable(name)), Study(second, printable(other))
        result = compare_prepared(*map(hit_rates.prepared, studies), (name, other))
    remarks = {
        f"{name_key}_{side}": f"{printable(file)}: {sentence}"
        for side, file, trace in (("a", name, first), ("b", other, second))
        for name_key, sentence in remarks_of(trace, "prefixes", "outputs", "times").items()
    }
    if not print_result(result.to_dict(), remarks, as_json=as_json, as_csv=comparison_csv(result) if as_csv else None):
        print_tables(result.tables())
        print_notes([*result.notes, *remarks.values()])
    if png or svg:
        write_figure(hit_rates.compared_plot(*studies))
    return Outcome(result)
