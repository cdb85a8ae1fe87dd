"""Write recording/: an invented recording of vLLM, in the form that LLMServingSim's benchmark writes.

No GPU was measured: 80 requests were served by the simulation itself, with steps 12 % slower than the roofline of an
H100, and first tokens that come up to 20 ms later. The folder has one row per request, the engine's settings, and its
gauges at each second.
"""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from kvtrace import Trace
from kvtrace.cache import Setting
from kvtrace.serving import Roofline, StepCost, VllmScheduler, gpu, model_shape, open_loop
from kvtrace.serving.calibration.costs import step_cost
from kvtrace.trace import Columns

ROWS, RATE, BLOCKS, BLOCK_SIZE = 80, 16.0, 1201, 16  # a second; vLLM keeps one of the blocks
SCHEDULER = VllmScheduler(max_num_seqs=32, max_num_batched_tokens=2048)
START = 5000.0  # of the engine's clock, in seconds


def made_trace(random):
    """Requests that come as a Poisson process, and share no blocks."""
    arrival = np.cumsum(random.exponential(1000 / RATE, ROWS))
    tokens, output = random.integers(50, 1500, ROWS), random.integers(20, 300, ROWS)
    offsets = np.concatenate([[0], np.cumsum(-(-tokens // BLOCK_SIZE))])
    columns = Columns(arrival - arrival[0], tokens, output, np.arange(offsets[-1]), offsets)
    return Trace.from_columns(columns, block_size=BLOCK_SIZE, tail="unique")


def main(folder):
    """Serve the requests and write the folder."""
    random = np.random.default_rng(19)
    trace = made_trace(random)
    fast = asdict(step_cost(Roofline(model_shape("llama-3.1-8b"), gpu("h100"))))
    cost = StepCost(**{name: 1.12 * seconds for name, seconds in fast.items()})
    setting = Setting(BLOCKS - 1, engine="vllm")
    run = open_loop(trace, cost, setting=setting, scheduler=SCHEDULER, timelines=True)
    first = np.minimum(run.first_s + random.uniform(0, 0.02, ROWS), run.ended_s)
    times = np.column_stack([trace.timestamp / 1000, run.started_s, first, run.ended_s]) + START
    names = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
    rows = [
        {"request_id": f"made-{row}", "input_toks": prompt, "output_toks": output, "cached_toks": cached}
        | dict(zip(names, map(float, times[row].round(6)), strict=True))
        for row, (prompt, output, cached) in enumerate(
            zip(trace.input_length.tolist(), trace.output_length.tolist(), run.cached_tokens.tolist(), strict=True)
        )
    ]
    meta = {
        "model": "made-up/Llama-3.1-8B",
        "engine_kwargs": {"max_num_seqs": 32, "max_num_batched_tokens": 2048, "tensor_parallel_size": 1},
        "kv_cache": {"num_gpu_blocks": BLOCKS, "block_size": BLOCK_SIZE},
    }
    seconds = np.arange(1, int(run.makespan_s) + 2)
    state = run.timelines[0].at(seconds)
    use = (100 * state.blocks / setting.capacity).round(2)
    gauges = zip(seconds.tolist(), state.running.tolist(), state.waiting.tolist(), use.tolist(), strict=True)
    folder.mkdir(exist_ok=True)
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
    lines = [",".join(map(str, row)) for row in gauges]
    (folder / "timeseries.csv").write_text("\n".join(["t,running,waiting,kv_cache_pct", *lines]) + "\n")


if __name__ == "__main__":
    main(Path(__file__).with_name("recording"))
