"""`kvtrace report`: an HTML page of plots and tables."""

from __future__ import annotations

import os

import click

from .output import console


@click.command("report")
@click.argument("trace", metavar="TRACE")
@click.argument("other", metavar="[TRACE2]", required=False)
@click.option("-o", "--output", required=True, metavar="FILE", help="HTML file to write; - is stdout.")
@click.option("--png", metavar="DIR", help="Also write the plots as PNG files into this folder, for a paper.")
@click.option("--title", metavar="TEXT", help="Title of the page.  [default: the names of the traces]")
@click.option("--model-config", metavar="FILE", help="config.json of the model, to compute bytes of KV cache.")
@click.option("--gpu", "gpu_name", metavar="G", help="With --model-config: add a capacity plan for h100, h200, a100, or a JSON file.")
@click.option("--gpus", default=1, type=click.IntRange(1), metavar="N", help="With --gpu: GPUs per instance.")
@click.option("--ttft", default="2s", metavar="TIME", help="With --gpu: the largest time to first token for 90 % of the requests.")
@click.option("--kv-bytes-per-token", type=click.IntRange(1), metavar="N", help="Bytes of KV cache per token, in place of --model-config.")
@click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens per block.  [default: from the sidecar, else inferred]")
@click.option("--chain", is_flag=True, help="Re-chain block ids that were hashed without their prefix.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
def report_command(trace, other, output, png, title, model_config, kv_bytes_per_token, block_size, chain, gpu_name, gpus, ttft, quiet):
    """Write an HTML page of plots and tables, which needs no network. With TRACE2, compare the two traces."""
    from .._base.files import base_names
    from .._base.output_files import write_atomically
    from .._base.tables import printable
    from .._base.units import milliseconds
    from ..formats import reading, writing
    from ..report import html_page as page
    from ..report import interactive, paper
    from ..serving.hardware import roofline_of
    from ..serving.hardware.kv_bytes import chosen
    from ..serving.planning import PlanTarget, plan

    interactive.script()  # fails early if plotly is not installed
    writing.check_output(output)
    paths = [path for path in (trace, other) if path is not None]
    _require_new_file(output, paths)
    roofline = roofline_of(model_config, gpu_name, gpus)
    kv_bytes, studies = chosen(model_config, kv_bytes_per_token), []
    for path, name in zip(paths, base_names(*paths), strict=True):
        loaded = reading.read(path, block_size=block_size)
        studies.append(page.Study(loaded.chained() if chain else loaded, printable(name), kv_bytes))
    plots = page.draw(*studies)
    result = plan(studies[0].trace, roofline, PlanTarget(ttft_s=milliseconds(ttft) / 1000)) if roofline else None
    html = page.render(studies, plots, title, result)
    figures = paper.write_figures(plots, png) if png else []
    with write_atomically(output) as stream:
        stream.write(html.encode())
    if not quiet:
        for name in (*([] if output == "-" else [output]), *figures):
            console().print(f"wrote       {name}", highlight=False, markup=False)


def _require_new_file(output, inputs):
    """UsageError if the output is one of the inputs."""
    from .._base.errors import UsageError

    if output != "-" and os.path.realpath(output) in {os.path.realpath(path) for path in inputs if path != "-"}:
        raise UsageError(f"{output}: is an input file and would be overwritten. Choose another output.")
