"""Send SIGINT at each bytecode of a call, each time in a forked child: print the places where the child does not end.

python stopped_anywhere.py NAME START STEP, with a name of CALLS; STEP 1 tries every place.
"""

import faulthandler
import os
import signal
import sys
import tempfile
import time
from types import SimpleNamespace

from kvtrace._base import workers
from kvtrace.cache.sweeps import running

FILES = ("_base/workers.py", "_base/process.py", "concurrent/futures/", "threading.py", "sweeps/runners.py")
DEADLINE_S = 30


def briefly(item):
    time.sleep(0.002)
    return item


def sweep():
    """Cells of a sweep, each second one with a policy in Python."""
    running._prepared = lambda work: (
        (n, SimpleNamespace(setting=SimpleNamespace(in_python=n % 2)), 0, 0) for n in work
    )
    running._numbered = lambda number, *_: (number, briefly(number))
    assert sorted(running.local(range(6), 1)) == [(n, n) for n in range(6)]


CALLS = {
    "thread_map": lambda: list(workers.thread_map(briefly, range(6), 2)),
    "ordered_map": lambda: list(workers.ordered_map(briefly, range(6), 2)),
    "retrying_map": lambda: list(workers.retrying_map(briefly, range(6), 2)),
    "sweep": sweep,
}


def stopped_at(call, place):
    """Whether the call was stopped at a place; False if it has fewer places."""
    left, parent = place, os.getpid()

    def trace(frame, event, argument):
        nonlocal left
        if not any(part in frame.f_code.co_filename for part in FILES):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and os.getpid() == parent:
            left -= 1
            if not left:
                os.write(2, f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}".encode())
                signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def main(name, start, step):
    CALLS[name]()  # what is imported and made once
    place, hung = start, []
    while True:
        with tempfile.TemporaryFile() as said:
            if not (child := os.fork()):
                os.dup2(said.fileno(), 2)
                faulthandler.dump_traceback_later(DEADLINE_S, exit=True)
                more = stopped_at(CALLS[name], place)
                os._exit(0 if more else 3)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            said.seek(0)
            text = said.read().decode()
        if status == 3:
            break
        if status:
            hung.append(f"place {place}, status {status}: {text}")
        place += step
    print(f"{name}: {len(range(start, place, step))} of {place} places tried, {len(hung)} did not end", *hung, sep="\n")
    sys.exit(bool(hung) or place < 100)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
