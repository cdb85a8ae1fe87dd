"""SGLang: its own controller of data-parallel ranks chooses ranks; run in SGLang's environment as CASES (JSON lines).

A case has ranks, router (sglang-total-requests or sglang-total-tokens), and of each request arrival (seconds) and
tokens; and reports: of each rank the rows [seconds, running, waiting, tokens] that its scheduler publishes. It prints,
a case a line, SGLang's version and the rank of each request.

SGLang's, unmodified: DataParallelController's dispatch and refresh, and DPBudget. Ours are sockets, clock and reader.
"""

import json
import sys
import types

import sglang_scheduler as imported  # the file beside this one: SGLang without the packages that are absent
from sglang.srt.managers import data_parallel_controller as controllers
from sglang.srt.managers.load_snapshot import LoadSnapshot


class Reader:
    """The last snapshot of each rank that was published before now."""

    def __init__(self, case):
        self.case, self.now = case, 0.0

    def read_all(self):
        last = []
        for rank, reports in enumerate(self.case["reports"]):
            before = [report for report in reports if report[0] < self.now]
            if before:
                _, running, waiting, tokens = before[-1]
                last.append(
                    LoadSnapshot(
                        timestamp=float(len(before)), dp_rank=rank, num_running_reqs=running, num_waiting_reqs=waiting,
                        num_total_tokens=int(tokens),
                    )
                )  # fmt: skip
        return last


def chosen(case):
    """The rank of each request."""
    controller, reader, ranks = object.__new__(controllers.DataParallelController), Reader(case), []
    method = controllers.LoadBalanceMethod.from_str(case["router"].removeprefix("sglang-").replace("-", "_"))
    controller.dp_budget, controller.load_snapshot_reader = controllers.DPBudget(case["ranks"]), reader
    controller.workers, controller._last_refresh_time = list(range(case["ranks"])), 0.0
    controllers.sock_send = lambda worker, request: ranks.append(worker)
    controllers.time = types.SimpleNamespace(perf_counter=lambda: reader.now)
    by_requests = method == controllers.LoadBalanceMethod.TOTAL_REQUESTS
    dispatch = controller.total_requests_scheduler if by_requests else controller.total_tokens_scheduler
    for reader.now, tokens in zip(case["arrival"], case["tokens"], strict=True):
        controller.refresh_load_budget()
        dispatch(types.SimpleNamespace(routed_dp_rank=None, input_ids=range(tokens)))
    return {"version": imported.version("sglang"), "instance": ranks}


if __name__ == "__main__":
    with open(sys.argv[1]) as stream:
        for line in stream:
            print(json.dumps(chosen(json.loads(line))), flush=True)
