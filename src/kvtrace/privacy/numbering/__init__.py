"""Number and release a trace in many tasks: stages that read and write files, run by local processes or by Ray.

    stage    input                 output
    encode   a part of the log     its rows by time, with keyed digests (ingest/encoding_tasks.py: it reads text)
    gather   a range of time       its rows in order, and its distinct digests, sorted by shard
    match    a shard of digests    the first appearance of each; digests of few contributors are split among them
    rank     a range of time       its new blocks, counted and ranked; the hits of its prompts
    resolve  a shard of digests    the final id of each
    finish   a range of time       its rows of the trace
    link     a shard of sessions   what their requests waited for, if the rows have service times

A stage is a pure function of its number and of the files of earlier stages, so a task that died can run again.
First-appearance ids need no global sort: a block is new in one range only, and the ids of a range continue the counts
of the ranges before it. The stages here see no text: only digests under the run's key, lengths and times.
"""
