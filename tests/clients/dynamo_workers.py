"""Dynamo: its offline replay of whole cases; run in ai-dynamo-runtime's environment as CASES (a JSON object a line).

A case says path, block_size, engine (fields of its mocked engine) and settings (arguments of run_mocker_trace_replay);
a fleet that changes also startup_s and targets, a list of (ms, workers); ranks are those of each worker.
Prints, a case a line: the version, the summary, and of each request its row where that is known (else -1), arrival,
input_length, output_length, worker, reused tokens, admission, first token and end (ms), readmissions, and the tokens
reused at the first admission, and those of them that came from the tier below.

A case with `prefill` and `decode` in place of `engine` has workers of both kinds. Of each request it prints row,
arrival, input_length and output_length, its prefill and its decode worker, the tokens reused at its first admission
there, and in ms: admission, end of the prefill, reservation and activation at the decode worker, admission there,
release of the source, first token and end; then the readmissions on the prefill and on the decode worker, and the
workers that it was routed to, also if it was rejected there (else -1).
"""

import json
import sys
from importlib.metadata import version

from dynamo._core import run_mocker_trace_replay

TIMES = (
    "prefill_admit_ms", "source_held_ms", "destination_reserved_ms", "destination_activated_ms", "decode_admit_ms",
    "source_released_ms", "first_token_ms", "terminal_time_ms",
)  # fmt: skip


class Targets:
    """A policy of scaling that wants so many workers at some times."""

    def __init__(self, targets):
        self.targets = iter([*targets, (float("inf"), None)])
        self.at, self.workers = next(self.targets)

    def initial_tick_ms(self):
        return self.at

    def on_tick(self, _snapshot):
        wanted = self.workers
        self.at, self.workers = next(self.targets)
        return {"target_prefill": None, "target_decode": wanted, "next_tick_ms": self.at}


def replay(case):
    """What became of a case."""
    changes = {"scaling_policy": Targets(case["targets"])} if case.get("targets") else {}
    kinds = {"extra": "engine"} if "engine" in case else {"prefill": "prefill", "decode": "decode"}
    engines = {
        f"{kind}_engine_args": {"engine": {"block_size": case["block_size"], **case[name]}}
        for kind, name in kinds.items()
    }
    for kind, arguments in engines.items():
        if kind != "extra_engine_args":
            arguments["engine"]["worker_type"] = kind.partition("_")[0]
        else:
            arguments |= {"startup_time": case.get("startup_s"), "dp_size": case.get("ranks", 1)}
    found = run_mocker_trace_replay(
        [case["path"]],
        trace_format="mooncake",
        trace_block_size=case["block_size"],
        capture_per_request=True,
        **engines,
        **case["settings"],
        **changes,
    )
    outcome = aggregated if "engine" in case else apart
    requests = [
        [row_of(one["session_id"]), one["arrival_time_ms"], one["input_length"], one["output_length"], *outcome(one)]
        for one in found.per_request
    ]
    return {"version": version("ai-dynamo-runtime"), "summary": found.summary, "requests": requests}


def aggregated(one):
    """What became of a request on one worker."""
    return [
        one["decode_worker_idx"], one["reused_input_tokens"], one["first_admit_ms"], one["first_token_ms"],
        one["terminal_time_ms"], one["readmission_count"], one["admission_history"][0]["reused_input_tokens"],
        one["admission_history"][0].get("host_reused_input_tokens") or 0,
    ]  # fmt: skip


def apart(one):
    """What became of a request on a prefill and a decode worker."""
    admissions = {
        pool: [admission for admission in one["admission_history"] if admission["pool"] == pool]
        for pool in ("prefill", "decode")
    }
    again = [max(0, len(rows) - 1) for rows in admissions.values()]
    reused = admissions["prefill"][0]["reused_input_tokens"] if admissions["prefill"] else 0
    workers = [one["prefill_worker_idx"], one["decode_worker_idx"]]
    routed = {route["pool"]: route["logical_worker_id"] for route in one["routing_history"]}
    return [
        *workers,
        reused,
        *(one[name] for name in TIMES),
        *again,
        routed.get("prefill", -1),
        routed.get("decode", -1),
    ]


def row_of(name):
    """One request at a time, it names them request_1, request_2, ..."""
    return int(name.removeprefix("request_")) - 1 if name and name.startswith("request_") else -1


if __name__ == "__main__":
    with open(sys.argv[1]) as stream:
        for line in stream:
            print(json.dumps(replay(json.loads(line))), flush=True)
