"""SGLang: its own Schedulers as prefill and decode workers, under our clock; run in SGLang's environment as CASES.

The cases are those of sglang_scheduler.py with `workers` ([prefill, decode]), `byte_s`, `latency`, `bytes_per_token`,
and `decode`, which has what differs on decode workers (capacity, settings, cost). A request goes to the prefill worker
and to the decode worker of its number, in turn, when it arrives. It prints, a case a line, SGLang's version, the steps
of each worker, and for each request `[cached tokens of the prefill and of the decode worker, begin of its first step,
when its prompt is computed, when its first transfer begins and its last one ends, first token, end, retractions]`.

SGLang's, unmodified: what sglang_scheduler.py names, the four event loops of disaggregated workers, both mixins,
PrefillBootstrapQueue, DecodePreallocQueue, DecodeTransferQueue, DecodeReqToTokenPool, the metadata buffers and their
allocator, and the arguments that it resolves for both kinds. Ours, beside that file's: the sender and the receiver with
the link (a worker has one, over which its transfers go one after another; each waits for both ends, and for the pass
that computes what it sends), the layout of the KV pool, and the copies of retracted requests (no time, no limit).
"""

import heapq
import json
import sys
import threading
import types

import sglang_scheduler as plain
import torch
from sglang.srt import runtime_context
from sglang.srt.arg_groups.pd_disaggregation_hook import handle_pd_disaggregation
from sglang.srt.disaggregation import decode as decode_side
from sglang.srt.disaggregation import prefill as prefill_side
from sglang.srt.disaggregation.base import KVPoll
from sglang.srt.disaggregation.base.conn import BaseKVReceiver, BaseKVSender, KVTransferMetric
from sglang.srt.disaggregation.utils import KVClassType
from sglang.srt.environ import envs
from sglang.srt.managers import schedule_policy
from sglang.srt.server_args import ServerArgs

NEVER = 1e300
FIRST_OUTPUT = 1 << 20  # the metadata of a transfer has 32 bits for a token
PATIENCE = 3  # turns of an idle worker that has seen all, until it waits for an event


class Sender(BaseKVSender):
    """The prefill worker's end of a request's transfers."""

    def __init__(self, mgr, bootstrap_addr, bootstrap_room, req_has_disagg_prefill_dp_rank=False):
        self.net, self.row, self.index, self.wait = mgr.net, bootstrap_room - 1, -1, None
        self.net.senders[self.row] = self
        self._early_send_wait_event = None

    def init(self, num_kv_indices, aux_index=None):
        self.index = aux_index

    def pop_decode_prefix_len(self):
        return self.net.held[self.row]

    def should_send_kv_chunk(self, num_pages, last_chunk):
        return num_pages > 0 or last_chunk

    def send(self, kv_indices, state_indices=None, num_kv_tokens=None):
        event, self._early_send_wait_event = self._early_send_wait_event, None
        self.net.send(self.row, num_kv_tokens, event.time if event else 0.0)

    def poll(self):
        net, now = self.net, self.net.prefill_of(self.row).now
        if net.reserved[self.row] is None or net.reserved[self.row] > now:
            return KVPoll.Bootstrapping
        if net.arrived[self.row] is not None and net.arrived[self.row] <= now:
            return KVPoll.Success
        return KVPoll.WaitingForInput

    def get_transfer_metric(self):
        return KVTransferMetric()

    def failure_exception(self):
        raise RuntimeError("nothing fails here")


class Receiver(BaseKVReceiver):
    """The decode worker's end."""

    def __init__(self, mgr, bootstrap_addr, bootstrap_room=None):
        self.net, self.row, self.index = mgr.net, bootstrap_room - 1, -1
        self.require_staging = self.ready = False
        self.conclude_state = None

    def init(self, prefill_dp_rank):
        self.ready = True

    def send_metadata(self, kv_indices, aux_index=None, state_indices=None, decode_prefix_len=None, **_):
        self.index = aux_index
        self.net.receivers[self.row] = self
        self.net.reserve(self.row, decode_prefix_len)

    def poll(self):
        net, now = self.net, self.net.decode_of(self.row).now
        if net.arrived[self.row] is not None and net.arrived[self.row] <= now:
            return KVPoll.Success
        return KVPoll.WaitingForInput if self.ready else KVPoll.Bootstrapping

    def failure_exception(self):
        raise RuntimeError("nothing fails here")


def kv_class(backend, kind):
    return {KVClassType.SENDER: Sender, KVClassType.RECEIVER: Receiver}[kind]


class Manager:
    """What the queues ask of a transfer engine."""

    enable_deferred_decode_kv_release = supports_host_destination = False

    def __init__(self, net):
        self.net, self.kv_args = net, types.SimpleNamespace(state_types=[])
        self.prefill_info_table = types.SimpleNamespace(get=lambda addr: types.SimpleNamespace(dp_size=1))


class Pool:
    """A KV pool without memory."""

    page_size, cpu_copy_carries_mamba = 1, False

    def maybe_get_custom_mem_pool(self):
        return None

    def get_cpu_copy(self, indices, **_):
        return None

    def load_cpu_copy(self, copy, indices, **_):
        pass


class Pass:
    """The end of the last pass that was launched, as a CUDA event that a transfer waits for."""

    def record(self, stream):
        self.time = stream.server.free


class Ended(plain.Done):
    """The end of a forward pass; who waits for it lets the others go on until then."""

    def synchronize(self):
        self.server.wait_until(max(self.server.now, self.time))


class Worker(plain.Server):
    """A worker of one kind, in a thread of its own."""

    def __init__(self, case, net, is_prefill):
        self.net, self.is_prefill = net, is_prefill
        self.queue, self.idle_turns, self.failed = [], PATIENCE, None
        self.at, self.over, self.gone = 0.0, False, False
        super().__init__(case)
        self.mine, self.others = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self.live, daemon=True)

    # -- what SGLang's scheduler needs beside sglang_scheduler's

    def parts_off(self):
        super().parts_off()
        self.enable_decode_hicache = self.enable_staging = self._war_barrier_enabled = False
        self._pending_chunked_abort_req = self.rust_server = None
        self.attn_tp_cpu_group = self.attn_cp_cpu_group = None
        self.tp_size, self.random_seed = 1, 0
        self._deferred_input_requests, self.return_health_check_ipcs = [], []
        self.server_args = types.SimpleNamespace(sampling_mask_max_tokens=None)
        self.model_config.num_key_value_heads = 1
        self.model_config.hf_config = types.SimpleNamespace(architectures=["LlamaForCausalLM"])
        runner = self.tp_worker.model_runner
        runner.effective_logical_max_total_num_tokens = self.case["capacity"]
        self.tp_worker.is_hybrid_swa = False
        self.future_map = self.schedule_stream = plain.Off()
        self.forward_stream = types.SimpleNamespace(server=self)

    def pools(self, capacity):
        disable = not self.is_prefill and not runtime_context.get_disagg().disaggregation_decode_enable_radix_cache
        params = plain.CacheInitParams
        plain.CacheInitParams = lambda **given: params(**given | {"disable": disable})
        pool = plain.ReqToTokenPool
        if not self.is_prefill:
            extra = runtime_context.get_disagg().disaggregation_decode_extra_slots
            plain.ReqToTokenPool = lambda *given: decode_side.DecodeReqToTokenPool(*given, pre_alloc_size=extra)
        super().pools(capacity)
        plain.CacheInitParams, plain.ReqToTokenPool = params, pool
        self.token_to_kv_pool_allocator._kvcache = Pool()

    def processor(self):
        self.init_disaggregation()
        super().processor()
        streamer = types.SimpleNamespace(stream_output=lambda reqs, *_: self.note(reqs))
        object.__setattr__(self.batch_result_processor, "output_streamer", streamer)

    # -- time

    def live(self):
        try:
            self.others.acquire()
            if self.is_prefill:
                loop = self.event_loop_overlap_disagg_prefill if self.enable_overlap else (
                    self.event_loop_normal_disagg_prefill
                )  # fmt: skip
            else:
                loop = self.event_loop_overlap_disagg_decode if self.enable_overlap else (
                    self.event_loop_normal_disagg_decode
                )  # fmt: skip
            loop()
        except BaseException as error:  # the main thread raises it again
            self.failed = error
        self.gone = True
        self.mine.release()

    def resume(self):
        """Let the thread go on, until it waits for a later time."""
        with runtime_context.use_context(self.context):
            self.others.release()
            self.mine.acquire()
        if self.failed is not None:
            raise self.failed

    def wait_until(self, time):
        self.at = time
        self.mine.release()
        self.others.acquire()
        self.now = max(self.now, self.at)

    def wake(self, time):
        """Something has happened."""
        self.idle_turns = 0
        if self.at >= NEVER:
            self.at = max(self.now, time)

    def ingest_requests(self, stop_at_pause=False):
        self.wait_until(NEVER if self.idle_turns >= PATIENCE and not self.queue else self.now)
        if self.over:
            self.gracefully_exit = True
        if self.recv_skipper is not None and not self.recv_skipper.handle(self.last_batch):
            return False
        rows, self.queue = self.queue, []
        for row in rows:
            self._add_request_to_queue(self.request(row))
        return bool(rows)

    def request(self, number):
        req = super().request(number)
        req.bootstrap_host, req.bootstrap_port, req.bootstrap_room = "prefill", 1, number + 1
        return req

    def on_idle(self):
        self.idle_turns += 1

    def run_batch(self, batch, pp_proxy_tensors=None):
        if self.is_prefill:
            for req in batch.reqs:  # as run_batch does there
                self.maybe_send_cached_prefix_chunk(req, allow_send=True)
        self.idle_turns = 0
        return super().run_batch(batch, pp_proxy_tensors)

    def process_batch_result(self, batch, result):
        if not self.is_prefill:
            super().process_batch_result(batch, result)
            return
        result.copy_done.synchronize()
        result.copy_done = None
        result.next_token_ids = torch.tensor([self.token(req) for req in batch.reqs], dtype=torch.int64)
        self.process_batch_result_disagg_prefill(batch, result)
        self.note(batch.reqs)

    def token(self, req):
        got, row = len(req.output_ids), self.rows[req.row]
        if got + 1 == row["output"] < row.get("limit", row["output"]):
            return plain.STOP
        return FIRST_OUTPUT + req.row * 200_000 + got


class Net:
    """The workers, the links, and what happens between them."""

    def __init__(self, case):
        self.case, (prefill, decode) = case, case["workers"]
        self.rows = case["requests"]
        count = len(self.rows)
        self.events, self.pushed = [], 0
        self.senders, self.receivers = [None] * count, [None] * count
        self.held, self.reserved, self.arrived, self.begun = [0] * count, [None] * count, [None] * count, [None] * count
        self.out, self.into = [0.0] * prefill, [0.0] * decode
        self.prefill = [self.worker(case, True) for _ in range(prefill)]
        self.decode = [self.worker(case | case.get("decode", {}), False) for _ in range(decode)]
        for row, data in enumerate(self.rows):
            self.push(data["arrival"], self.arrive, row)

    def worker(self, case, is_prefill):
        settings = {
            "disaggregation_mode": "prefill" if is_prefill else "decode", "disaggregation_transfer_backend": "mooncake",
            **case["settings"], **({} if is_prefill else {"disaggregation_decode_retraction_backup": "cpu_tensor"}),
        }  # fmt: skip
        fixed = {"device": "cpu", "attention_backend": "torch_native", "sampling_backend": "pytorch"}
        args = ServerArgs(model_path="dummy", **fixed, **settings)
        handle_pd_disaggregation(args)
        context = runtime_context.create_context(args, role="scheduler")
        with runtime_context.use_context(context):
            ranks = dict.fromkeys(("pp_rank", "attn_tp_rank", "attn_cp_rank", "dp_rank", "tp_rank"), 0)
            one = types.SimpleNamespace(cpu_group=None, world_size=1)
            runtime_context.get_parallel().override_permanently(
                **ranks, pp_max_micro_batch_size=settings["max_running_requests"], attn_tp_group=one,
            )  # fmt: skip
            worker = Worker(case, self, is_prefill)
            worker.context = context
        worker.thread.start()
        return worker

    def prefill_of(self, row):
        return self.prefill[row % len(self.prefill)]

    def decode_of(self, row):
        return self.decode[row % len(self.decode)]

    def push(self, at, what, *given):
        heapq.heappush(self.events, (at, self.pushed, what, given))
        self.pushed += 1

    def arrive(self, at, row):
        for worker in (self.decode_of(row), self.prefill_of(row)):
            worker.queue.append(row)
            worker.wake(at)

    def reserve(self, row, held):
        """The decode worker has pages for a request, and tells the prefill worker."""
        self.held[row], self.reserved[row] = held, self.decode_of(row).now
        self.prefill_of(row).wake(self.reserved[row])

    def send(self, row, tokens, ready):
        """Send a part of a prompt, once the pass that computes it has ended."""
        if ready > self.prefill_of(row).now:
            self.push(ready, self.move, row, tokens)
        else:
            self.move(self.prefill_of(row).now, row, tokens)

    def move(self, at, row, tokens):
        home, target = row % len(self.prefill), row % len(self.decode)
        begin = max(at, self.out[home], self.into[target])
        end = begin + tokens * self.case["bytes_per_token"] * self.case["byte_s"]
        self.out[home] = self.into[target] = end
        self.begun[row] = at if self.begun[row] is None else self.begun[row]
        sender = self.senders[row]
        sender.sent = getattr(sender, "sent", 0) + tokens
        if sender.sent == self.rows[row]["tokens"] - self.held[row]:
            self.arrived[row] = end + self.case["latency"]
            self.push(self.arrived[row], self.arrival, row)
            self.copy_metadata(row)

    def copy_metadata(self, row):
        """The first token goes with the last part."""
        source, target = self.prefill_of(row).disagg_metadata_buffers, self.decode_of(row).disagg_metadata_buffers
        here, there = self.senders[row].index, self.receivers[row].index
        for name in ("output_ids", "cached_tokens", "bootstrap_room"):
            getattr(target, name)[there] = getattr(source, name)[here]

    def arrival(self, at, row):
        self.prefill_of(row).wake(at)
        self.decode_of(row).wake(at)

    def run(self):
        workers = [*self.prefill, *self.decode]
        for worker in workers:
            worker.resume()
        while True:
            first = min(workers, key=lambda worker: worker.at)
            if self.events and self.events[0][0] <= first.at:
                at, _, what, given = heapq.heappop(self.events)
                what(at, *given)
            elif first.at >= NEVER:
                break
            else:
                first.resume()
        for worker in workers:
            worker.over, worker.at = True, worker.now
            worker.resume()
            worker.thread.join()


def serve(case):
    """The steps of each worker, and the times of each request."""
    for name, value in case.get("env", {}).items():
        if name == "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION":
            schedule_policy.CLIP_MAX_NEW_TOKENS = decode_side.CLIP_MAX_NEW_TOKEN = value
        else:
            getattr(envs, name).set(value)
    net = Net(case)
    net.run()
    requests = []
    for row in range(len(case["requests"])):
        home, target = net.prefill_of(row), net.decode_of(row)
        requests.append([
            home.cached[row], net.held[row], home.times[0][row], home.times[1][row], net.begun[row], net.arrived[row],
            target.times[1][row], target.times[2][row], target.retractions[row],
        ])  # fmt: skip
    return {
        "version": plain.version("sglang"),
        "prefill": [worker.steps for worker in net.prefill],
        "decode": [worker.steps for worker in net.decode],
        "requests": requests,
    }


plain.publish = lambda case: None  # a worker's context is made in Net.worker
plain.Done = Ended
torch.cuda.Event = Pass
prefill_side.get_kv_class = decode_side.get_kv_class = kv_class
prefill_side.PrefillBootstrapQueue._init_kv_manager = lambda queue: Manager(queue.scheduler.net)
decode_side.DecodePreallocQueue._init_kv_manager = lambda queue: Manager(queue.scheduler.net)

if __name__ == "__main__":
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    with open(sys.argv[1]) as stream:
        for line in stream:
            print(json.dumps(serve(json.loads(line))), flush=True)
