"""SGLang: the event loops of ranks with data-parallel attention, in step; run in SGLang's environment as CASES.

A case is as in sglang_scheduler.py, with `ranks`, and `cost` has the terms of experts too; request n comes to rank n
modulo `ranks`. It prints, a case a line, SGLang's version, of each rank its steps and the number of its idle batches,
and of each request what sglang_scheduler.py prints.

SGLang's, unmodified: what sglang_scheduler.py has, and SchedulerDPAttnAdapter, which gathers what each rank plans and
makes idle batches. Ours are the threads, one a rank, the gather between them (all go on at the latest clock), and an
idle server: all ranks wait for the next request of any.
"""

import json
import sys
import threading
import types
from importlib.metadata import version

import sglang_scheduler
import torch
from sglang.srt import runtime_context
from sglang.srt.managers.scheduler_components import dp_attn
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang_scheduler import Done, Server

NEVER = float("inf")
HERE = threading.local()  # .server: the rank of this thread


class Group:
    """What the ranks tell each other: a thread gives its part, and gets those of all."""

    def __init__(self, case):
        self.case, self.count = case, case["ranks"]
        self.barrier, self.parts = threading.Barrier(self.count), [None] * self.count

    def tell(self, place, part):
        self.parts[place] = part
        self.barrier.wait()
        parts = list(self.parts)
        self.barrier.wait()
        return parts


def gather(info, device, group, use_all_reduce=False):
    """MLPSyncBatchInfo.all_gather between threads: what SGLang's makes of the rows of all ranks."""
    server = HERE.server
    parts = server.group.tell(server.place, (server.now, info._get_local_tensor(device="cpu").tolist()))
    server.now = max(now for now, _ in parts)
    info.tp0_info_cpu = torch.tensor([row for _, row in parts])
    columns = info.tp0_info_cpu.T.tolist()
    info.global_num_tokens, info.global_num_tokens_for_logprob = columns[0], columns[1]
    info.can_run_decode_cuda_graph, info.is_extend_in_batch = bool(min(columns[2])), bool(max(columns[3]))
    info.can_run_prefill_cuda_graph, info.prefill_cuda_graph_max_prefix_len = bool(min(columns[6])), max(columns[7])
    info.can_run_draft_cuda_graph, info.any_health_check = bool(min(columns[8])), bool(max(columns[9]))
    info.global_attention_pairs = columns[10]


class Rank(Server):
    """A rank: SGLang's scheduler, whose forward pass begins and ends with those of the others."""

    def __init__(self, case, place, group):
        self.group, self.place, self.idles = group, place, 0
        super().__init__(case)
        self.next = place
        self.require_mlp_sync = True
        runner = types.SimpleNamespace(
            prefill_cuda_graph_runner=None, spec_algorithm=SpeculativeAlgorithm.NONE, model_config=self.model_config,
            attn_backend=types.SimpleNamespace(folds_encoder_swa_replay=False),
        )  # fmt: skip
        self.dp_attn_adapter = dp_attn.SchedulerDPAttnAdapter(
            model_runner=runner, req_to_token_pool=self.req_to_token_pool, tree_cache=self.tree_cache,
            token_to_kv_pool_allocator=self.token_to_kv_pool_allocator, offload_tags=set(),
            model_config=self.model_config, enable_overlap=self.enable_overlap, spec_algorithm=self.spec_algorithm,
            get_require_mlp_sync=lambda: True,
        )  # fmt: skip

    def ingest_requests(self, stop_at_pause=False):
        while self.next < len(self.rows) and self.rows[self.next]["arrival"] <= self.now:
            self._add_request_to_queue(self.request(self.next))
            self.next += self.group.count

    def request(self, number):
        req = super().request(number)
        req.logprob_start_len = -1  # as handle_generate_request leaves it, without log probabilities
        return req

    def run_batch(self, batch, pp_proxy_tensors=None):
        if not batch.forward_mode.is_idle():
            return super().run_batch(batch, pp_proxy_tensors)
        self.forward_ct += 1
        self.idles, self.retried = self.idles + 1, False
        self.free = max(self.free, self.now) + self.seconds([])
        done = Done(self, self.free) if self.enable_overlap else None  # else no copy is waited for
        return GenerationBatchResult(next_token_ids=torch.zeros(0, dtype=torch.int64), copy_done=done)

    def seconds(self, parts):
        """Of the slowest rank, and the experts of all tokens."""
        cost = self.case["cost"]
        told = self.group.tell(self.place, (super().seconds(parts), sum(chunk for _, _, chunk in parts)))
        tokens = sum(number for _, number in told)
        touched = cost["expert_step_s"] * (1 - (1 - cost["expert_share"]) ** tokens)
        return max(seconds for seconds, _ in told) + max(cost["expert_token_s"] * tokens, touched) / self.group.count

    def process_batch_result(self, batch, result):
        if batch.forward_mode.is_idle():
            return self.batch_result_processor.process_batch_result_idle(batch, result)
        return super().process_batch_result(batch, result)

    def on_idle(self):
        """No rank has a batch: those that have nothing left reset their ratio, and all wait for the next request."""
        empty = not self.running_batch.reqs and self.chunked_req is None and not self.waiting_queue
        if empty:
            self.new_token_ratio_tracker.reset()
        arrival = self.rows[self.next]["arrival"] if self.next < len(self.rows) else NEVER
        told = self.group.tell(self.place, (empty, self.retried, arrival))
        if not all(part[0] for part in told) and not self.retried:  # a preemption may have made room
            self.retried = True
            return
        at, self.retried = min(part[2] for part in told), False
        if at < NEVER:
            self.now = max(self.now, at)
        elif not all(part[0] for part in told):
            raise RuntimeError("stuck: a request does not fit")
        else:
            self.gracefully_exit = True

    def run(self):
        HERE.server = self
        try:
            self.event_loop_overlap() if self.enable_overlap else self.event_loop_normal()
        except threading.BrokenBarrierError:
            pass
        except BaseException:
            self.group.barrier.abort()
            raise


def serve(case):
    """What the ranks did, and the times of each request."""
    group = Group(case)
    ranks = [Rank(case, place, group) for place in range(group.count)]
    no_group = types.SimpleNamespace(cpu_group=None, device_group=None, device="cpu")
    runtime_context.get_parallel().override_permanently(
        num_dp_ranks=group.count, tp_group=no_group, attn_tp_size=1, attn_cp_size=1
    )
    threads = [threading.Thread(target=rank.run) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    requests = []
    for row in range(len(case["requests"])):
        rank = ranks[row % group.count]
        requests.append([rank.cached[row], *(times[row] for times in rank.times), rank.retractions[row]])
    return {
        "version": version("sglang"), "steps": [rank.steps for rank in ranks],
        "dummies": [rank.idles for rank in ranks], "requests": requests,
    }  # fmt: skip


if __name__ == "__main__":
    dp_attn.MLPSyncBatchInfo.all_gather = gather
    sglang_scheduler.runtime_context = runtime_context
    with open(sys.argv[1]) as stream:
        for line in stream:
            print(json.dumps(serve(json.loads(line))), flush=True)
