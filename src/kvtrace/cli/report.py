"""`kvtrace report`: a trace on one page."""

from __future__ import annotations

import os

import click

from .output import console


@click.command()
@click.argument("trace", metavar="TRACE")
@click.argument("other", metavar="[TRACE2]", required=False)
@click.option("-o", "--output", required=True, metavar="FILE", help="HTML file to write; - is stdout.")
@click.option("--png", metavar="DIR", help="Also write the plots as figures for a paper into this folder.")
@click.option("--title", metavar="TEXT", help="What the page is called.  [default: the names of the traces]")
@click.option("--model-config", metavar="FILE", help="A model's config.json, for bytes of KV cache.")
@click.option("--gpu", "gpu_name", metavar="G", help="With --model-config: a plan of instances too, on h100, h200, a100 or a JSON file's.")
@click.option("--gpus", default=1, type=click.IntRange(1), metavar="N", help="With --gpu: GPUs of an instance.")
@click.option("--ttft", default="2s", metavar="TIME", help="With --gpu: what the time to first token may be for 90 %.")
@click.option("--kv-bytes-per-token", type=click.IntRange(1), metavar="N", help="Bytes of KV cache a token, in place of --model-config.")
@click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens a block.  [default: the sidecar's, else inferred]")
@click.option("--chain", is_flag=True, help="Re-chain ids of blocks that were hashed without their prefix.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")
def report(trace, other, output, png, title, model_config, kv_bytes_per_token, block_size, chain, gpu_name, gpus, ttft, quiet):
    """Show a trace on one page of plots and tables that needs no network; with TRACE2, how the two differ."""
    from .._base.files import name_of, write_atomically
    from .._base.tables import printable
    from .._base.units import milliseconds
    from ..formats import trace_files as formats
    from ..report import html_page as page
    from ..report import interactive, paper
    from ..serving.hardware import roofline_of
    from ..serving.hardware.kv_bytes import chosen
    from ..serving.planning import PlanTarget, plan

    interactive.script()  # before any work: it says what is not installed
    formats.check_output(output)
    paths = [path for path in (trace, other) if path is not None]
    _require_unread(output, paths)
    roofline = roofline_of(model_config, gpu_name, gpus)
    kv_bytes, studies = chosen(model_config, kv_bytes_per_token), []
    names = [os.path.basename(name_of(path)) for path in paths]
    names = names if len(set(names)) == len(paths) else paths  # of one name in two folders
    for path, name in zip(paths, names, strict=True):
        read = formats.read(path, block_size=block_size)
        studies.append(page.Study(read.chained() if chain else read, printable(name), kv_bytes))
    plots = page.draw(*studies)
    found = plan(studies[0].trace, roofline, PlanTarget(ttft_s=milliseconds(ttft) / 1000)) if roofline else None
    html = page.render(studies, plots, title, found)
    figures = paper.write_figures(plots, png) if png else []
    with write_atomically(output) as stream:
        stream.write(html.encode())
    if not quiet:
        for name in (*([] if output == "-" else [output]), *figures):
            console().print(f"wrote       {name}", highlight=False, markup=False)


def _require_unread(output, inputs):
    """What is written is none of the files that are read."""
    from .._base.errors import UsageError

    if output != "-" and os.path.realpath(output) in {os.path.realpath(path) for path in inputs if path != "-"}:
        raise UsageError(f"{output}: is the trace itself, and would be written over. Name another file.")
