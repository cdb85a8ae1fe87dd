"""How faithful samples are, against what was promised.

python -m benchmarks.fidelity TRACE [--large]   each of five seeds; --large: also 10 and 100 times the size
python -m benchmarks.fidelity --kinds           traces of eight kinds of our own, developed on and held out
"""

from __future__ import annotations

import argparse
import hashlib
import math
import statistics
import time

import numpy as np

import kvtrace
from kvtrace.analysis.arrivals import dispersion
from kvtrace.analysis.distribution import spearman
from kvtrace.synthesis.attach_fitting import fit
from kvtrace.synthesis.fidelity import BOUNDS
from kvtrace.synthesis.sampling import sample
from kvtrace.synthesis.tree import fit_tree
from tests.synthesis.made_traces import KINDS

SEEDS = range(5)
DEVELOPED = ((1_000, 1, 64), (10_000, 1, 64), (2_500, 7, 512), (12_000, 7, 16))  # requests, seed, block size
HELD_OUT = range(10, 19)  # traces of each kind, by a hash of its name and a number; those before were looked at
CAPACITIES = (2_000, 10_000, 50_000)
SMALL = {"isl mean": 0.01, "isl median": 0.02, "isl std": 0.02, "osl mean": 0.01}  # relative
LARGE = {"isl mean": 0.007, "isl median": 0.02, "isl std": 0.02, "osl mean": 0.007}
POINTS = {"block": 0.005, "token": 0.005, "request": 0.005, "spearman": 0.02} | {f"lru {c}": 0.01 for c in CAPACITIES}


def figures(trace: kvtrace.Trace) -> dict[str, float]:
    """What the promise is about."""
    isl, curve = trace.input_length, kvtrace.analysis.hit_curve(trace)
    best = curve.at(curve.working_set)
    return {
        "isl mean": isl.mean(), "isl median": float(np.median(isl)), "isl std": isl.std(),
        "osl mean": trace.output_length.mean(), "spearman": spearman(isl, trace.output_length),
        "block": best.block_hit_rate, "token": best.token_hit_rate, "request": best.request_hit_rate,
        **{f"lru {capacity}": curve.at(capacity).block_hit_rate for capacity in CAPACITIES},
        "dispersion": dispersion(trace.timestamp, 60_000) or math.nan,
    }  # fmt: skip


def copied(trace: kvtrace.Trace, found: kvtrace.Trace) -> tuple[float, float]:
    """Share of rows whose two lengths are those of a source row, and what chance would give."""
    pairs = set(zip(trace.input_length.tolist(), trace.output_length.tolist(), strict=True))
    rng = np.random.default_rng(0)
    by_chance = zip(
        rng.permutation(trace.input_length).tolist(), rng.permutation(trace.output_length).tolist(), strict=True
    )
    ours = zip(found.input_length.tolist(), found.output_length.tolist(), strict=True)
    return tuple(statistics.mean(pair in pairs for pair in rows) for rows in (ours, by_chance))  # type: ignore[return-value]


def off(wanted: dict[str, float], found: dict[str, float], relative: dict[str, float]) -> dict[str, float]:
    """How far each figure is off, relative or in points."""
    return {
        name: abs(found[name] / wanted[name] - 1) if name in relative else abs(found[name] - wanted[name])
        for name in wanted
        if name != "dispersion"
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", nargs="?")
    parser.add_argument("--kinds", action="store_true")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--method", default="attach", choices=["attach", "tree"])
    options = parser.parse_args()
    if options.kinds or options.trace is None:
        show_kinds()
        return
    trace = kvtrace.read(options.trace)
    model = {"attach": fit, "tree": fit_tree}[options.method](trace)
    wanted = figures(trace)
    samples = [sample(model, len(trace), seed=seed) for seed in SEEDS]
    show(f"{options.method}, n = {len(trace):,}", wanted, [figures(found) for found in samples], SMALL)
    ratios = [figures(found)["dispersion"] / wanted["dispersion"] for found in samples]
    print(
        f"  dispersion per 60 s / original: {min(ratios):.2f} to {max(ratios):.2f}, mean {statistics.mean(ratios):.2f}"
    )
    ours, chance = copied(trace, samples[0])
    print(f"  rows with both lengths of a source row: {ours:.2%}, by chance {chance:.2%}")
    for times in (10, 100) if options.large else ():
        for scale in ("rate", "duration"):
            start = time.perf_counter()
            found = []
            for seed in SEEDS if times == 10 else SEEDS[:2]:
                found.append(figures(sample(model, times * len(trace), seed=seed, scale=scale)))
            took = (time.perf_counter() - start) / len(found)
            show(f"{times} x by {scale} ({took:.1f} s each)", wanted, found, LARGE, without="lru")


def show_kinds() -> None:
    """One line for each trace of our own: the errors of its figures, and those that are not kept."""
    for title in ("developed on", "held out"):
        print(f"{title:28}" + "".join(f"{name[:12]:>13}" for name in BOUNDS))
        for kind, make in KINDS.items():
            for rows, seed, block_size in DEVELOPED if title == "developed on" else held_out(kind):
                checked = kvtrace.synthesis.check_fidelity(kvtrace.synthesis.fit(make(rows, seed, block_size)))
                errors = "".join(f"{checked.error(name) or 0:+13.4f}" for name in BOUNDS)
                print(f"{kind:16}{rows:>8}{block_size:>4}{errors}  {len(checked.lost)} not kept", flush=True)


def held_out(kind: str) -> list[tuple[int, int, int]]:
    """Requests, seed and block size of the traces of a kind that nobody looked at while the model was developed."""
    chosen = []
    for number in HELD_OUT:
        drawn = int.from_bytes(hashlib.sha256(f"{kind} {number}".encode()).digest()[:8])
        chosen.append((2_000 + drawn % 18_000, drawn // 18_000 % 10**6, (16, 64, 512)[number % 3]))
    return chosen


def show(title, wanted, found, relative, without="none"):
    """One line a figure: the original, the mean and the worst of the samples, and whether each is within its bound."""
    print(title)
    offs = [off(wanted, figures, relative) for figures in found]
    for name, bound in (relative | POINTS).items():
        if not name.startswith(without):
            worst, mean = max(each[name] for each in offs), statistics.mean(figures[name] for figures in found)
            said = "yes" if worst <= bound else "NO"
            print(f"  {name:12}{wanted[name]:12.4f}{mean:12.4f}   worst off {worst:.4f}   bound {bound:.4f}   {said}")


if __name__ == "__main__":
    main()
