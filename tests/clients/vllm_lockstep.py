"""vLLM: the loops of its data-parallel ranks, in step under a clock of ours; run in vLLM's environment as CASES.

A case is as in vllm_scheduler.py, with `ranks`, and `cost` has the terms of experts too; request n comes to rank n
modulo `ranks`. It prints, a case a line, vLLM's version, of each rank its steps, the number of its dummy batches and
what it reports to the coordinator ([seconds, running, waiting, use of the KV cache, wave, step], or [seconds] where a
wave begins or ends), and of each request what vllm_scheduler.py prints.

DPEngineCoreProc's loop, its waves, its queue of batches and its scheduler are vLLM's, unmodified; a thread has one
rank. Ours are the clock of each thread, the collectives (a thread waits for the others, and all go on at the latest
clock), the coordinator, and the executor: a step begins when the last one has ended and all hosts have come, and a
dummy batch waits for the event that its runner's input preparation records (v1/worker/gpu_model_runner.py).
"""

import json
import sys
import threading
import types
from collections import deque
from concurrent.futures import Future

import vllm_absent  # noqa: F401 - before vllm
from vllm import __version__
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.engine import EngineCoreRequestType, core
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput
from vllm.v1.request import Request
from vllm_scheduler import Nothing, Server

NEVER = float("inf")
DUMMY = (0, 0, 1)


class Group:
    """What the ranks tell each other: a thread gives its part, and gets what a function makes of all parts."""

    def __init__(self, case):
        self.case, self.count = case, case["ranks"]
        self.barrier, self.parts, self.answer = threading.Barrier(self.count), [None] * self.count, None
        self.end = self.before = self.begin = 0.0

    def tell(self, place, part, make):
        self.parts[place] = part
        if self.barrier.wait() == 0:
            self.answer = make(self.parts)
        self.barrier.wait()
        return self.answer

    def step(self, parts):
        """All hosts have planned: (clock, seconds without experts, tokens) of each."""
        cost, tokens = self.case["cost"], sum(part[2] for part in parts)
        met = max(part[0] for part in parts)
        touched = cost["expert_step_s"] * (1 - (1 - cost["expert_share"]) ** tokens)
        seconds = max(part[1] for part in parts) + max(cost["expert_token_s"] * tokens, touched) / self.count
        before, begin = self.end, max(self.end, met)
        older, self.before, self.end = self.before, before, begin + seconds
        return met, begin, self.end, older


class Host:
    """A rank: vLLM's engine core, and what it runs on."""

    def __init__(self, case, place, group):
        self.case, self.place, self.group, self.now, self.awake = case, place, group, 0.0, False
        self.server = Server(case)
        self.rows = deque((number, row) for number, row in enumerate(case["requests"]) if number % group.count == place)
        self.is_async, self.dummies, self.is_sleeping, self.last = bool(case["settings"].get("async")), 0, False, None
        self.reports = []
        self.core = core.DPEngineCoreProc.__new__(core.DPEngineCoreProc)
        parallel = types.SimpleNamespace(sync_dp_state=self.sync, data_parallel_external_lb=False)
        settings = types.SimpleNamespace(parallel_config=parallel, observability_config=Nothing())
        vars(self.core).update(
            vllm_config=settings, scheduler=self.server.scheduler, model_executor=self, input_queue=self,
            output_queue=types.SimpleNamespace(put_nowait=self.put), log_stats=False, _weight_version="",
            use_spec_decode=False, check_for_draft_tokens=False, batch_queue_size=2 if self.is_async else 1,
            batch_queue=deque(maxlen=2) if self.is_async else None, is_mm_encoder_only=False, is_pooling_model=False,
            async_scheduling=self.is_async, aborts_queue=core.queue.Queue(), engine_index=place, dp_rank=place,
            engines_running=False, shutdown_state=core.EngineShutdownState.RUNNING, has_coordinator=True,
            publish_dp_lb_stats=True, last_counts=(0, 0), process_input_queue_block=True, dp_group=None,
            enable_fault_tolerance=False, prefill_schedule_interval=1, dp_sync_interval=16,
            step_counter=0, current_wave=0, pending_pause=False, ignore_start_dp_wave=False, eep_scaling_state=None,
            _idle_state_callbacks=[], reject_new_requests=False, ft_sentinel=None,
        )  # fmt: skip
        self.core.step_fn = self.core.step_with_batch_queue if self.is_async else self.core.step

    def put(self, sent):
        """Keep what goes to the coordinator."""
        client, outputs = sent
        if client == -1:
            stats = outputs.scheduler_stats
            counts = [stats.num_running_reqs, stats.num_waiting_reqs, stats.kv_cache_usage] if stats else []
            self.reports.append([self.now, *counts, *([stats.current_wave, stats.step_counter] if stats else [])])

    # ---- the executor

    def execute_model(self, output, non_block):
        future = Future()
        parts, seconds = self.parts_of(output)
        if not output.total_num_scheduled_tokens:
            future.set_result(EMPTY_MODEL_RUNNER_OUTPUT)
            return future
        tokens = output.total_num_scheduled_tokens
        self.now, begin, end, _ = self.group.tell(self.place, (self.now, seconds, tokens), self.group.step)
        self.server.steps[-1][0] = begin
        for row, _, _ in parts:
            if self.server.begin[row] is None:
                self.server.begin[row] = begin
        self.last = output, parts, end
        future.set_result(None)
        return future

    def sample_tokens(self, grammar_output, non_block=False):
        result = Sampled(self, *self.last)
        return result if non_block else result.result()

    def execute_dummy_batch(self):
        self.dummies += 1
        _, seconds = self.seconds_of([DUMMY])
        met, begin, _, older = self.group.tell(self.place, (self.now, seconds, 1), self.group.step)
        self.now = max(met, older if self.is_async else begin)

    def parts_of(self, output):
        """The parts of a step, in seconds without experts; they are recorded, with the requests that it preempts."""
        server, parts = self.server, []
        for name, count in output.num_scheduled_tokens.items():
            before, row = server.scheduler.requests[name].num_computed_tokens - count, int(name)
            parts.append([row, before, count])
            if server.cached[row] < 0:
                server.cached[row] = before
        preempted = sorted(int(name) for name in output.preempted_req_ids or ())
        for row in preempted:
            server.preempted[row] += 1
        if parts or preempted:
            server.steps.append([max(self.now, self.group.end), parts, preempted])
        return self.seconds_of(parts)

    def seconds_of(self, parts):
        cost, rows = self.case["cost"], self.case["requests"]
        decodes = [part is DUMMY or (part[2] == 1 and part[1] >= rows[part[0]]["tokens"]) for part in parts]
        tokens = sum(count for _, _, count in parts)
        read = sum(part[1] + decode for part, decode in zip(parts, decodes, strict=True))
        pairs = sum(
            count * (2 * before + count)
            for (_, before, count), decode in zip(parts, decodes, strict=True)
            if not decode
        )
        computing = cost["token_s"] * tokens + cost["pair_s"] * pairs
        return parts, max(computing, cost["step_s"] + cost["read_s"] * read) + cost["overhead_s"]

    # ---- the inbox

    def due(self):
        return bool(self.rows) and self.rows[0][1]["arrival"] <= self.now

    def empty(self):
        return not (self.awake and self.due())

    def get_nowait(self):
        number, row = self.rows.popleft()
        tokens = [id_ for id_ in row["ids"] for _ in range(self.case["block_size"])][: row["tokens"]]
        request = Request(
            f"{number:09}", tokens, SamplingParams(max_tokens=row["output"], ignore_eos=True), None,
            arrival_time=row["arrival"], block_hasher=self.server.hasher, priority=row.get("priority", 0),
        )  # fmt: skip
        return EngineCoreRequestType.ADD, (request, self.core.current_wave)

    def get(self, block):
        """All ranks have stopped: the next request wakes them."""
        wake = max(self.now, self.rows[0][1]["arrival"]) if self.rows else NEVER
        wake = self.group.tell(self.place, wake, min)
        if wake == NEVER:
            raise SystemExit
        self.now, self.awake = wake, True
        if self.due():
            return self.get_nowait()
        return EngineCoreRequestType.START_DP_WAVE, (self.core.current_wave, None)

    # ---- the rest

    def sync(self, _, has_unfinished, pending_pause):
        parts = self.group.tell(self.place, (self.now, has_unfinished), list)
        self.now = max(now for now, _ in parts)
        self.awake = any(unfinished for _, unfinished in parts)
        return self.awake, False

    def run(self):
        try:
            self.core.run_busy_loop()
        except SystemExit:
            pass
        except BaseException:
            self.group.barrier.abort()
            raise


class Sampled:
    """The output of a step: the host that asks for it waits for the end of the step."""

    def __init__(self, host, output, parts, end):
        self.host, self.output, self.parts, self.end = host, output, parts, end

    def result(self):
        server = self.host.server
        server.now = self.host.now = max(self.host.now, self.end)
        sampled = []
        for row, before, count in self.parts:
            complete = before + count >= server.rows[row]["tokens"] + server.got[row]
            sampled.append([-1 - row * 1_000_000 - server.got[row]] if complete else [])
            if complete:
                server.got[row] += 1
                if server.first[row] is None:
                    server.first[row] = self.end
                if server.got[row] == server.rows[row]["output"]:
                    server.end[row] = self.end
        names = list(self.output.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)}, sampled_token_ids=sampled,
            logprobs=None, prompt_logprobs_dict={}, pooler_output=[],
        )  # fmt: skip


def serve(case):
    """What the ranks did, and the times of each request."""
    group = Group(case)
    hosts = [Host(case, place, group) for place in range(group.count)]
    threads = [threading.Thread(target=host.run) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    servers = [hosts[number % group.count].server for number in range(len(case["requests"]))]
    return {
        "version": __version__, "steps": [host.server.steps for host in hosts],
        "dummies": [host.dummies for host in hosts], "reports": [host.reports for host in hosts],
        "requests": [
            [server.cached[row], server.begin[row], server.first[row], server.end[row], server.preempted[row]]
            for row, server in enumerate(servers)
        ],
    }  # fmt: skip


if __name__ == "__main__":
    init_none_hash(sha256)
    core.time = types.SimpleNamespace(sleep=lambda _: None, time=lambda: 0.0, monotonic=lambda: 0.0)
    with open(sys.argv[1]) as stream:
        for line in stream:
            print(json.dumps(serve(json.loads(line))), flush=True)
