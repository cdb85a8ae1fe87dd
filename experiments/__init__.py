"""The founding document's experiments, re-runnable: one file each, over a live `PrefixCache` and a real engine.

prompts, workloads     what is asked
serving                continuous batching: who is live, who is admitted
hit_rate, identical, eviction       what the cache holds, without a model
model, paged, engine   a small transformer whose KV cache lies in the cache's blocks
throughput, latency    what that saves
tables, figures        what a reader sees
"""
