"""`kvtrace plan`: how much memory, how many instances, and what it saves."""

from __future__ import annotations

import click

from ..serving.routers import PLANNED, check_router
from .output import console, print_json, print_tables


@click.command()
@click.argument("trace", metavar="TRACE")
@click.option("--model-config", required=True, metavar="FILE", help="The model's config.json, as Hugging Face repositories have it.")
@click.option("--gpu", "gpu_name", default="h100", metavar="G", help="h100, h200, a100, or a JSON file; docs/serving/serving-model.md lists its keys.")
@click.option("--gpus", default=1, type=click.IntRange(1), metavar="N", help="GPUs of an instance, which work as one.")
@click.option("--ttft", default="2s", metavar="TIME", help="What the time to first token may be, at most.")
@click.option("--quantile", default=0.9, type=click.FloatRange(0.01, 0.999), metavar="Q", help="For this share of the requests.")
@click.option("--router", "routers", default=",".join(PLANNED), metavar="R,...", help="Routers to try; docs/serving/instances.md says what each does.")
@click.option("--tier", "tiers", multiple=True, metavar="NAME=SIZE@RATE", help="A tier of an instance below its GPUs, as in dram=512GiB@25GB; several, the fastest first.")
@click.option("--write-through", is_flag=True, help="Tiers hold what is above them, too.  [default: what is evicted from there]")
@click.option("--input-price", default=3.0, type=click.FloatRange(0), metavar="USD", help="A provider's price of a million input tokens.")
@click.option("--output-price", default=15.0, type=click.FloatRange(0), metavar="USD", help="... of a million output tokens.")
@click.option("--step-tokens", default=8192, type=click.IntRange(1), metavar="N", help="Tokens that a step of an instance takes, at most.")
@click.option("--max-requests", default=256, type=click.IntRange(1), metavar="N", help="Requests that an instance has at once, at most.")
@click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens a block.  [default: the sidecar's, else inferred]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; docs/serving/plan.md lists its keys.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but results and errors.")
def plan(trace, model_config, gpu_name, gpus, ttft, quantile, routers, tiers, write_through, input_price, output_price, step_tokens, max_requests, block_size, as_json, quiet):
    """Say how much memory buys how many hits, how many instances meet a target, and what it costs and saves.

    Every figure stands with what it assumes, and how it changes when that is a fifth lower or higher. TRACE - is stdin.
    """
    from .._base.lists import names
    from .._base.units import milliseconds
    from ..formats import trace_files as formats
    from ..report import planning as shown
    from ..serving.hardware import Prices, Roofline, gpu, model_shape
    from ..serving.planning import PlanTarget, parse_tier
    from ..serving.planning import plan as planned
    from ..serving.simulation import BatchLimits

    roofline = Roofline(model_shape(model_config), gpu(gpu_name), gpus=gpus)
    target = PlanTarget(
        ttft_s=milliseconds(ttft) / 1000, quantile=quantile, tiers=tuple(map(parse_tier, tiers)),
        write_through=write_through, prices=Prices(input_price / 1e6, output_price / 1e6),
        limits=BatchLimits(step_tokens, max_requests), routers=names(routers),
    )  # fmt: skip
    for router in target.routers:
        check_router(router)
    read = formats.read(trace, block_size=block_size)
    screen = console()
    tell = None if quiet else lambda part: screen.print(f"[dim]{shown.DOING[part]} ...[/dim]", highlight=False)
    found = planned(read, roofline, target, on_part=tell)
    if as_json:
        print_json(found.to_dict())
    else:
        print_tables(shown.tables(found))
