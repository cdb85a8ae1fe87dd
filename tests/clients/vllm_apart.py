"""vLLM: its own Schedulers with its NixlConnector, as prefill and decode workers; run in vLLM's environment as CASES.

The cases are those of vllm_scheduler.py with `workers` ([prefill, decode]), `byte_s`, `latency`, `bytes_per_token`, and
`decode`, which has what differs on decode workers (capacity, settings, cost). A request goes to the prefill worker of
its number, in turn, and its output to the decode worker that comes next. With a `decider`, its rules are those of
kvtrace's serving/deciders.py in plain Python, and a request that stays at its decode worker is a plain one there. It
prints, a case a line, vLLM's version, the
steps of each worker, and for each request `[cached tokens of the prefill and of the decode worker, begin of its first
step, when its prompt is computed, when its KV cache is read, first token, end, preemptions of both]`.

Scheduler, requests, hashes, blocks, queues and the scheduler's side of the connector are vLLM's, unmodified. Ours are
the clocks, the loops of EngineCore (vllm_scheduler.py), what lies between the workers (a proxy without time), and the
reads: they begin when their step is planned, go one after another over the links of both workers, and a worker reports
them with the next step that it begins, as NixlConnectorWorker.get_finished does.
"""

import heapq
import json
import math
import sys
import types

import vllm_scheduler as plain
from vllm import __version__
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request

POLL_S = 0.001  # EngineCore._process_engine_step sleeps so long when no model was executed
NEVER = 1e300


class Connector(NixlPullConnector):
    """The NixlConnector without a worker's side: that would open its network."""

    def __init__(self, config, cache):
        transfer = types.SimpleNamespace(get_from_extra_config=lambda name, default: default, kv_buffer_device="cuda")
        config.kv_transfer_config = transfer
        config.parallel_config.tensor_parallel_size = 1
        self._kv_transfer_config, self._kv_cache_config, self.connector_worker = transfer, cache, None
        self.connector_scheduler = NixlPullConnectorScheduler(config, "worker", cache)
        config.kv_transfer_config = None


class Worker(plain.Server):
    """A worker of one kind."""

    def __init__(self, case, net, is_prefill, number):
        made = []
        settings_of = plain.settings_of
        plain.settings_of = lambda one: made.append(settings_of(one)) or made[-1]
        super().__init__(case)
        plain.settings_of = settings_of
        self.net, self.is_prefill, self.number = net, is_prefill, number
        self.scheduler.connector = Connector(made[0], self.scheduler.kv_cache_config)
        self.scheduler.has_pending_block_frees = False
        self.queue, self.free, self.done_reads, self.idle = [], 0.0, [], None
        self.is_async = self.scheduler.defer_block_free = bool(case["settings"].get("async"))
        self.now = NEVER

    def add(self, row, at, params):
        """A request arrives."""
        data = self.rows[row]
        tokens = [id_ for id_ in data["ids"] for _ in range(self.size)][: data["tokens"]]
        sampling = SamplingParams(max_tokens=1 if self.is_prefill else data["output"], ignore_eos=True)
        sampling.extra_args = {"kv_transfer_params": params}
        request = Request(
            f"{row:09}", tokens, sampling, None, arrival_time=at, block_hasher=self.hasher,
            priority=data.get("priority", 0),
        )  # fmt: skip
        request.kv_transfer_params = params
        self.scheduler.add_request(request)
        if self.now >= NEVER:
            self.now = max(at, self.floor)
            self.idle = None

    floor = 0.0

    def hits(self, row):
        """The tokens of a prompt that hit here now, of all but its last one."""
        data, manager = self.rows[row], self.scheduler.kv_cache_manager
        tokens = [id_ for id_ in data["ids"] for _ in range(self.size)][: data["tokens"]]
        request = Request("", tokens, SamplingParams(max_tokens=1), None, block_hasher=self.hasher)
        return manager.coordinator.find_longest_cache_hit(request.block_hashes, data["tokens"] - 1)[1]

    def read(self, row, at):
        """A read has ended."""
        self.done_reads.append(row)
        if self.now >= NEVER and self.idle is not None:
            polls = math.floor(max(0.0, at - self.idle) / POLL_S)
            self.now = self.idle + polls * POLL_S
            while self.now < at:
                polls += 1
                self.now = self.idle + polls * POLL_S

    def turn(self):
        """One step of EngineCore."""
        if not self.scheduler.has_unfinished_requests() and not self.queue:
            self.floor, self.now, self.idle = max(self.floor, self.now), NEVER, None
            return
        begun = self.now
        if self.scheduler.has_unfinished_requests():
            output, seconds, parts, preempted = self.plan()
            for name in output.kv_connector_metadata.reqs_to_recv if output.kv_connector_metadata else ():
                self.net.start(int(name), begun)
            if parts:
                begin = max(self.free, self.now) if self.is_async else self.now
                self.record_at(begin, parts, preempted)
                told, self.done_reads = self.done_reads, []
                self.free = begin + seconds
                self.queue.append((output, parts, self.free, told))
                if self.is_async and len(self.queue) < 2:
                    return
            elif not self.queue:  # a step without tokens
                told, self.done_reads = self.done_reads, []
                self.report_reads(output, told)
                self.idle = begun
                if preempted:
                    self.record_at(begun, [], preempted)
                self.now = begun + POLL_S if told or preempted else NEVER
                self.floor = begun
                return
        output, parts, done, told = self.queue.pop(0)
        self.now = max(self.now, done)
        self.floor = self.now
        self.finish_with(output, parts, told)

    def kv_output(self, told):
        names = dict.fromkeys(f"{row:09}" for row in told)  # a set of names has another order in each run
        return KVConnectorOutput(**{"finished_sending" if self.is_prefill else "finished_recving": names or None})

    def report_reads(self, output, told):
        result = ModelRunnerOutput(
            req_ids=[], req_id_to_index={}, sampled_token_ids=[], logprobs=None, prompt_logprobs_dict={},
            pooler_output=[],
        )  # fmt: skip
        result.kv_connector_output = self.kv_output(told)
        self.scheduler.update_from_output(output, result)

    def finish_with(self, output, parts, told):
        names = list(output.num_scheduled_tokens)
        sampled, over = [], []
        for row, before, count in parts:
            most = 1 if self.is_prefill else self.rows[row]["output"]
            complete = before + count >= self.rows[row]["tokens"] + self.got[row]
            sampled.append([-1 - row * 1_000_000 - self.got[row]] if complete else [])
            if complete:
                self.got[row] += 1
                if self.first[row] is None:
                    self.first[row] = self.now
                if self.got[row] == most:
                    self.end[row] = self.now
                    over.append(row)
        result = ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)}, sampled_token_ids=sampled,
            logprobs=None, prompt_logprobs_dict={}, pooler_output=[],
        )  # fmt: skip
        result.kv_connector_output = self.kv_output(told)
        outputs = self.scheduler.update_from_output(output, result)
        for batch in outputs.values():
            for one in batch.outputs:
                if self.is_prefill and one.kv_transfer_params:
                    self.net.computed(int(one.request_id), self.now, one.kv_transfer_params)


class Net:
    """The workers, the links, and what happens between them."""

    def __init__(self, case):
        self.case, (prefill, decode) = case, case["workers"]
        self.prefill = [Worker(case, self, True, i) for i in range(prefill)]
        self.decode = [Worker(case | case.get("decode", {}), self, False, i) for i in range(decode)]
        self.events, self.pushed, self.sent = [], 0, 0
        rows = len(case["requests"])
        self.out, self.into = [0.0] * prefill, [0.0] * decode
        self.home, self.target = [-1] * rows, [-1] * rows
        self.when, self.arrived = [None] * rows, [None] * rows
        self.received, self.brought = 0, [0] * rows
        self.rules = case.get("decider", {})
        for row, data in enumerate(case["requests"]):
            self.push(data["arrival"], "arrives", row, None)

    def push(self, at, kind, row, what):
        heapq.heappush(self.events, (at, self.pushed, kind, row, what))
        self.pushed += 1

    def computed(self, row, at, params):
        self.when[row] = at
        self.push(at, "computed", row, params)

    def start(self, row, at):
        self.push(at, "reads", row, None)

    def happen(self, at, kind, row, what):
        if kind == "arrives":
            if self.rules and self.stays(row, at):
                self.choose(row)
                self.decode[self.target[row]].add(row, at, {"do_remote_decode": False, "do_remote_prefill": False})
                return
            self.home[row] = self.received % len(self.prefill)
            self.received += 1
            worker = self.prefill[self.home[row]]
            self.brought[row] = self.case["requests"][row]["tokens"] - worker.hits(row)
            worker.add(row, at, {"do_remote_decode": True, "do_remote_prefill": False})
        elif kind == "computed":
            self.choose(row)
            what = dict(what) | {"remote_host": "host", "remote_port": 1}
            self.decode[self.target[row]].add(row, at, what)
        elif kind == "reads":
            home, target = self.home[row], self.target[row]
            worker = self.decode[target]
            missing = self.case["requests"][row]["tokens"] - worker.local[row]
            begin = max(at, self.out[home], self.into[target])
            end = begin + missing * self.case["bytes_per_token"] * self.case["byte_s"]
            self.out[home] = self.into[target] = end
            self.push(end + self.case["latency"], "read", row, None)
        else:
            self.arrived[row] = at
            self.prefill[self.home[row]].read(row, at)
            self.decode[self.target[row]].read(row, at)

    def choose(self, row):
        """A request goes to the decode worker that comes next, unless that was looked at before."""
        if self.target[row] < 0:
            self.target[row] = self.sent % len(self.decode)
            self.sent += 1

    def stays(self, row, at):
        """Whether the decode worker of a request computes its prompt."""
        rules, rows = self.rules, range(len(self.home))
        tokens = self.case["requests"][row]["tokens"]
        if "policy" not in rules:
            self.choose(row)
            fresh = tokens - self.decode[self.target[row]].hits(row)
            sent = [other for other in rows if self.home[other] >= 0]
            waiting = sum(is_later(self.prefill[self.home[other]].begin[other], at) for other in sent)
            short = fresh <= rules.get("max_local_prefill_length", -1)
            return short or waiting >= rules.get("max_prefill_queue_size", math.inf)
        target, home = self.sent % len(self.decode), self.received % len(self.prefill)
        fresh = tokens - self.decode[target].hits(row)
        mine = [other for other in rows if self.home[other] == home and is_later(self.when[other], at)]
        load = sum(self.brought[other] for other in mine)
        case = self.case
        ends = self.decode[target].end
        held = [other for other in rows if self.target[other] == target and is_later(ends[other], at)]
        blocks = sum(-(-case["requests"][other]["tokens"] // case["block_size"]) for other in (*held, row))
        if blocks > rules["decode_busy_threshold"] * (case | case.get("decode", {}))["capacity"]:
            return False
        short = fresh < rules["eff_isl_threshold"] and fresh < rules["eff_isl_ratio_threshold"] * tokens
        busy = load > rules["prefill_busy_threshold"] * case["settings"]["max_num_batched_tokens"]
        return {"isl_bounding": short, "prefill_load": busy, "isl_or_load": short or busy}[rules["policy"]]

    def run(self):
        workers = [*self.prefill, *self.decode]
        for worker in self.decode:  # the hits of the decode worker, as its scheduler gives them to the connector
            worker.local = {}
            inner = worker.scheduler.connector.connector_scheduler
            ask = inner.get_num_new_matched_tokens

            def asked(request, computed, worker=worker, ask=ask):
                if request.kv_transfer_params["do_remote_prefill"]:
                    worker.local[int(request.request_id)] = computed
                return ask(request, computed)

            inner.get_num_new_matched_tokens = asked
        while True:
            first = min(workers, key=lambda worker: worker.now)
            if self.events and self.events[0][0] <= first.now:
                at, _, kind, row, what = heapq.heappop(self.events)
                self.happen(at, kind, row, what)
            elif first.now >= NEVER:
                return
            else:
                first.turn()


def is_later(moment, at):
    """Whether something happens after a time; None: it is not known yet when."""
    return moment is None or moment > at


def serve(case):
    """The steps of each worker, and the times of each request."""
    net = Net(case)
    net.run()
    requests = []
    for row in range(len(case["requests"])):
        home, target = net.prefill[net.home[row]], net.decode[net.target[row]]
        if net.home[row] < 0:
            cached = target.cached[row]
            requests.append([
                cached, cached, target.begin[row], None, None, target.first[row], target.end[row], target.preempted[row]
            ])  # fmt: skip
            continue
        requests.append([
            home.cached[row], target.local.get(row, -1), home.begin[row], net.when[row], net.arrived[row],
            target.first[row], target.end[row], home.preempted[row] + target.preempted[row],
        ])  # fmt: skip
    return {
        "version": __version__,
        "prefill": [worker.steps for worker in net.prefill],
        "decode": [worker.steps for worker in net.decode],
        "requests": requests,
    }


if __name__ == "__main__":
    init_none_hash(sha256)
    with open(sys.argv[1]) as stream:
        for line in stream:
            print(json.dumps(serve(json.loads(line))))
