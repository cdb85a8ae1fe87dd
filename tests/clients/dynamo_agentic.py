"""Dynamo: its offline replay of agentic sessions; run in ai-dynamo-runtime's environment.

As FILE FORMAT LANES ENGINE: FORMAT is agentic_mooncake or weka, LANES a number or `all` (every session at its own
time), ENGINE a JSON object of fields of its mocked engine. Prints a JSON object: the version, the summary, and of each
request in the order of their names its name, play, session, arrival, admission, first token and end (ms), reused
tokens, the state in which it ended, its prefill worker and its decode worker.

ENGINE may also have `workers`: [prefill, decode] in place of one worker, and `decode`: fields that differ there.
"""

import json
import sys
from importlib.metadata import version

from dynamo._core import run_mocker_trace_replay

path, form, lanes, engine = sys.argv[1:]
KEYS = ("request_id", "play_id", "session_id", "arrival_time_ms", "first_admit_ms", "first_token_ms",
        "terminal_time_ms", "reused_input_tokens", "terminal_status", "prefill_worker_idx",
        "decode_worker_idx")  # fmt: skip
fields = json.loads(engine)
workers, changes = fields.pop("workers", None), fields.pop("decode", {})
kinds = {"extra_engine_args": {"engine": fields}}
if workers:
    kinds = {
        "prefill_engine_args": {"engine": {**fields, "worker_type": "prefill"}}, "num_prefill_workers": workers[0],
        "decode_engine_args": {"engine": {**fields, **changes, "worker_type": "decode"}},
        "num_decode_workers": workers[1],
    }  # fmt: skip

done = run_mocker_trace_replay(
    [path],
    **kinds,
    trace_format=form,
    execution_model="any",  # the mocked engine has its own times
    agentic_lanes=None if lanes == "all" else int(lanes),
    capture_per_request=True,
)
requests = sorted(([one[key] for key in KEYS] for one in done.per_request), key=lambda one: one[0])
print(json.dumps({"version": version("ai-dynamo-runtime"), "summary": done.summary, "requests": requests}))
