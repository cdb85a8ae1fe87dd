"""A recording of our own: a made-up trace, served by vLLM's scheduler under known costs."""

import numpy as np

from kvtrace.cache.simulation import Setting
from kvtrace.serving.deployment import Deployment
from kvtrace.serving.recordings.recording import EngineSettings, RequestTimes, recording_of
from kvtrace.serving.schedulers import VllmScheduler
from kvtrace.serving.simulation import StepCost, open_loop
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace

COST = StepCost(6e-5, step_s=0.015, overhead_s=0.003, attention_pair_s=1e-9, attention_read_s=8e-8)
SETTINGS = EngineSettings(Deployment("toy", max_num_seqs=32, max_num_batched_tokens=1024, block_size=16), blocks=2001)
SCHEDULER = VllmScheduler(max_num_seqs=32, max_num_batched_tokens=1024)


def made_up(rows=120, rate=8.0, seed=3):
    """Requests without shared blocks that come as a Poisson process."""
    random = np.random.default_rng(seed)
    arrival = np.cumsum(random.exponential(1000 / rate, rows))
    tokens, output = random.integers(50, 1500, rows), random.integers(2, 300, rows)
    offsets = np.concatenate([[0], np.cumsum(-(-tokens // 16))])
    columns = Columns(arrival - arrival[0], tokens, output, np.arange(offsets[-1]), offsets)
    return Trace.from_columns(columns, block_size=16, tail="unique")


def recorded(cost=COST, trace=None, noise=0.0, seed=0, settings=SETTINGS):
    """What a benchmark would measure of an engine with these costs, and the data-parallel ranks of the settings."""
    trace = trace or made_up()
    ranks = settings.ranks("vllm")
    run = open_loop(trace, cost, setting=Setting(2000, engine="vllm"), scheduler=SCHEDULER, **ranks)
    random = np.random.default_rng(seed)
    arrival = trace.timestamp / 1000
    ttft = (run.first_s - arrival) * np.exp(random.normal(0, noise, len(trace)))
    times = RequestTimes(
        arrival, arrival + ttft, arrival + ttft + run.ended_s - run.first_s, trace.input_length, trace.output_length
    )
    return recording_of(times, name="made up", trace=trace, settings=settings)
