"""SGLang: its own Scheduler serves requests under a clock of ours; run in SGLang's environment as CASES JSON lines.

A case has block_size (tokens of an id), capacity (tokens of the KV pool, whole pages), settings (SGLang's server args;
page_size, chunked_prefill_size and max_running_requests must be among them), env (constants of environ.py, which stay
set for the cases after it), ignore_eos, cost (the terms of a step's time) and requests: arrival (seconds), ids (of the
prompt's blocks), tokens, output, limit (max_new_tokens; where it is more than output, a stop token ends the output) and
priority. max_plans, where it is given, ends a case early. It prints, a case a line, SGLang's version, the steps
(`[begin, kind, [[row, tokens before, tokens], ...], [rows retracted or preempted since the last step]]`) and for each
request `[cached tokens, begin of its first step, first token, end, retractions and preemptions]`; with `reports` also
what it publishes for a controller of data-parallel ranks: `[seconds, running, waiting, tokens]`.

SGLang's, unmodified: the Scheduler class with both event loops, SchedulerRecvSkipper, SchedulePolicy, PrefillAdder,
ScheduleBatch, Req, the processing of results, the token ratio, UnifiedRadixCache (its default tree, with the Rust
core), ReqToTokenPool and the allocators. Ours: the clock, the arrival of requests, the forward pass (`run_batch`: one
token a request), what an idle server does (`on_idle`: it resets the ratio as SGLang does, then waits), a hash of
requests (see Numbered) and stand-ins for parts that are off (metrics, output streams, LoRA, grammars, beams, host
caches). The CPU takes no time.
"""

import json
import sys
import types
from array import array

from sglang_absent import stand_in

ABSENT = """
    sgl_kernel flashinfer cuda openai triton_kernels flash_attn xgrammar llguidance outlines outlines_core datasets
    compressed_tensors gguf openai_harmony kernels deep_gemm deep_ep tilelang torch_memory_saver modelscope IPython
    mooncake cutlass quack interegular torchao flash_mla tvm_ffi nixl lmcache pynvml anthropic uvicorn watchfiles
    multipart blobfile timm
"""  # imported by SGLang, not used here
DUMMY = (
    "sglang.srt.multimodal",
    "sglang.srt.parser",
    "sglang.srt.entrypoints",
    "sglang.srt.sampling.custom_logit_processor",
    "sglang.srt.configs.deepseek_ocr",
    "sglang.srt.configs.internvl",
)

stand_in(ABSENT.split(), DUMMY)

from importlib.metadata import version  # noqa: E402

import torch  # noqa: E402
from sglang.srt import runtime_context  # noqa: E402
from sglang.srt.disaggregation.utils import DisaggregationMode  # noqa: E402
from sglang.srt.environ import envs  # noqa: E402
from sglang.srt.managers import schedule_policy, scheduler  # noqa: E402
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch  # noqa: E402
from sglang.srt.managers.scheduler_components.batch_result_processor import (  # noqa: E402
    SchedulerBatchResultProcessor,
)
from sglang.srt.managers.scheduler_components.recv_skipper import SchedulerRecvSkipper  # noqa: E402
from sglang.srt.managers.utils import GenerationBatchResult  # noqa: E402
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool  # noqa: E402
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType  # noqa: E402
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache  # noqa: E402
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402
from sglang.srt.server_args import ServerArgs  # noqa: E402
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm  # noqa: E402

STOP = 1  # the token that ends an output before its limit; no prompt has it
OUTPUTS = 1 << 40  # tokens from here on are outputs
VOCABULARY = 1 << 62

torch.set_num_threads(1)  # small tensors: threads that wait for each other take ten times as long
scheduler.get_resolved_model_impl = lambda config: None  # it would import every model of SGLang


class Off:
    """Stands for a part that is off: every attribute and every call of it is another one, and false."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Off()

    def __call__(self, *_, **__):
        return Off()

    def __bool__(self):
        return False


def raise_failed(text, *values):
    if text.startswith("load snapshot"):
        raise RuntimeError(text % values)


class Zeros:
    """Figures that are not measured here."""

    def __getattr__(self, name):
        return 0.0


class Beams(Off):
    """No beam search."""

    def pending_member_rows(self, batch):
        return 0

    def commit_decode(self, batch):
        return set()


class OneRank(Off):
    """No data parallel attention: batches stay as they are."""

    def maybe_prepare_mlp_sync_batch(self, batch, need_sync=None):
        return batch

    def maybe_convert_decode_to_extend(self, batch):
        return batch

    def prepare_for_forward(self, batch, chunked_req=None):
        return batch


class Numbered(Req):
    """A request that hashes as its row, so that SGLang's sets of requests have one order."""

    row = -1

    def __hash__(self):
        return self.row


class Done:
    """The end of a forward pass; who waits for it moves the clock."""

    def __init__(self, server, time):
        self.server, self.time = server, time

    def synchronize(self):
        self.server.now = max(self.server.now, self.time)


def publish(case):
    """Make the case's settings those of the process."""
    for name, value in case.get("env", {}).items():
        if name == "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION":
            schedule_policy.CLIP_MAX_NEW_TOKENS = value
        else:
            getattr(envs, name).set(value)
    fixed = {"device": "cpu", "attention_backend": "torch_native", "sampling_backend": "pytorch"}
    runtime_context.publish(ServerArgs(model_path="dummy", **fixed, **case["settings"]), role="scheduler")
    parallel = runtime_context.get_parallel()
    seats = case["settings"]["max_running_requests"]
    ranks = dict.fromkeys(("pp_rank", "attn_tp_rank", "attn_cp_rank", "dp_rank"), 0)
    parallel.override_permanently(**ranks, pp_max_micro_batch_size=seats)


class Server(scheduler.Scheduler):
    """SGLang's Scheduler with the parts that a scheduler needs, and a clock that the cost of each step moves."""

    def __init__(self, case):
        publish(case)
        settings = runtime_context.get_schedule()
        self.case, self.rows, self.size = case, case["requests"], case["block_size"]
        self.now, self.free, self.next = 0.0, 0.0, 0
        self.steps, self.retracted = [], []
        count = len(self.rows)
        self.cached, self.times = [-1] * count, [[None] * count for _ in range(3)]
        self.retractions = [0] * count
        self.retried = False
        self.plans_left = case.get("max_plans", -1)
        self.parts_off()
        self.page_size, self.max_running_requests = settings.page_size, settings.max_running_requests
        self.max_prefill_tokens, self.schedule_policy = settings.max_prefill_tokens, settings.schedule_policy
        self.enable_overlap = not settings.disable_overlap_schedule
        self.enable_priority_scheduling = settings.enable_priority_scheduling
        self.schedule_low_priority_values_first = settings.schedule_low_priority_values_first
        self.priority_scheduling_preemption_threshold = settings.priority_scheduling_preemption_threshold
        self.pools(case["capacity"])
        self.init_running_status_of_case()
        self.init_schedule_policy()
        self.init_chunked_prefill()
        self.maybe_init_dynamic_chunk_sizer()
        self.recv_skipper = SchedulerRecvSkipper.maybe_create()
        self.processor()
        self.reports = []
        if case.get("reports"):
            self.publish_loads()

    def publish_loads(self):
        """SGLang's own count of its load, and a writer of snapshots."""
        self.session_controller = self.hisparse_coordinator = None
        self.full_tokens_per_layer = self.swa_tokens_per_layer = None
        self.enable_hisparse, self.server_args = False, None
        reporter = self.metrics_reporter
        reporter.recent_cache_hit_rate, reporter.stats = 0.0, Zeros()
        self.init_pool_stats_observer()
        self.init_load_inquirer()
        scheduler.logger.warning = raise_failed  # a snapshot that fails is only a warning there
        interval = runtime_context.get_observability().load_snapshot_publish_interval
        self.load_snapshot_writer = types.SimpleNamespace(
            publish_counter=0, publish_interval=interval, write=self.write_load
        )

    def write_load(self, load):
        self.reports.append([self.now, load.num_running_reqs, load.num_waiting_reqs, load.num_total_tokens])

    def parts_off(self):
        for name in (
            "enable_hierarchical_cache", "enable_hicache_storage", "enable_lmcache", "enable_hisparse", "enable_lora",
            "enable_unified_cache_external_linker", "enable_unified_memory", "enable_fpm", "is_hybrid_swa",
            "require_mlp_sync", "enable_lora_overlap_loading", "abort_on_priority_when_disabled", "is_hybrid_ssm",
        ):  # fmt: skip
            setattr(self, name, False)
        for name in (
            "dllm_config", "hisparse_coordinator", "decode_offload_manager", "lora_drainer", "min_free_slots_delayer",
            "truncation_align_size", "max_queued_requests", "max_new_tokens_limit", "sliding_window_size",
            "scripted_scheduler_hook", "metrics_collector", "model_worker", "draft_worker",
        ):  # fmt: skip
            setattr(self, name, None)
        self.metrics_reporter, self.output_streamer, self.load_publisher = Off(), Off(), Off()
        self.load_inquirer, self.profiler_manager, self.grammar_manager = Off(), Off(), Off()
        self.grammar_manager.has_waiting_grammars = lambda: False
        self.load_inquirer._get_num_pending_tokens = lambda **_: 0
        self.beam_coordinator, self.dp_attn_adapter, self.ngram_embedding_manager = Beams(), OneRank(), OneRank()
        self.scheduler_stage_metrics = None
        self.tp_worker = types.SimpleNamespace(
            model_runner=types.SimpleNamespace(attn_backend=object(), prefill_aware_swa=False)
        )
        self.model_config = types.SimpleNamespace(
            is_encoder_decoder=False,
            vocab_size=VOCABULARY,
            is_multimodal=False,
            self_opened_think_start_ids=None,
            think_end_ids=None,
        )
        self.dllm_manager = types.SimpleNamespace(any_staging_reqs=lambda: False)
        self.disaggregation_mode = DisaggregationMode.NULL
        self.spec_algorithm = SpeculativeAlgorithm.NONE
        self.is_generation, self.kv_shard_widening, self.device = True, 1, "cpu"
        self.max_req_len = 1 << 40

    def pools(self, capacity):
        self.max_total_num_tokens = capacity
        settings = (torch.int64, "cpu", None, False)
        if self.page_size == 1:
            self.token_to_kv_pool_allocator = TokenToKVPoolAllocator(capacity, *settings)
        else:
            self.token_to_kv_pool_allocator = PagedTokenToKVPoolAllocator(capacity, self.page_size, *settings)
            self.token_to_kv_pool_allocator.use_triton_kernels = False
        longest = max(row["tokens"] + max(row["output"], row.get("limit", 0)) for row in self.rows)
        width = min(capacity, longest + self.page_size) + 8
        self.req_to_token_pool = ReqToTokenPool(self.max_running_requests, width, "cpu", False)
        self.tree_cache = UnifiedRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=self.req_to_token_pool,
                page_size=self.page_size,
                token_to_kv_pool_allocator=self.token_to_kv_pool_allocator,
                tree_components=(ComponentType.FULL,),
                is_eagle=self.case.get("bigram", False),
            )
        )

    def init_running_status_of_case(self):
        self.waiting_queue, self.running_batch = [], ScheduleBatch(reqs=[], batch_is_full=False)
        self.cur_batch_for_debug = self.last_batch = None
        self.result_queue, self.forward_ct, self.processed_tokens_counter = [], 0, 0
        self.enable_skip_finishing_decode = False
        self.gracefully_exit = self._engine_paused = self._sched_idled = False

    def processor(self):
        self.batch_result_processor = SchedulerBatchResultProcessor(
            is_generation=True, disaggregation_mode=self.disaggregation_mode, enable_overlap=self.enable_overlap,
            enable_overlap_mlx=False, model_config=self.model_config, tree_cache=self.tree_cache,
            token_to_kv_pool_allocator=self.token_to_kv_pool_allocator, hisparse_coordinator=None,
            req_to_token_pool=self.req_to_token_pool, decode_offload_manager=None, metrics_collector=None,
            metrics_reporter=types.SimpleNamespace(
                num_generated_tokens=0, forward_ct_decode=0, report_decode_stats=Off(), report_prefill_stats=Off()
            ),
            draft_worker=None, model_worker=None, logprob_result_processor=Off(), output_streamer=Off(),
            beam_coordinator=self.beam_coordinator, abort_request=Off(),
        )  # fmt: skip

    def get_next_batch_to_run(self, running_batch, last_batch):
        """SGLang's plan of the next step; the loop ends after max_plans of them."""
        self.plans_left -= 1
        self.gracefully_exit = self.plans_left == 0
        return super().get_next_batch_to_run(running_batch=running_batch, last_batch=last_batch)

    def ingest_requests(self, stop_at_pause=False):
        """Add the requests that have arrived, if SGLang looks for them in this turn."""
        if self.recv_skipper is not None and not self.recv_skipper.handle(self.last_batch):
            return
        while self.next < len(self.rows) and self.rows[self.next]["arrival"] <= self.now:
            self._add_request_to_queue(self.request(self.next))
            self.next += 1

    def request(self, number):
        row = self.rows[number]
        tokens = array("q", [2 + id_ for id_ in row["ids"] for _ in range(self.size)][: row["tokens"]])
        sampling = SamplingParams(
            max_new_tokens=row.get("limit", row["output"]), stop_token_ids=[STOP],
            ignore_eos=self.case.get("ignore_eos", False),
        )  # fmt: skip
        sampling.normalize(None)
        req = Numbered(str(number), "", tokens, sampling, priority=row.get("priority", 0), vocab_size=VOCABULARY)
        req.row = number
        self.init_req_max_new_tokens(req)
        return req

    def _add_request_to_queue(self, req, is_retracted=False):
        if req.retraction_count > self.retractions[req.row]:
            self.retracted.append(req.row)
            self.retractions[req.row] += 1
        super()._add_request_to_queue(req, is_retracted)

    def run_batch(self, batch, pp_proxy_tensors=None):
        """A forward pass: it begins when the model is free, and gives one token a request."""
        self.forward_ct += 1
        self.retried = False
        batch.forward_iter, batch.input_ids = self.forward_ct, None
        batch.prefill_input_ids_cpu = batch.mix_running_indices = None
        kind = "mixed" if batch.forward_mode.is_mixed() else "prefill" if batch.forward_mode.is_extend() else "decode"
        rows = [req.row for req in batch.reqs]
        if kind == "decode":
            parts = [[row, length - 1, 1] for row, length in zip(rows, batch.seq_lens_cpu.tolist(), strict=True)]
        else:
            parts = [list(part) for part in zip(rows, batch.prefix_lens, batch.extend_lens, strict=True)]
        begin = max(self.free, self.now)
        self.free = begin + self.seconds(parts)
        for row, before, _ in parts:
            if self.cached[row] < 0:
                self.cached[row], self.times[0][row] = before, begin
        self.steps.append([begin, kind, parts, sorted(self.retracted)])
        self.retracted = []
        return GenerationBatchResult(
            next_token_ids=torch.zeros(len(rows), dtype=torch.int64), copy_done=Done(self, self.free)
        )

    def seconds(self, parts):
        tokens, pairs, read, cost = 0, 0, 0, self.case["cost"]
        for row, before, chunk in parts:
            tokens += chunk
            if chunk == 1 and before >= self.rows[row]["tokens"]:
                read += before + 1
            else:
                pairs += chunk * (2 * before + chunk)
                read += before
        computing = cost["token_s"] * tokens + cost["pair_s"] * pairs
        return max(computing, cost["step_s"] + cost["read_s"] * read) + cost["overhead_s"]

    def _apply_war_barrier(self):
        pass

    def launch_batch_sample_if_needed(self, batch_result, cur_batch):
        pass

    def process_batch_result(self, batch, result):
        """SGLang's processing, once the tokens are known."""
        self.publish_load_snapshot(force=batch.forward_mode.is_extend())
        result.copy_done.synchronize()
        result.copy_done = None
        result.next_token_ids = torch.tensor([self.token(req) for req in batch.reqs], dtype=torch.int64)
        if batch.forward_mode.is_decode():
            self.batch_result_processor.process_batch_result_decode(batch, result)
        else:
            self.batch_result_processor.process_batch_result_prefill(batch, result)
        self.note(batch.reqs)

    def note(self, reqs):
        """When the first token of requests came, and the last one."""
        for req in reqs:
            if req.output_ids and self.times[1][req.row] is None:
                self.times[1][req.row] = self.now
            if req.finished() and self.times[2][req.row] is None:
                self.times[2][req.row] = self.now

    def token(self, req):
        """The next token; the last one is the stop token where the limit is larger."""
        got, row = len(req.output_ids), self.rows[req.row]
        if got + 1 == row["output"] < req.sampling_params.max_new_tokens:
            return STOP
        return OUTPUTS + req.row * 1_000_000 + got

    def on_idle(self):
        """Reset the ratio if nothing is left to do, as SGLang does, and wait for the next request."""
        if not self.running_batch.reqs and self.chunked_req is None and not self.waiting_queue:
            self.new_token_ratio_tracker.reset()
        elif not self.retried:  # a preemption may have made room
            self.retried = True
            return
        self.publish_load_snapshot(force=True)
        if self.next < len(self.rows):
            self.now = max(self.now, self.rows[self.next]["arrival"])
        elif self.waiting_queue or self.running_batch.reqs:
            raise RuntimeError("stuck: a request does not fit")
        else:
            self.gracefully_exit = True

    def publish_load_snapshot(self, force=False):
        if self.case.get("reports"):
            super().publish_load_snapshot(force=force)


def serve(case):
    """The steps of a case, and the times of each request."""
    server = Server(case)
    server.event_loop_overlap() if server.enable_overlap else server.event_loop_normal()
    if server.plans_left:
        assert server.tree_cache.protected_size() == 0
        free = server.token_to_kv_pool_allocator.available_size()
        assert server.tree_cache.evictable_size() + free == case["capacity"]
    return {
        "version": version("sglang"),
        "steps": server.steps,
        **({"reports": server.reports} if case.get("reports") else {}),
        "requests": list(map(list, zip(server.cached, *server.times, server.retractions, strict=True))),
    }


if __name__ == "__main__":
    with open(sys.argv[1]) as stream:
        for line in stream:
            print(json.dumps(serve(json.loads(line))), flush=True)
