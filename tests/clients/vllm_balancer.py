"""vLLM: its own balancer of data-parallel ranks chooses ranks; run in vLLM's environment as CASES (JSON lines).

A case has ranks, servers (API servers), and of each request arrival and end (seconds) and client (its API server); and
reports: of each rank the rows [seconds, running, waiting, use of the KV cache] that its engine core sends; with
`lockstep` also [..., wave, step], and [seconds] where a wave begins or ends, whose number is left out here. It prints,
a case a line, vLLM's version and the rank of each request.

vLLM's, unmodified: DPCoordinatorProc's loop, which publishes counts, and DPLBAsyncMPClient's choice and its count of
requests in flight. Ours are the sockets, the clock and the process: the coordinator begins START_S before time 0.
"""

import asyncio
import json
import sys
import types
from collections import Counter

import msgspec
import vllm_absent  # noqa: F401 - before vllm
from vllm import __version__
from vllm.v1.engine import EngineCoreOutputs, coordinator
from vllm.v1.engine.core_client import DPLBAsyncMPClient
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.serial_utils import MsgpackEncoder

START_S = 2.5


class Over(Exception):
    """The last report was read."""


class Wire:
    """All sockets of the coordinator, its poller and its clock."""

    def __init__(self, case):
        rows = [(at + START_S, rank, counts) for rank, reports in enumerate(case["reports"]) for at, *counts in reports]
        self.messages = sorted(rows, key=lambda row: row[:2])
        self.end = START_S + max(case["arrival"])
        self.now, self.taken, self.published, self.sockets = 0.0, 0, [], []

    def poll(self, timeout):
        deadline = self.now + timeout / 1000
        if self.taken < len(self.messages) and self.messages[self.taken][0] <= deadline:
            self.now = max(self.now, self.messages[self.taken][0])
            return [(self.sockets[1], 1)]
        if self.now > self.end:
            raise Over
        self.now = deadline
        return []

    def report(self):
        _, rank, counts = self.messages[self.taken]
        self.taken += 1
        names = ("num_running_reqs", "num_waiting_reqs", "kv_cache_usage", "current_wave", "step_counter")
        stats = SchedulerStats(**dict(zip(names, counts, strict=False))) if counts else None
        outputs = EngineCoreOutputs(engine_index=rank, scheduler_stats=stats, start_wave=None if counts else -1)
        return b"".join(MsgpackEncoder().encode(outputs))


class Socket:
    """A socket of the coordinator: it opens publish_front, output_back and publish_back, in this order."""

    def __init__(self, wire):
        self.wire = wire
        wire.sockets.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def recv(self):
        return self.wire.report() if self is self.wire.sockets[1] else b"\x01"  # an engine subscribes

    def send(self, message):
        if self is self.wire.sockets[0]:
            self.wire.published.append((self.wire.now, message))


def publications(case):
    """The coordinator's messages to API servers, with their times."""
    wire = Wire(case)
    coordinator.make_zmq_socket = lambda **_: Socket(wire)
    coordinator.zmq = types.SimpleNamespace(
        XPUB=0, PULL=0, POLLIN=1, Context=lambda: None,
        Poller=lambda: types.SimpleNamespace(register=lambda *_: None, poll=wire.poll),
    )  # fmt: skip
    coordinator.time = types.SimpleNamespace(time=lambda: wire.now)
    coordinator.set_process_title = lambda *_: None
    process = coordinator.DPCoordinatorProc(case["ranks"], enable_wave_coordination=case.get("lockstep", False))
    try:
        process.process_input_socket("", "", "")
    except Over:
        return wire.published


def client_of(case, index):
    """What DPLBAsyncMPClient's choice reads of an API server."""
    ranks = case["ranks"]
    return types.SimpleNamespace(
        client_count=case["servers"], core_engines=[rank.to_bytes(2, "little") for rank in range(ranks)],
        lb_engines=[[0, 0, 0.0] for _ in range(ranks)], engine_inflight=Counter(), reqs_in_flight={},
        streaming_reqs=set(), eng_start_index=(ranks * index) // case["servers"],
    )  # fmt: skip


def chosen(case):
    """The rank of each request."""
    clients = [client_of(case, index) for index in range(case["servers"])]
    messages, ends, ranks = iter([*publications(case), (float("inf"), b"")]), [], []
    at, message = next(messages)
    for row, (arrival, index) in enumerate(zip(case["arrival"], case["client"], strict=True)):
        while at < arrival + START_S:
            counts, _, _ = msgspec.msgpack.decode(message)
            for client in clients:
                client.lb_engines = [list(row) for row in counts]
            at, message = next(messages)
        for other in [other for other in ends if case["ended"][other] <= arrival]:
            outputs = types.SimpleNamespace(finished_requests={str(other)})
            asyncio.run(DPLBAsyncMPClient.process_engine_outputs(clients[case["client"][other]], outputs))
            ends.remove(other)
        request = types.SimpleNamespace(
            resumable=False, request_id=str(row), data_parallel_rank=None, pooling_params=None
        )
        engine = DPLBAsyncMPClient.get_core_engine_for_request(clients[index], request)
        ranks.append(int.from_bytes(engine, "little"))
        ends.append(row)
    return {"version": __version__, "instance": ranks}


if __name__ == "__main__":
    with open(sys.argv[1]) as stream:
        for line in stream:
            print(json.dumps(chosen(json.loads(line))), flush=True)
