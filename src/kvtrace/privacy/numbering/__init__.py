"""The same trace from many tasks: stages that read files and write files, run by processes of this machine or by Ray.

    encode   a part of the log     -> its rows by time, with keyed digests            (anonymize_dataset.py: it sees
    text) gather   a range of time       -> its rows in order, and its distinct digests, sorted by shard
    match    a shard of digests    -> which of them nobody had before; those of few contributors split among these
    rank     a range of time       -> the new blocks of the range, counted and ranked; what its prompts would hit
    resolve  a shard of digests    -> the final id of each
    finish   a range of time       -> its rows of the trace

A stage is a pure function of its number and of what the stages before it wrote, so that a task that died is done
again. First-appearance ids need no global sort: a block is new in one range only, and the ids of a range begin where
the counts of the ranges before it end. Here is no text: digests under the run's key, lengths and times.
"""
