"""vLLM: its own Scheduler serves requests under a clock of ours; run in vLLM's environment as CASES (JSON lines).

A case has block_size, capacity (usable blocks), settings (fields of vLLM's SchedulerConfig; "async" chooses
AsyncScheduler), cost (the five terms of a step's time) and requests: arrival (seconds), ids (of the prompt's blocks),
tokens, output and, for the policy "priority", priority. For a hybrid model it has groups, retention_interval and
internal_checkpoint, as vllm_hybrid.py reads them; `drafting` is as in vllm_cache.py. It prints, a case a line, vLLM's
version, the steps (`[begin, [[row, computed tokens, scheduled tokens], ...], [preempted rows]]`) and for each request
`[cached tokens, begin of its first step, first token, end, preemptions]`; with `reports` also what its engine core
would report to a coordinator: `[seconds, running, waiting, use of the KV cache]`.

Scheduler, requests, hashes, blocks and queues are vLLM's, unmodified. Ours are the clock, the loop of its EngineCore
(step, or step_with_batch_queue for async), and a model that returns one token wherever a prompt is computed.
"""

import json
import math
import sys
import types

import vllm_absent  # noqa: F401 - before vllm
import vllm_cache
import vllm_hybrid
from vllm import __version__
from vllm.config import SchedulerConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

LONGEST = 1 << 40


class Nothing:
    """Stands for a part that is off: all of its attributes are false, absent or nothing to do."""

    def __getattr__(self, name):
        return None


def groups_of(case):
    """The cache groups of a case; full attention is one group."""
    return case.get("groups") or [{"kind": "full", "block_size": case["block_size"]}]


def settings_of(case):
    """VllmConfig's parts that the scheduler reads, with vLLM's defaults."""
    has_state = any(group["kind"] == "state" for group in groups_of(case))
    size = math.lcm(*(group["block_size"] for group in groups_of(case)))
    scheduler = SchedulerConfig(
        max_model_len=LONGEST, is_encoder_decoder=False, **{k: v for k, v in case["settings"].items() if k != "async"}
    )
    model = types.SimpleNamespace(
        uses_mrope=False, is_encoder_decoder=False, max_model_len=LONGEST, runner_type="generate", is_diffusion=False,
        supports_multimodal_inputs=False, return_sampling_mask=False,
    )  # fmt: skip
    cache = types.SimpleNamespace(
        num_gpu_blocks=case["capacity"] + 1, enable_prefix_caching=True, block_size=size,
        enable_mamba_shared_prefix_checkpoint=False, mamba_cache_mode="align" if has_state else "none",
    )  # fmt: skip
    parallel = types.SimpleNamespace(
        data_parallel_index=0, decode_context_parallel_size=1, prefill_context_parallel_size=1,
        pipeline_parallel_size=1, data_parallel_size=1,
    )  # fmt: skip
    observability = types.SimpleNamespace(
        per_request_spec_decode_metrics=None, kv_cache_metrics=False, enable_mfu_metrics=False,
        enable_logging_iteration_details=False,
    )  # fmt: skip
    drafts, options, lookahead = vllm_cache.drafter_of(case)
    # no step has draft tokens: only what a drafter changes in the cache is tried
    drafter = types.SimpleNamespace(
        use_eagle=lambda: True, needs_eagle_block_drop=lambda: True, use_eagle_block_drop=lambda: True,
        disable_eagle_block_drop=False, max_num_new_slots_for_drafting=0, num_speculative_tokens_per_batch_size=None,
    )  # fmt: skip
    return types.SimpleNamespace(
        scheduler_config=scheduler, cache_config=cache, lora_config=None, model_config=model, kv_events_config=None,
        parallel_config=parallel, observability_config=observability, is_mm_encoder_only=False,
        kv_transfer_config=None, ec_transfer_config=None, speculative_config=drafter if drafts else None,
        num_speculative_tokens=0, num_lookahead_tokens=lookahead, use_v2_model_runner=False,
        num_prefill_lookahead_tokens=options["num_prefill_lookahead"],
        num_hash_lookahead_tokens=options["num_hash_lookahead_tokens"],
        max_in_flight_tokens=(2 if case["settings"].get("async") else 1) * scheduler.max_num_batched_tokens,
        max_concurrent_batches=2 if case["settings"].get("async") else 1,
        aux_output_config=types.SimpleNamespace(enabled=False),
        ec_manager_config=types.SimpleNamespace(get_encoder_cache_manager_obj=lambda: NoEncoder),
    )  # fmt: skip


class NoEncoder:
    """The encoder cache of a model without an encoder."""

    @classmethod
    def create_manager(cls, **_):
        return cls()

    def free(self, request):
        pass

    def get_freed_mm_hashes(self):
        return []

    def get_manager_metadata(self):
        return None


class Server:
    """One Scheduler, and a clock that the cost of each step moves."""

    def __init__(self, case):
        size, groups = case["block_size"], groups_of(case)
        checkpoint = int(case.get("internal_checkpoint", 0))
        self.drafts, options, lookahead = vllm_cache.drafter_of(case)
        sizes = [group["block_size"] for group in groups]
        config = KVCacheConfig(
            num_blocks=case["capacity"] + 1,  # block 0 is the null block
            kv_cache_tensors=[],
            kv_cache_groups=[
                KVCacheGroupSpec([f"layer{i}"], vllm_hybrid.spec_of(group, checkpoint, lookahead))
                for i, group in enumerate(groups)
            ],
            prefix_cache_retention_interval=case.get("retention_interval", 0),
        )
        structured = types.SimpleNamespace(accept_tokens=lambda *_: True, should_advance=lambda *_: False)
        kind = AsyncScheduler if case["settings"].get("async") else Scheduler
        unit = math.gcd(*sizes)
        self.scheduler = kind(
            settings_of(case), config, structured, math.lcm(*sizes), hash_block_size=unit, log_stats=False
        )
        self.hasher = get_request_block_hasher(unit, sha256, options["num_hash_lookahead_tokens"])
        self.case, self.size, self.now, self.next = case, size, 0.0, 0
        self.rows = case["requests"]
        self.steps, self.cached = [], [-1] * len(self.rows)
        self.begin, self.first, self.end = ([None] * len(self.rows) for _ in range(3))
        self.preempted = [0] * len(self.rows)
        self.got = [0] * len(self.rows)
        self.reports, self.reported = [], (0, 0)

    def report(self):
        """What EngineCoreProc reports before and after a step: the counts, if they have changed."""
        counts = self.scheduler.get_request_counts()
        if counts != self.reported:
            self.reported = counts
            self.reports.append([self.now, *counts, self.scheduler.get_kv_cache_usage()])

    def arrive(self):
        """Add the requests that have arrived."""
        while self.next < len(self.rows) and self.rows[self.next]["arrival"] <= self.now:
            row = self.rows[self.next]
            tokens = [id_ for id_ in row["ids"] for _ in range(self.size)][: row["tokens"]]
            self.scheduler.add_request(
                Request(
                    f"{self.next:09}",
                    tokens,
                    SamplingParams(max_tokens=row["output"], ignore_eos=True),
                    None,
                    arrival_time=row["arrival"],
                    block_hasher=self.hasher,
                    priority=row.get("priority", 0),
                )
            )
            self.next += 1

    def plan(self):
        """The next step: its output, its seconds, and a record."""
        requests = self.scheduler.requests
        output = self.scheduler.schedule()
        parts, cost = [], self.case["cost"]
        for name, count in output.num_scheduled_tokens.items():
            request, row = requests[name], int(name)
            before = request.num_computed_tokens - count
            parts.append([row, before, count])
            if self.cached[row] < 0:
                self.cached[row] = before
        decodes = [count == 1 and before >= self.rows[row]["tokens"] for row, before, count in parts]
        tokens = sum(count for _, _, count in parts)
        read = sum(before + decode for (_, before, _), decode in zip(parts, decodes, strict=True))
        pairs = sum(
            count * (2 * before + count)
            for (_, before, count), decode in zip(parts, decodes, strict=True)
            if not decode
        )
        seconds = (
            max(cost["token_s"] * tokens + cost["pair_s"] * pairs, cost["step_s"] + cost["read_s"] * read)
            + cost["overhead_s"]
        )
        preempted = sorted(int(name) for name in output.preempted_req_ids or ())
        for row in preempted:
            self.preempted[row] += 1
        return output, seconds, parts, preempted

    def finish(self, output, parts):
        """Give the scheduler the step's tokens: one for each request whose tokens are all computed."""
        names = list(output.num_scheduled_tokens)
        sampled = []
        for row, before, count in parts:
            complete = before + count >= self.rows[row]["tokens"] + self.got[row]
            sampled.append([-1 - row * 1_000_000 - self.got[row]] if complete else [])
            if complete:
                self.got[row] += 1
                if self.first[row] is None:
                    self.first[row] = self.now
                if self.got[row] == self.rows[row]["output"]:
                    self.end[row] = self.now
        self.scheduler.num_spec_tokens = int(self.drafts)  # then it caches what the tokens known by now allow
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)}, sampled_token_ids=sampled,
                logprobs=None, prompt_logprobs_dict={}, pooler_output=[],
            ),
        )  # fmt: skip
        self.scheduler.num_spec_tokens = 0

    def record(self, parts, preempted):
        for row, _, _ in parts:
            if self.begin[row] is None:
                self.begin[row] = self.now
        self.steps.append([self.now, parts, preempted])

    def run(self):
        """EngineCore.step, until nothing is left."""
        while True:
            self.arrive()
            if not self.scheduler.has_requests():
                if self.next == len(self.rows):
                    return
                self.now = max(self.now, self.rows[self.next]["arrival"])
                continue
            self.report()
            output, seconds, parts, preempted = self.plan()
            if not parts and not preempted:
                if self.scheduler.has_unfinished_requests():
                    if self.next == len(self.rows):
                        raise RuntimeError("stuck: a request does not fit")
                    self.now = max(self.now, self.rows[self.next]["arrival"])
                continue
            if parts:
                self.record(parts, preempted)
                self.now += seconds
                self.finish(output, parts)
                self.report()
            else:
                self.steps.append([self.now, [], preempted])

    def run_async(self):
        """EngineCore.step_with_batch_queue with two batches: a step is planned while the one before runs."""
        queue = []  # (output, parts, seconds), the oldest first
        free = 0.0  # when the model has run all steps in the queue
        while True:
            self.arrive()
            if not self.scheduler.has_requests() and not queue:
                if self.next == len(self.rows):
                    return
                self.now = max(self.now, self.rows[self.next]["arrival"])
                continue
            self.report()
            if self.scheduler.has_requests():
                output, seconds, parts, preempted = self.plan()
                begin = max(free, self.now)
                if parts or preempted:
                    self.record_at(begin, parts, preempted)
                free = begin + seconds if parts else free
                queue.append((output, parts, free))
                if len(queue) < 2 and (parts or self.scheduler.has_requests()):
                    self.report()
                    continue
            output, parts, done = queue.pop(0)
            if parts:
                self.now = max(self.now, done)
            self.finish(output, parts)
            self.report()

    def record_at(self, begin, parts, preempted):
        for row, _, _ in parts:
            if self.begin[row] is None:
                self.begin[row] = begin
        self.steps.append([begin, parts, preempted])


def serve(case):
    """The steps of a case, and the times of each request."""
    server = Server(case)
    server.run_async() if case["settings"].get("async") else server.run()
    return {
        "version": __version__,
        "steps": server.steps,
        **({"reports": server.reports} if case.get("reports") else {}),
        "requests": list(
            map(list, zip(server.cached, server.begin, server.first, server.end, server.preempted, strict=True))
        ),
    }


if __name__ == "__main__":
    init_none_hash(sha256)
    with open(sys.argv[1]) as stream:
        for line in stream:
            print(json.dumps(serve(json.loads(line))), flush=True)
