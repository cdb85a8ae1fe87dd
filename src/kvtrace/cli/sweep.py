"""`kvtrace sweep`: many simulations, one table."""

from __future__ import annotations

import sys

import click

from .output import console, print_json, print_tables


@click.command()
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="FILE", help="Table to write: .csv, .json, .jsonl or .parquet by name, .gz and .zst too; - is CSV on stdout.")
@click.option("--policy", "policies", default="lru", metavar="P,...", help="Eviction policies and upper bounds, as in simulate.")
@click.option("--capacity", default="auto", metavar="C,...", help="Capacities, as in simulate. auto: ten of each trace, from its longest request to its working set.")
@click.option("--engine", "engines", default="reference", metavar="E,...", help="Whose cache, as in simulate.")
@click.option("--mode", "modes", default="block", metavar="M,...", help="block, token, grow.")
@click.option("--schedule", "schedules", default="serial", metavar="S,...", help="serial, concurrency:N, open-loop:MS.")
@click.option("--block-size", "block_sizes", default="1x", metavar="B,...", help="Blocks made larger: 2x, or tokens, which are a multiple of the trace's own.")
@click.option("--seed", "seeds", default="0", metavar="S,...", help="Where a TRACE is a fitted model: a sample of it for each; 0:5 is 0,1,2,3,4.")
@click.option("--requests", type=click.IntRange(1), metavar="N", help="Requests of a sample.  [default: as many as the model was fitted on]")
@click.option("--capacity-counts", default="total", metavar="WHAT", help="total or idle. (reference)")
@click.option("--pool", default="flat", metavar="WHICH", help="flat or leaf-first. (reference)")
@click.option("--free-order", default="prepend", metavar="HOW", help="prepend or append. (vllm)")
@click.option("--watermark", default="off", metavar="HOW", help="on or off. (lmcache)")
@click.option("--warm-up", default="0", metavar="N", help="Count only what comes after so many requests (1000), share (10%) or time (10m).")
@click.option("--resume", is_flag=True, help="Go on with a sweep that was stopped: its cells are in FILE.cells.jsonl.")
@click.option("--runner", default="local", type=click.Choice(["local", "ray"]), help="local: threads. ray: tasks on a cluster whose machines see the TRACEs' files.")
@click.option("--ray-address", metavar="A", help="A Ray cluster: auto, or host:port.  [default: one that begins here]")
@click.option("--threads", type=click.IntRange(1), metavar="N", help="Cells at once; with Ray, tasks of up to eight cells.  [default: one a core; with Ray, two]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; docs/cache/sweep.md lists its keys.")
@click.option("--model-config", metavar="FILE", help="A model's config.json, for bytes of KV cache.")
@click.option("--kv-bytes-per-token", type=click.IntRange(1), metavar="N", help="Bytes of KV cache a token, in place of --model-config.")
@click.option("--trace-block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens a block of the TRACEs.  [default: their sidecars', else inferred]")
@click.option("--chain", is_flag=True, help="Re-chain ids of blocks that were hashed without their prefix.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but results and errors.")
def sweep(traces, output, resume, runner, ray_address, threads, as_json, quiet, **options):
    """Simulate every policy at every capacity, engine, block size and seed on every TRACE: one tidy table."""
    from .._base.errors import UsageError
    from ..cache.sweeps import sweep as run
    from ..report import sweep_tables as shown
    from ..report.progress import Requests

    if as_json and output == "-":
        raise UsageError("--json and -o - both go to stdout. Give one of them.")
    grid = _grid(traces, **options)
    sys.path.insert(0, "")  # policies of the user, in the folder where the command runs
    try:
        with Requests(console(), quiet) as bar:
            table = run(
                grid, output, resume=resume, runner=runner, threads=threads, ray_address=ray_address,
                on_total=bar.expect, on_progress=bar.update,
            )  # fmt: skip
    finally:
        sys.path.remove("")
    if as_json:
        print_json(table.to_dict())
    elif output is None or (output != "-" and len(table.rows) <= shown.MOST):
        print_tables(shown.tables(table))
    if not quiet:
        written = [] if output in (None, "-") else [f"wrote       {output}", f"cells       {len(table.rows):,}"]
        for line in written + shown.faults(table):
            console().print(line, highlight=False, markup=False)


def _grid(traces, *, policies, engines, modes, schedules, block_sizes, seeds, model_config, kv_bytes_per_token, **others):
    """What the options ask for."""
    from .._base.lists import names
    from ..cache.engines import DEFAULTS, non_default
    from ..cache.sweeps import Grid
    from ..serving.hardware.kv_bytes import chosen

    engine_options = non_default({name: others.pop(name) for name in DEFAULTS})
    lists = {"policies": policies, "engines": engines, "modes": modes, "schedules": schedules, "block_sizes": block_sizes}
    return Grid(
        tuple(traces), **{name: tuple(names(text)) for name, text in lists.items()}, seeds=_seeds(seeds), engine_options=engine_options,
        kv_bytes_per_token=chosen(model_config, kv_bytes_per_token), **others,
    )  # fmt: skip


def _seeds(text):
    """The seeds of a comma-separated list, spans as 0:5 among them."""
    from .._base.errors import UsageError
    from .._base.lists import names

    found = []
    for part in names(text):
        ends = part.split(":")
        if len(ends) > 2 or not all(end.isdecimal() and len(end) < 10 for end in ends) or int(ends[-1]) - int(ends[0]) > 10**6:
            raise UsageError(f"{part!r} is no seed. Try 0,1,2 or 0:3.")
        found += range(int(ends[0]), int(ends[1])) if len(ends) == 2 else [int(part)]
    if not found:
        raise UsageError(f"{text!r} names no seed. Try 0,1,2 or 0:3.")
    return tuple(dict.fromkeys(found))

