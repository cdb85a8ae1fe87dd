"""The experiments of Lin's report, one file each, on a live `PrefixCache` and a small real engine.

prompts, workloads                the requests
serving, settings                 continuous batching; the cache's settings
hit_rate, identical, eviction     hit rates, without a model
model, paged, engine              a small transformer whose KV cache lies in the cache's blocks
throughput, latency               items per second and time to first token, with and without caching
reported                          the report's own figures
tables, figures, everything       tables, figures, and all experiments in one run
"""
