"""`kvtrace synthesize`: a trace of any size that behaves as another."""

from __future__ import annotations

import click

from .output import console


@click.command()
@click.argument("trace", metavar="TRACE")
@click.option("-n", "--requests", "n", type=int, metavar="N", help="Requests to synthesise.  [default: as many as TRACE has]")
@click.option("-o", "--output", metavar="FILE", help="File to write; - is stdout. .gz, .zst, .parquet by name.")
@click.option("--method", default="attach", type=click.Choice(["attach", "tree"]), help="attach keeps reuse over time; tree is datagen's algorithm, normalised.")
@click.option("--scale", default="rate", type=click.Choice(["rate", "duration"]), help="What grows with N.")
@click.option("--seed", default=0, type=click.IntRange(0), metavar="N", help="The same seed gives the same bytes.")
@click.option("--speedup-ratio", default=1.0, metavar="X", help="Divide times by this.")
@click.option("--prefix-len-multiplier", default=1.0, metavar="X", help="Stretch what prompts share.")
@click.option("--prompt-len-multiplier", default=1.0, metavar="X", help="Stretch what is a prompt's own.")
@click.option("--osl-multiplier", default=1.0, metavar="X", help="Stretch outputs.")
@click.option("--prefix-root-multiplier", default=1, metavar="N", help="Disjoint copies of what prompts share; each request takes one.")
@click.option("--min-isl", type=int, metavar="TOKENS", help="Draw shorter prompts again.")
@click.option("--max-isl", type=int, metavar="TOKENS", help="Draw longer prompts again.")
@click.option("--min-osl", type=int, metavar="TOKENS", help="Raise shorter outputs to this.")
@click.option("--max-osl", type=int, metavar="TOKENS", help="Cut longer outputs to this.")
@click.option("--max-rejections", default=10_000, metavar="N", help="With tree: give up after so many prompts in a row that were drawn again.")
@click.option("--step-rates", metavar="RATE@TIME,...", help="Arrivals by a profile of requests a second, as in 5@10m,20@2m.")
@click.option("--extra", is_flag=True, help="Also write sessions and extra columns where the format has no place for them.")
@click.option("--save-model", metavar="FILE", help="Also write the fitted model, as JSON: it can be shared where a trace cannot.")
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Streams that are drawn at once.  [default: one a core]")
@click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens a block of TRACE.  [default: the sidecar's, else inferred]")
@click.option("--chain", is_flag=True, help="Re-chain ids of blocks that were hashed without their prefix.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")
def synthesize(trace, n, output, method, scale, seed, save_model, extra, workers, block_size, chain, quiet, **knobs):
    """Make a trace of any size that behaves as TRACE, or as the model that was saved of one; TRACE - is stdin."""
    from .._base.errors import UsageError
    from ..synthesis.knobs import Knobs
    from ..synthesis.sampling import write_sample

    if output is None and save_model is None:
        raise UsageError("there is nothing to write. Give -o FILE, --save-model FILE, or both.")
    if save_model is not None and method != "attach":
        raise UsageError("only models of the method attach are saved. Leave --save-model or --method out.")
    turned = Knobs(**knobs)
    model = _model(trace, method, block_size, chain)
    written = [model.save(save_model)] if save_model else []
    if output is not None:
        n = model.rows if n is None else n
        written += write_sample(model, n, output, seed=seed, scale=scale, knobs=turned, workers=workers, extra=extra)
    if not quiet:
        console().print(f"wrote       {' and '.join(map(str, written))}", highlight=False, markup=False)


def _model(path, method, block_size, chain):
    """The model in a file, or one fitted to the trace in it."""
    from .._base.errors import UsageError
    from ..formats import reading
    from ..synthesis.fitting import fit
    from ..synthesis.model import Model
    from ..synthesis.tree import fit_tree

    if Model.is_model(path):
        if method != "attach" or chain or block_size:
            raise UsageError(f"{path} is a saved model, of the method attach. Leave --method, --chain and --block-size out.")
        return Model.load(path)
    read = reading.read(path, block_size=block_size)
    read = read.chained() if chain else read
    return (fit if method == "attach" else fit_tree)(read)
