"""libCacheSim: its readers, and its LRU with room for everything; run in libCacheSim's environment as FILE."""

import json
import sys

import libcachesim

path = sys.argv[1]
if path.endswith(".csv"):
    options = libcachesim.ReaderInitParam(
        has_header=True, has_header_set=True, delimiter=",", obj_id_is_num=True, obj_id_is_num_set=True
    )
    options.time_field, options.obj_id_field, options.obj_size_field = 1, 2, 3
    reader = libcachesim.TraceReader(path, libcachesim.TraceType.CSV_TRACE, options)
else:
    reader = libcachesim.TraceReader(path, libcachesim.TraceType.ORACLE_GENERAL_TRACE, libcachesim.ReaderInitParam())
rows = [(row.clock_time, row.obj_id, row.obj_size, row.next_access_vtime) for row in reader]
reader.reset()
misses, _ = libcachesim.LRU(cache_size=10**9).process_trace(reader)
print(json.dumps({
    "blocks": len(rows),
    "ids": [row[1] for row in rows],
    "sizes": sorted({row[2] for row in rows}),
    "never": sum(row[3] == 2**63 - 1 for row in rows),
    "misses": round(misses * len(rows)),
}))  # fmt: skip
