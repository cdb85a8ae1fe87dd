"""A thread never dies alone: each part of a live service is starved or killed, and the service goes on and says so."""

import ast
import errno
import http.client
import itertools
import json
import os
import re
import resource
import signal
import socket
import subprocess
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import uvicorn

import kvtrace
from kvtrace.capture import sealing, supervisor
from kvtrace.capture.feeder import HUNG, HUNG_S
from kvtrace.capture.gauge import GaugeOptions
from kvtrace.capture.live import Live, LiveOptions, Servers, parse_address
from kvtrace.capture.metrics import Reading, metrics_app, registry_of
from kvtrace.capture.recorder import Recorder
from kvtrace.capture.sources import kv_events
from kvtrace.capture.sources.follow import Follower
from kvtrace.capture.supervisor import ENDED, LAST_ATTEMPTS, Supervisor
from kvtrace.capture.watcher import Watcher
from kvtrace.ingest.encoding_options import EncodingOptions
from tests.capture.publishing import Publisher
from tests.capture.recording import OPTIONS, row
from tests.capture.test_live_canary import Service as Running
from tests.capture.test_metrics_app import ask
from tests.capture.windows import sealed, waited
from tests.docs import ROOT

pytestmark = [pytest.mark.enable_socket, pytest.mark.allow_hosts(["127.0.0.1"])]

CAPTURE = ROOT / "src/kvtrace/capture"


class PanicException(BaseException):
    """As compiled libraries raise them."""


class Fault:
    """Raises one error after the other while it is on."""

    def __init__(self):
        self.is_on, self.raised = False, 0
        self._errors = itertools.cycle(
            (
                lambda: OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/secret"),
                lambda: MemoryError("secret"),
                lambda: RuntimeError("can't start new thread"),
                lambda: ValueError("secret"),
            )
        )

    def check(self):
        if self.is_on:
            self.raised += 1
            raise next(self._errors)()

    def before(self, function):
        """The function, which fails while the fault is on."""

        def failing(*arguments, **options):
            self.check()
            return function(*arguments, **options)

        return failing


class Clock:
    def __init__(self, now):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(supervisor, "FIRST_WAIT_S", 0.005)
    monkeypatch.setattr(supervisor, "LOOK_S", 0.005)
    monkeypatch.setattr(sealing, "FIRST_WAIT_S", 0.005)
    monkeypatch.setattr(sealing, "POLL_S", 0.02)
    monkeypatch.setattr("kvtrace.capture.live.STEADY_S", 0.2)
    monkeypatch.setattr("kvtrace.capture.feeder.STEADY_S", 0.2)
    monkeypatch.setattr("kvtrace.capture.feeder.WATCH_S", 0.1)


@pytest.fixture(autouse=True)
def no_traceback(capfd):
    yield
    assert "Traceback" not in (errors := capfd.readouterr().err), errors


class Service:
    """A recorder with all its sources, whose clock stands still."""

    def __init__(self, folder, upstream):
        self.folder, self.upstream, self.said, self.sent = folder, upstream, [], 0
        self.clock, self.log, self.live = Clock(995.0), folder / "app.jsonl", None
        self.log.write_text("")

    @contextmanager
    def running(self):
        with (
            Publisher(self.folder) as self.publisher,
            Recorder(
                self.folder / "out", window_s=10, clock=self.clock, on_message=self.said.append, **OPTIONS
            ) as self.recorder,
        ):
            options = LiveOptions(
                otlp=parse_address("0"), proxy=parse_address("0"), upstream=self.upstream, metrics=parse_address("0"),
                follow=(self.log,), kv_events=(self.publisher.endpoint,),
            )  # fmt: skip
            self.app = metrics_app(registry_of(lambda: Reading(counts=vars(self.recorder.counts()))), self.problem)
            self.live = Live(
                options, self.recorder, metrics=self.app, on_message=self.said.append,
                supervisor=self.recorder.supervisor,
            )  # fmt: skip
            with self.live:
                self.publisher.wait_for_subscriber()
                yield

    def problem(self):
        return self.recorder.problem()

    def health(self):
        status, _, body = ask(self.app, "/healthz")
        return status, body.decode()

    def metric(self, name, part):
        text = ask(self.app)[2].decode()
        (value,) = [line.split()[1] for line in text.splitlines() if line.startswith(f'{name}{{part="{part}"}} ')]
        return float(value)

    def send(self):
        """A request into the followed log, and one into the queue."""
        with self.log.open("a") as log:
            log.write(row(self.sent) + "\n")
        assert self.recorder.put("follow", row(self.sent + 1).encode())
        self.sent += 2

    def end_window(self):
        self.clock.now += 10

    def in_seals(self):
        return sum(len(kvtrace.read(path)) for path in sealed(self.folder / "out"))


@pytest.fixture
def service(tmp_path, upstream):
    return Service(tmp_path, upstream)


def on_seal(service, fault, monkeypatch):
    monkeypatch.setattr(sealing, "seal_in_process", fault.before(sealing.seal_in_process))


def on_window(service, fault, monkeypatch):
    monkeypatch.setattr("kvtrace.capture.recorder.free_name", fault.before(kvtrace.capture.recorder.free_name))


def on_send(service, fault, monkeypatch):
    monkeypatch.setattr("kvtrace.capture.feeder.framed", fault.before(kvtrace.capture.feeder.framed))


def on_report(service, fault, monkeypatch):
    take = Recorder._on_report
    monkeypatch.setattr(Recorder, "_on_report", lambda self, report: (fault.check(), take(self, report))[1])


def on_line(service, fault, monkeypatch):
    """A chunk of the file is read, and is not in the queue."""
    monkeypatch.setattr(Follower, "_whole_lines", fault.before(Follower._whole_lines))


def on_events(service, fault, monkeypatch):
    """A message breaks the subscription, and its socket cannot be opened again."""
    monkeypatch.setattr(kv_events, "_connect", fault.before(kv_events._connect))
    monkeypatch.setattr(kv_events._Subscription, "take", fault.before(kv_events._Subscription.take))


def on_loop(service, fault, monkeypatch):
    monkeypatch.setattr(Servers, "_look", fault.before(Servers._look))


def on_tick_of(name):
    def on_tick(service, fault, monkeypatch):
        tick = uvicorn.Server.on_tick

        async def failing(server, counter):
            if service.live and service.live._servers._servers.get(name) is server:
                fault.check()
            return await tick(server, counter)

        monkeypatch.setattr(uvicorn.Server, "on_tick", failing)

    return on_tick


FAULTS = {
    "windows": on_window, "sealer": on_seal, "feeder": on_send, "digester": on_report, "follow": on_line,
    "kv-events": on_events, "http": on_loop, "otlp": on_tick_of("otlp"), "proxy": on_tick_of("proxy"),
    "metrics": on_tick_of("metrics"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_part_that_fails_turns_health_red_until_it_works_and_loses_nothing(name, service, monkeypatch):
    fault = Fault()
    FAULTS[name](service, fault, monkeypatch)
    with service.running():
        service.send()
        waited(lambda: service.recorder.counts().digested == service.sent)
        assert service.health() == (200, "ok\n") and service.metric("kvtrace_failing", name) == 0
        fault.is_on = True
        service.end_window()
        service.send()
        if name == "kv-events":
            service.publisher.send_frames(b"not a batch")
        waited(lambda: service.metric("kvtrace_failures_total", name) >= 5)
        waited(lambda: service.health() == (503, f"failing: {name}\n"))
        waited(lambda: service.metric("kvtrace_failing", name) == 1)
        fault.is_on = False
        waited(lambda: service.health() == (200, "ok\n"))
        assert service.metric("kvtrace_failing", name) == 0
        waited(lambda: service.recorder.counts().sealed == 1)
        service.send()
    counts = service.recorder.counts()
    assert service.in_seals() == service.sent == counts.accepted == counts.digested
    assert (counts.lost, counts.dropped, counts.restarts, counts.failed, counts.sealed) == (0, 0, 0, 0, 2)
    told = [sentence for sentence in service.said if sentence.startswith(f"{name}: ")]
    assert len(told) == 5 and told[-1] == f"{name}: works again.", told  # each kind once
    assert "secret" not in "".join(service.said)


def test_the_parts_of_the_table_are_those_that_run_and_each_thread_is_one(service):
    before = set(threading.enumerate())
    with service.running():
        service.send()
        parts = service.recorder.supervisor._parts
        assert {part.name for part in parts} == set(FAULTS)
        assert all(part._runs and part.state is None for part in parts)
        threads = {thread.name for thread in set(threading.enumerate()) - before if "serve_replays" not in thread.name}
        assert threads <= {*FAULTS}, threads
    assert not any(part._runs for part in parts)
    assert set(threading.enumerate()) <= before


def test_no_thread_or_task_is_started_without_the_supervisor():
    names = {"Thread", "Timer", "create_task", "ensure_future", "start_new_thread", "ThreadPoolExecutor"}
    started = []
    for path in sorted(CAPTURE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", None))
                started += [(path.relative_to(CAPTURE).as_posix(), name)] if name in names else []
    assert started == [
        ("live.py", "create_task"),  # of Part.attend
        ("proxy/app.py", "ensure_future"),  # one request; it ends with it
        ("supervisor.py", "Thread"),
    ]


# -- processes ------------------------------------------------------------------------------------------------------


@pytest.fixture
def recorder(tmp_path):
    """A recorder of one source, with its clock and what it says."""
    clock, said = Clock(995.0), []
    with Recorder(tmp_path / "out", window_s=10, clock=clock, on_message=said.append, **OPTIONS) as one:
        one.clock, one.said, one.sent = clock, said, 0
        yield one


def put(recorder, count=1):
    for _ in range(count):
        assert recorder.put("follow", row(recorder.sent).encode())
        recorder.sent += 1


def digested(recorder):
    return recorder.counts().digested == recorder.sent


def rows_of(folder):
    return sum(len(kvtrace.read(path)) for path in sealed(folder))


@contextmanager
def no_descriptors(but=0):
    """No new descriptor for this process, or only a few; those that are open stay."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    listed = os.listdir("/proc/self/fd")  # with the descriptor of this look itself
    used = {int(number) for number in listed if os.path.lexists(f"/proc/self/fd/{number}")}
    free = (number for number in itertools.count() if number not in used)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(itertools.islice(free, but, None)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_descriptors_windows_end_late_the_digester_is_started_later_and_nothing_waiting_is_lost(recorder):
    put(recorder)
    waited(lambda: digested(recorder))
    with no_descriptors():
        recorder.clock.now += 10
        waited(lambda: recorder.problem() == "failing: windows")
        os.kill(recorder._feeder.pid, signal.SIGKILL)
        waited(lambda: recorder.problem() == "failing: feeder, digester, windows")
        put(recorder, 20)  # they wait
        waited(lambda: recorder.counts().failures["feeder"] >= 5)
    waited(lambda: recorder.problem() is None)
    waited(lambda: digested(recorder))
    waited(lambda: recorder.counts().sealed == 1)
    put(recorder)
    recorder.close()
    counts = recorder.counts()
    assert rows_of(recorder.folder) == recorder.sent == 22
    assert (counts.restarts, counts.lost, counts.failed, counts.sealed) == (1, 0, 0, 2)
    told = [sentence for sentence in recorder.said if "cannot be started: Too many open files" in sentence]
    assert len(told) == 1 and told[0].startswith("feeder: the digester process cannot be started")


def test_without_descriptors_for_an_event_loop_the_servers_wait(service):
    """uvloop aborts the process if it finds no descriptor for a loop."""
    with service.running():
        servers, fault = service.live._servers, Fault()
        servers._look = fault.before(servers._look)
        for count in (1, 3):
            with no_descriptors(but=count):
                fault.is_on, fault.raised, before = True, 0, service.recorder.counts().failures["http"]
                waited(lambda: fault.raised)
                fault.is_on = False
                waited(lambda n=before: service.recorder.counts().failures["http"] >= n + 3)
                assert "http" in service.problem()
            waited(lambda: service.problem() is None)
        assert {str(port) for port in servers.addresses.values()} == {
            f"127.0.0.1:{bound.getsockname()[1]}" for bound in servers._sockets.values()
        }


def test_a_seal_without_descriptors_is_tried_again_and_its_key_is_gone_meanwhile(recorder, monkeypatch):
    put(recorder)
    waited(lambda: digested(recorder))
    seal, limits = sealing.seal_in_process, []

    def starved(path, folder):
        limits.append(path)
        if len(limits) > 4:
            return seal(path, folder)
        with no_descriptors():
            return seal(path, folder)

    monkeypatch.setattr(sealing, "seal_in_process", starved)
    key = recorder._feeder._begun.message["key"]
    recorder.clock.now += 10
    waited(lambda: recorder.counts().failures["sealer"] == 4)
    feeder = recorder._feeder
    assert key not in str([mark.message for mark in (feeder._begun, *feeder._sent)])
    waited(lambda: recorder.counts().sealed == 1 and recorder.problem() is None)
    assert recorder.counts().failed == 0 and len(limits) == 5
    told = [sentence for sentence in recorder.said if sentence.startswith("sealer: ")]
    assert told[0].startswith("sealer: a window is not sealed: Too many open files (OSError at subprocess.py:")
    assert told[1:] == ["sealer: works again."]


def test_a_process_that_seals_and_is_killed_is_started_again(recorder, monkeypatch):
    put(recorder)
    waited(lambda: digested(recorder))
    monkeypatch.setattr(sealing, "sys", SimpleNamespace(executable="/bin/false"))
    recorder.clock.now += 10
    waited(lambda: recorder.problem() == "failing: sealer")
    monkeypatch.undo()
    waited(lambda: recorder.counts().sealed == 1 and recorder.problem() is None)
    assert recorder.said[0] == "sealer: a window is not sealed: the process that seals was killed. It is tried again."


def test_a_window_that_its_audit_refuses_is_not_tried_again_before_the_next_start(recorder, monkeypatch):
    put(recorder)
    waited(lambda: digested(recorder))
    tried = []

    def refused(path, folder):
        tried.append(path)
        return sealing.Sealed(path.stem, [], error="the audit failed.")

    monkeypatch.setattr(sealing, "seal_in_process", refused)
    recorder.clock.now += 10
    waited(lambda: recorder.counts().failed == 1)
    assert recorder.problem() is None and len(tried) == 1
    monkeypatch.undo()


def test_a_digester_that_hangs_turns_health_red_until_it_goes_on(recorder):
    put(recorder)
    waited(lambda: digested(recorder))
    now = recorder.supervisor.clock
    os.kill(recorder._feeder.pid, signal.SIGSTOP)
    try:
        recorder.supervisor.clock = lambda: now() + 2 * supervisor.PATIENCE_S
        waited(lambda: recorder.problem() == "hanging: digester")
        assert recorder.counts().failing["digester"] == 1
    finally:
        os.kill(recorder._feeder.pid, signal.SIGCONT)
    waited(lambda: recorder.problem() is None)
    assert recorder.counts().restarts == 0


def test_a_digester_that_dies_again_and_again_is_red_and_waits_longer_each_time(recorder, monkeypatch):
    """It dies of each payload, as on a full disk: what it has received is lost each time, and the others wait."""
    monkeypatch.setattr("kvtrace.capture.feeder.STEADY_S", 1e9)
    put(recorder)
    waited(lambda: digested(recorder))
    monkeypatch.setattr(supervisor, "FIRST_WAIT_S", 0.05)
    for deaths in range(1, 4):
        stopped(recorder)
        put(recorder, 2)
        waited(lambda: not recorder.counts().waiting)  # the digester has them
        os.kill(recorder._feeder.pid, signal.SIGKILL)
        waited(lambda d=deaths: recorder.counts().failures["digester"] == d)
        assert recorder.counts().failing["digester"] == 1
        waited(lambda d=deaths: recorder.counts().restarts == d)
        recorder.sent -= 2
    assert recorder._feeder._digester_part.in_a_row == 3 and recorder.counts().failures["feeder"] == 2
    assert "digester" in recorder.problem()  # it has not digested anything yet
    put(recorder)
    waited(lambda: digested(recorder) and recorder.problem() is None)
    told = [sentence for sentence in recorder.said if "started again" in sentence]
    assert len(told) == 1
    recorder.close()
    assert (recorder.counts().lost, rows_of(recorder.folder)) == (6, 2)


def stopped(recorder):
    os.kill(recorder._feeder.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, recorder._feeder.pid, os.WSTOPPED)


def test_two_deaths_before_a_message_is_followed_do_not_end_the_window_that_goes_on(recorder):
    put(recorder)
    waited(lambda: digested(recorder))
    recorder.clock.now += 10
    waited(lambda: recorder.counts().sealed == 1)  # the message that began the window ended the one before
    put(recorder)
    waited(lambda: digested(recorder))
    feeder, start = recorder._feeder, recorder._feeder._new_digester
    stops = []

    def stillborn():
        digester = start()
        if len(stops) < 2:
            stops.append(digester.pid)
            digester.kill()
        return digester

    feeder._new_digester = stillborn
    os.kill(feeder.pid, signal.SIGKILL)
    waited(lambda: recorder.counts().restarts == 1 and recorder.problem() is None)
    put(recorder)
    recorder.close()
    assert len(stops) == 2 and (recorder.counts().sealed, recorder.counts().failed) == (2, 0), recorder.said
    assert [len(kvtrace.read(path)) for path in sealed(recorder.folder)] == [1, 2]


def test_a_recorder_ends_though_no_digester_can_be_started_and_the_next_one_seals_the_window(tmp_path):
    said = []
    recorder = Recorder(tmp_path, on_message=said.append, **OPTIONS)
    recorder.said, recorder.sent = said, 0
    put(recorder)
    waited(lambda: digested(recorder))
    os.kill(recorder._feeder.pid, signal.SIGKILL)
    with no_descriptors():
        waited(lambda: recorder.counts().failures["feeder"] >= 2)
        put(recorder)
        recorder.close()
    assert recorder.counts().failed == 1 and "the next start tries again" in said[-1]
    with Recorder(tmp_path, **OPTIONS) as later:
        waited(lambda: later.counts().sealed == 1)
    assert (rows_of(tmp_path), later.counts().lost) == (1, 1)


def test_a_digester_killed_while_the_recorder_ends_is_started_again_and_the_window_is_sealed(recorder):
    put(recorder)
    waited(lambda: digested(recorder))
    join = recorder._feeder._part.join

    def join_and_kill(timeout_s=None):
        assert join(10)
        os.kill(recorder._feeder.pid, signal.SIGKILL)
        return True

    stopped(recorder)  # it does not follow the last message
    recorder._feeder._part.join = join_and_kill
    recorder.close()
    assert (rows_of(recorder.folder), recorder.counts().failed, recorder.counts().restarts) == (1, 0, 1)


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_digester_that_hangs_while_the_recorder_ends_is_killed_and_what_it_had_is_counted(waiting, recorder):
    put(recorder)
    waited(lambda: digested(recorder))
    now = recorder.supervisor.clock
    stopped(recorder)
    put(recorder, waiting)
    waited(lambda: recorder.counts().waiting == 0)  # the socket has it
    recorder.supervisor.clock = lambda: now() + 2 * HUNG_S
    recorder.close()
    assert HUNG in recorder.said and recorder.counts().restarts == 1
    assert (rows_of(recorder.folder), recorder.counts().failed, recorder.counts().lost) == (1, 0, waiting)
    assert (recorder.shortfall() is None) == (not waiting)  # else the command ends with status 5


def test_a_start_without_threads_or_descriptors_is_one_sentence_and_leaves_no_process(tmp_path, monkeypatch):
    def no_thread(self):
        raise RuntimeError("can't start new thread")

    started, popen = [], subprocess.Popen

    def kept(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", kept)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(kvtrace.KvtraceError, match="digester process cannot be started: .* no memory, threads or"):
        Recorder(tmp_path, **OPTIONS)
    assert [process.poll() for process in started] == [-signal.SIGKILL]


# -- one part -------------------------------------------------------------------------------------------------------


def test_the_last_attempts_come_quickly_when_the_service_ends_and_are_few():
    said, tries, over = [], [], threading.Event()
    one = Supervisor(said.append)
    part = one.part("sealer")

    def fail():
        tries.append(1)
        if len(tries) == 7:
            over.set()
        raise PanicException("secret")

    part.start(fail, over.is_set)
    part.join(60)
    assert len(tries) == 7 + LAST_ATTEMPTS - 1 and one.problem() == "failing: sealer"
    assert len(said) == 1 and said[0].startswith("sealer: internal error: PanicException at test_supervisor.py:")


def test_work_that_returns_before_the_service_ends_is_a_failure():
    said, rounds, over = [], [], threading.Event()
    one = Supervisor(said.append)
    part = one.part("windows")

    def returns():
        rounds.append(1)
        if len(rounds) == 5:
            over.set()

    part.start(returns, over.is_set)
    part.join(60)
    assert (len(rounds), part.failures, said) == (5, 4, [f"windows: {ENDED} It is tried again."])


def test_a_thread_that_is_not_there_and_a_round_that_lasts_are_told_apart():
    clock, ends = Clock(0.0), threading.Event()
    one = Supervisor(clock=clock)
    slow, gone = one.part("sealer", patience_s=600), one.part("windows")
    slow.start(ends.wait, lambda: True)
    gone.start(lambda: None, lambda: True)
    gone.join()
    assert one.problem() is None
    clock.now = 599
    assert one.problem() is None
    clock.now = 601
    gone._runs = True  # as after a death that nothing caught
    assert one.problem() == "hanging: sealer; ended: windows"
    assert one.failing() == {"sealer": 1, "windows": 1}
    ends.set()
    slow.join()


def test_a_log_that_cannot_be_written_stops_nothing():
    def full(sentence):
        raise OSError(errno.ENOSPC, "No space left on device")

    one = Supervisor(full)
    part = one.part("windows")
    part.failed("a reason.")
    part.works()
    assert part.failures == 1 and one.problem() is None


# -- the command ----------------------------------------------------------------------------------------------------


def test_the_command_without_descriptors_is_red_and_seals_every_window_once_it_has_some(tmp_path):
    """Its limit is taken away while it runs; then idle connections use up what it has."""
    running = Running(
        tmp_path, "--otlp", "0", "--metrics", "0", "--window", "1s", "--tokenizer", OPTIONS["tokenizer"],
        "--block-size", "4", "--profile", "exact",
    )  # fmt: skip
    pid, sent = running.process.pid, 0

    def post():
        one = {"id": f"{sent}", "call_type": "acompletion", "startTime": 1_900_000_000 + sent, "completion_tokens": 3,
               "messages": [{"role": "user", "content": f"Is the oven on? {sent}"}]}  # fmt: skip
        assert running.post("otlp", "/litellm", json.dumps(one).encode())[0] == 200
        return sent + 1

    def health():
        watching.request("GET", "/healthz")
        answer = watching.getresponse()
        return answer.status, answer.read().decode()

    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    watching = http.client.HTTPConnection(running.urls["metrics"], timeout=60)
    idle = []
    try:
        sent = post()
        assert health() == (200, "ok\n")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
        waited(lambda: health()[0] == 503)
        assert re.fullmatch("failing: .*(windows|sealer).*\n", health()[1])
        in_use = len(os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (in_use + 20, hard))
        waited(lambda: health() == (200, "ok\n"))
        sent = post()
        host, port = running.urls["otlp"].split(":")
        idle = [socket.create_connection((host, int(port))) for _ in range(60)]
        waited(lambda: health()[0] == 503 or len(os.listdir(f"/proc/{pid}/fd")) < in_use + 20)
        for connection in idle:
            connection.close()
        waited(lambda: health() == (200, "ok\n"))
        sent = post()
        waited(lambda: running.count("kvtrace_sealed_windows") >= 2)
        assert running.count("kvtrace_failures") >= 1
    finally:
        watching.close()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        running.stop()
    said = running.said()
    assert "Traceback" not in said and "Too many open files" in said and "works again." in said, said
    assert rows_of(tmp_path / "recorded") == sent == 3
    assert sorted(os.listdir(tmp_path / "recorded/.recording")) == ["counts", "lock"]


def test_watch_is_red_while_its_digester_cannot_be_started_and_says_so_in_its_counts():
    gauge, encoding = GaugeOptions(block_size=4), EncodingOptions(tokenizer=OPTIONS["tokenizer"], block_size=4)
    with Watcher(gauge, encoding) as watcher:
        watcher.put("follow", row(0).encode())
        waited(lambda: watcher.counts().get("requests") == 1)
        os.kill(watcher._feeder.pid, signal.SIGKILL)
        with no_descriptors():
            waited(lambda: watcher.problem() == "failing: feeder, digester")
            assert watcher.counts()["failing"] == {"feeder": 1, "digester": 1}
            watcher.put("follow", row(1).encode())
        waited(lambda: watcher.problem() is None and watcher.counts()["requests"] == 2)
