"""Dynamo: its offline replay of whole cases; run in ai-dynamo-runtime's environment as CASES (a JSON object a line).

A case says path, block_size, engine (fields of its mocked engine) and settings (arguments of run_mocker_trace_replay);
a fleet that changes also startup_s and targets, a list of (ms, workers); ranks are those of each worker.
Prints, a case a line: the version, the summary, and of each request its row where that is known (else -1), arrival,
input_length, output_length, worker, reused tokens, admission, first token and end (ms), readmissions, and the tokens
reused at the first admission.
"""

import json
import sys
from importlib.metadata import version

from dynamo._core import run_mocker_trace_replay


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
    found = run_mocker_trace_replay(
        [case["path"]],
        extra_engine_args={
            "engine": {"block_size": case["block_size"], **case["engine"]}, "startup_time": case.get("startup_s"),
            "dp_size": case.get("ranks", 1),
        },
        trace_format="mooncake",
        trace_block_size=case["block_size"],
        capture_per_request=True,
        **case["settings"],
        **changes,
    )  # fmt: skip
    requests = [
        [
            row_of(one["session_id"]), one["arrival_time_ms"], one["input_length"], one["output_length"],
            one["decode_worker_idx"], one["reused_input_tokens"], one["first_admit_ms"], one["first_token_ms"],
            one["terminal_time_ms"], one["readmission_count"], one["admission_history"][0]["reused_input_tokens"],
        ]
        for one in found.per_request
    ]  # fmt: skip
    return {"version": version("ai-dynamo-runtime"), "summary": found.summary, "requests": requests}


def row_of(name):
    """One request at a time, it names them request_1, request_2, ..."""
    return int(name.removeprefix("request_")) - 1 if name and name.startswith("request_") else -1


if __name__ == "__main__":
    with open(sys.argv[1]) as stream:
        for line in stream:
            print(json.dumps(replay(json.loads(line))), flush=True)
