"""The experiments of Lin's report, re-run: `python -m experiments`, or all of them with `make experiments`."""

from __future__ import annotations

import click

from kvtrace.cli import CONTEXT, main
from kvtrace.cli.output import console, print_json, print_tables


@click.group(context_settings=CONTEXT)
def experiment():
    """The experiments of Lin's report: hit rate, throughput with a real engine, eviction, latency."""


def _options(*, of_model: bool = False, **defaults):
    """The options that all experiments share, with this experiment's defaults; `of_model` adds those of the model."""
    rows = [
        click.option(
            "--requests", default=defaults["requests"], type=click.IntRange(1), metavar="N", help="Requests a run."
        ),
        click.option(
            "--output-length",
            default=defaults["output_length"],
            metavar="A:B",
            help="Output tokens: each length from A to B is equally likely.",
        ),
        click.option(
            "--block-size",
            default=defaults["block_size"],
            type=click.IntRange(1),
            metavar="TOKENS",
            help="Tokens a block.",
        ),
        click.option(
            "--idle",
            default=4096,
            type=click.IntRange(0),
            metavar="K",
            help="Idle blocks that the cache keeps: the report's K.",
        ),
        click.option(
            "--batch", default=16, type=click.IntRange(1), metavar="N", help="Active requests, one token each a step."
        ),
        click.option("--policy", default="lru", metavar="P", help="Eviction policy."),
        click.option(
            "--hashing",
            default="hierarchical",
            type=click.Choice(["hierarchical", "direct"]),
            help="hash(previous hash, own tokens) or hash(prefix, own tokens).",
        ),
        click.option("--seed", default=0, type=click.IntRange(0), metavar="N", help="The first seed."),
        click.option(
            "--json", "as_json", is_flag=True, help="Print one JSON object; experiments/README.md lists its keys."
        ),
        click.option("--figure", metavar="FILE", help="Also draw it: .png, .svg or .pdf."),
        click.option("-q", "--quiet", is_flag=True, help="Print only results and errors."),
    ]
    if of_model:
        rows += [
            click.option(
                "--repeats",
                default=5,
                type=click.IntRange(1),
                metavar="N",
                help="Pairs of runs, with and without caching.",
            ),
            click.option("--layers", default=4, type=click.IntRange(1), metavar="N", help="Layers of the transformer."),
            click.option("--heads", default=4, type=click.IntRange(1), metavar="N", help="Attention heads."),
            click.option("--head-dim", default=32, type=click.IntRange(2), metavar="N", help="Width of a head."),
            click.option("--threads", default=1, type=click.IntRange(1), metavar="N", help="PyTorch's threads."),
            click.option("--device", metavar="NAME", help="PyTorch device.  [default: a GPU if there is one, else cpu]"),
        ]
    else:
        rows.append(
            click.option(
                "--seeds",
                default=5,
                type=click.IntRange(1),
                metavar="N",
                help="Number of seeds; each draws its own prompts.",
            )
        )
    return _applied(rows)


def _of_prompts(**defaults):
    """The options of the report's prompts."""
    return _applied([
        click.option("--frequent", default=defaults["frequent"], type=click.IntRange(1), metavar="N", help="Frequent sequences, equally likely."),
        click.option("--frequent-length", default="15:15", metavar="A:B", help="Their tokens."),
        click.option("--random-length", default=15, type=click.IntRange(1), metavar="N", help="Tokens of a random request."),
        click.option("--vocabulary", default=defaults["vocabulary"], type=click.IntRange(1), metavar="N", help="Different tokens."),
    ])  # fmt: skip


def _applied(rows):
    def decorate(command):
        for row in reversed(rows):
            command = row(command)
        return command

    return decorate


@experiment.command("hit-rate")
@click.option(
    "--p",
    "probabilities",
    default="0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1",
    metavar="P,...",
    help="Probabilities of a frequent sequence.",
)
@_of_prompts(frequent=10, vocabulary=32_000)
@_options(requests=1000, output_length="16:128", block_size=4)
@click.option("--identical", is_flag=True, help="Repeat one prompt, over block sizes and batches, instead of varying p.")
@click.option("--prompt-length", default=6, type=click.IntRange(1), metavar="N", help="Tokens of that prompt.")
def hit_rate(probabilities, identical, prompt_length, seeds, seed, **options):
    """Figure 1: hit rate against the probability of a frequent sequence; --identical for the repeated prompt."""
    from experiments import figures, hit_rate, tables
    from experiments import identical as repeated
    from kvtrace._base.units import quantiles

    with _Shown(options) as shown:
        common = {"serving": shown.serving(), "seeds": seeds, "seed": seed, "progress": shown.progress}
        if identical:
            length = shown.between("output_length")
            result = repeated.identical_prompt(
                prompt_length, requests=options["requests"], output_length=length, **common
            )
            return shown.show(result, tables.identical, figures.identical)
        result = hit_rate.hit_rate(quantiles(probabilities), mix=shown.mix(), **common)
        return shown.show(result, tables.hit_rates, figures.hit_rates)


@experiment.command()
@click.option(
    "--p",
    "probabilities",
    default="0,0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1",
    metavar="P,...",
    help="Probabilities of a frequent sequence.",
)
@click.option(
    "--prompt-length", "lengths", default="15,32,64,128,256,512,1024", metavar="N,...", help="Prompt lengths in tokens."
)
@click.option("--at-length", "at_lengths", default="15,256", metavar="N,...", help="Prompt lengths at which p varies.")
@click.option(
    "--at-p",
    "at_probabilities",
    default="0.5,0.9",
    metavar="P,...",
    help="Probabilities at which the prompt length varies.",
)
@_of_prompts(frequent=4, vocabulary=1024)
@_options(of_model=True, requests=64, output_length="4:16", block_size=4)
def throughput(probabilities, lengths, at_lengths, at_probabilities, repeats, seed, **options):
    """Figure 2: items per second with and without caching, by a small transformer whose KV lives in the cache."""
    from experiments import figures, tables
    from experiments import throughput as measured
    from kvtrace._base.units import factors, quantiles

    with _Shown(options) as shown:
        result = measured.throughput(
            quantiles(probabilities), factors(lengths), at_lengths=factors(at_lengths),
            at_probabilities=quantiles(at_probabilities), mix=shown.mix(), serving=shown.serving(), shape=shown.shape(),
            machine=shown.machine(), repeats=repeats, seed=seed, progress=shown.progress,
        )  # fmt: skip
        shown.show(result, tables.throughput, figures.throughput)


@experiment.command()
@click.option("--policies", default="lru,lfu", metavar="P,...", help="Eviction policies to compare.")
@click.option(
    "--idles", default="16,32,64,128,256,512,1024,2048,4096", metavar="K,...", help="Values of K."
)
@click.option("--pools", default="1,20", metavar="N,...", help="Pools of frequent sequences that take turns.")
@click.option(
    "--p",
    "probability",
    default=0.5,
    type=click.FloatRange(0, 1),
    metavar="P",
    help="Probability of a frequent sequence.",
)
@_of_prompts(frequent=10, vocabulary=32_000)
@_options(requests=1000, output_length="16:128", block_size=4)
def eviction(policies, idles, pools, probability, seeds, seed, **options):
    """Future work 2: eviction by frequency against eviction by recency, over K."""
    from experiments import eviction as compared
    from experiments import figures, tables
    from kvtrace._base.units import factors, names

    with _Shown(options) as shown:
        result = compared.eviction(
            names(policies), factors(idles), pools=factors(pools), mix=shown.mix(p=probability), serving=shown.serving(),
            seeds=seeds, seed=seed, progress=shown.progress,
        )  # fmt: skip
        shown.show(result, tables.eviction, figures.eviction)


@experiment.command()
@click.option(
    "--workloads", default="random,report,identical,preamble,conversation", metavar="W,...", help="Kinds of prompts: rows of experiments/workloads.py."
)
@_options(of_model=True, requests=64, output_length="4:16", block_size=16)
def latency(workloads, repeats, seed, **options):
    """Future work 3: more prompts, time to first token, and prompt tokens that need not be computed."""
    from experiments import figures, tables
    from experiments import latency as measured
    from kvtrace._base.units import names

    with _Shown(options) as shown:
        result = measured.latency(
            names(workloads), requests=options["requests"], serving=shown.serving(), shape=shown.shape(),
            machine=shown.machine(), repeats=repeats, seed=seed, progress=shown.progress,
        )  # fmt: skip
        shown.show(result, tables.latency, figures.latency)


@experiment.command("all")
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--requests", type=click.IntRange(1), metavar="N", help="Short runs of N requests and few repeats, to try it.")
@click.option("--quick", is_flag=True, help="The same as --requests 100.")
def every(folder, requests, quick):
    """All experiments with their defaults: tables on the screen, figures and JSON files in FOLDER."""
    import json
    import time
    from importlib.util import find_spec
    from pathlib import Path

    from experiments import figures, tables
    from experiments.everything import NEED_TORCH, experiments

    for name, run in experiments(requests or (100 if quick else None)).items():
        if name in NEED_TORCH and find_spec("torch") is None:
            click.echo(f"{name}: skipped, because it needs PyTorch: pip install torch.\n")
            continue
        start = time.perf_counter()
        result, stem = run(), name.replace("_", "-")
        figures.write_figure(getattr(figures, name)(result), f"{folder}/{stem}.png")
        Path(folder, f"{stem}.json").write_text(json.dumps(result.to_dict()))
        print_tables(getattr(tables, name)(result))
        click.echo("".join(f"{line}\n" for line in tables.notes(result)) + f"{name}: {time.perf_counter() - start:.0f} s\n")


class _Shown:
    """The settings that the options describe, a progress bar during the run, and the result on the screen."""

    def __init__(self, options):
        from kvtrace.report.progress import Steps

        self.options = options
        self.bar = Steps(console(), options["quiet"])

    def __enter__(self):
        self.bar.__enter__()
        return self

    def __exit__(self, *error):
        self.bar.__exit__(*error)

    def progress(self, state):
        self.bar.update(state.done, state.total, state.doing)

    def between(self, name):
        """Lengths written as A:B."""
        from kvtrace._base.errors import UsageError

        parts = self.options[name].split(":")
        if not all(part.isdecimal() and len(part) < 10 for part in parts) or len(parts) > 2:
            raise UsageError(f"{self.options[name]!r} is not a range of lengths. Example: 16:128.")
        return int(parts[0]), int(parts[-1])

    def serving(self):
        from experiments.settings import Serving

        return Serving(*(self.options[name] for name in ("block_size", "idle", "batch", "policy", "hashing")))

    def mix(self, p=0.5):
        from experiments.prompts import Mix

        lengths = {name: self.between(name) for name in ("frequent_length", "output_length")}
        others = {name: self.options[name] for name in ("requests", "frequent", "random_length", "vocabulary")}
        return Mix(p=p, **lengths, **others)

    def shape(self):
        from experiments.model import Shape

        vocabulary = self.options.get("vocabulary", Shape.vocabulary)
        return Shape(*(self.options[name] for name in ("layers", "heads", "head_dim")), vocabulary)

    def machine(self):
        from experiments.measure import Machine

        return Machine(self.options["threads"], self.options["device"])

    def show(self, result, tables, figure):
        from experiments.figures import write_figure
        from experiments.tables import notes

        self.bar.__exit__()
        if self.options["figure"]:
            write_figure(figure(result), self.options["figure"])
        if self.options["as_json"]:
            print_json(result.to_dict())
            return
        print_tables(tables(result))
        for line in notes(result):
            click.echo(line)


if __name__ == "__main__":
    main(experiment, "experiments")
