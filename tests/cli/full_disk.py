"""A disk that becomes full at a chosen point of a run, and the commands that write.

LD_PRELOAD loads a library that makes calls fail which need room on the disk, from one of them on, over all processes
of a run. A row of COMMANDS is a command line in a folder of inputs, whose outputs go to `out`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import kvtrace
from kvtrace.cli import commands, main
from tests.conftest import ROOT
from tests.serving.quick_fits import quick_fits

SOURCES = Path(kvtrace.__file__).resolve().parent.parent

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static const char *folder;
static unsigned long *state; /* calls so far, the first that fails, whether a write that fails is short */

__attribute__((constructor)) static void start(void)
{
    const char *path = getenv("FULL_STATE");
    folder = getenv("FULL_FOLDER");
    if (folder == NULL || path == NULL)
        return;
    int handle = REAL(open)(path, O_RDWR);
    state = mmap(NULL, 24, PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
    close(handle);
}

static int is_inside(const char *path)
{
    size_t length = strlen(folder);
    return strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == 0);
}

static int is_on_disk(int at, const char *path) /* a path of NULL: the open file */
{
    char link[64], place[PATH_MAX];
    if (state == NULL || state == MAP_FAILED)
        return 0;
    if (path != NULL && path[0] == '/')
        return is_inside(path);
    if (at == AT_FDCWD)
        strcpy(link, "/proc/self/cwd");
    else
        snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    ssize_t length = readlink(link, place, sizeof place - 1);
    if (length < 0)
        return 0;
    place[length] = 0;
    if (path != NULL)
        snprintf(place + length, sizeof place - length, "/%s", path);
    return is_inside(place);
}

static unsigned long number(void) { return __atomic_fetch_add(state, 1, __ATOMIC_SEQ_CST); }

static int is_full(int at, const char *path)
{
    if (!is_on_disk(at, path) || number() < state[1])
        return 0;
    errno = ENOSPC;
    return 1;
}

static int is_new(int at, const char *path, int flags)
{
    struct stat about;
    int before = errno, missing = (flags & O_CREAT) && fstatat(at, path, &about, 0) != 0;
    errno = before;
    return missing;
}

#define OPEN(name)                                                              \
    int name(const char *path, int flags, ...)                                  \
    {                                                                           \
        va_list more;                                                           \
        va_start(more, flags);                                                  \
        mode_t mode = va_arg(more, mode_t);                                     \
        va_end(more);                                                           \
        if (is_new(AT_FDCWD, path, flags) && is_full(AT_FDCWD, path))           \
            return -1;                                                          \
        return REAL(name)(path, flags, mode);                                   \
    }
#define OPENAT(name)                                                            \
    int name(int at, const char *path, int flags, ...)                          \
    {                                                                           \
        va_list more;                                                           \
        va_start(more, flags);                                                  \
        mode_t mode = va_arg(more, mode_t);                                     \
        va_end(more);                                                           \
        if (is_new(at, path, flags) && is_full(at, path))                       \
            return -1;                                                          \
        return REAL(name)(at, path, flags, mode);                               \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

static ssize_t room(int handle, size_t size, off_t end) /* bytes that can be written up to an end; -1: none */
{
    struct stat about;
    if (!is_on_disk(handle, NULL) || (fstat(handle, &about) == 0 && end <= about.st_size)) /* it has its place */
        return size;
    unsigned long call = number();
    if (call < state[1])
        return size;
    if (call == state[1] && size > 1 && state[2])
        return size / 2;
    errno = ENOSPC;
    return -1;
}

ssize_t write(int handle, const void *data, size_t size)
{
    ssize_t most = room(handle, size, lseek(handle, 0, SEEK_CUR) + size);
    return most < 0 ? -1 : REAL(write)(handle, data, most);
}

#define PWRITE(name, offset_type)                                               \
    ssize_t name(int handle, const void *data, size_t size, offset_type offset) \
    {                                                                           \
        ssize_t most = room(handle, size, offset + size);                       \
        return most < 0 ? -1 : REAL(name)(handle, data, most, offset);          \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t writev(int handle, const struct iovec *parts, int number_of_parts)
{
    return room(handle, 1, LONG_MAX) < 0 ? -1 : REAL(writev)(handle, parts, number_of_parts);
}

int fsync(int handle) { return is_full(handle, NULL) ? -1 : REAL(fsync)(handle); }
int fdatasync(int handle) { return is_full(handle, NULL) ? -1 : REAL(fdatasync)(handle); }
int mkdir(const char *path, mode_t mode) { return is_full(AT_FDCWD, path) ? -1 : REAL(mkdir)(path, mode); }
int mkdirat(int at, const char *path, mode_t mode) { return is_full(at, path) ? -1 : REAL(mkdirat)(at, path, mode); }
int rename(const char *old, const char *new) { return is_full(AT_FDCWD, new) ? -1 : REAL(rename)(old, new); }
int renameat(int at, const char *old, int to, const char *new)
{
    return is_full(to, new) ? -1 : REAL(renameat)(at, old, to, new);
}
int renameat2(int at, const char *old, int to, const char *new, unsigned int flags)
{
    return is_full(to, new) ? -1 : REAL(renameat2)(at, old, to, new, flags);
}

#define GROW(name, offset_type)                                                 \
    int name(int handle, offset_type size)                                      \
    {                                                                           \
        struct stat about;                                                      \
        if (fstat(handle, &about) == 0 && size > about.st_size && is_full(handle, NULL)) \
            return -1;                                                          \
        return REAL(name)(handle, size);                                        \
    }
GROW(ftruncate, off_t)
GROW(ftruncate64, off64_t)

int posix_fallocate(int handle, off_t offset, off_t size)
{
    return is_full(handle, NULL) ? ENOSPC : REAL(posix_fallocate)(handle, offset, size);
}
"""


def built(folder: Path) -> Path:
    """The library."""
    library = folder / "full_disk.so"
    compiler = [shutil.which("cc"), "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(library), "-ldl"]
    subprocess.run(compiler, input=SOURCE, text=True, check=True)
    return library


NEVER = 1 << 62  # calls


@dataclass
class Ended:
    """A command that has ended."""

    status: int  # negative: a signal
    stderr: str
    calls: int  # that needed room on the disk


class FullDisk:
    """Runs commands with a folder that is a disk: it is full from one call on that needs room.

    Each run is a fork of one process that has imported what commands use, which would take longer than most of them.
    """

    def __init__(self, library: Path, disk: Path):
        self._state, self._disk = disk.parent / "calls", disk
        self._state.write_bytes(bytes(24))
        environment = {
            **os.environ, "LD_PRELOAD": str(library), "FULL_FOLDER": str(disk.resolve()),
            "FULL_STATE": str(self._state), "PYTHONPATH": os.pathsep.join([str(SOURCES), str(ROOT)]),
        }  # fmt: skip
        self._server = subprocess.Popen(
            [sys.executable, "-c", "from tests.cli.full_disk import serve; serve()"], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=disk.parent,
        )  # fmt: skip

    def run(
        self, arguments: list[str], *, full_from: int = NEVER, short: bool = False, stdout: str = os.devnull,
        stderr: str = "stderr",
    ) -> Ended:  # fmt: skip
        """Run a command to its end, with its stdout and stderr in these files."""
        self._state.write_bytes(b"".join(number.to_bytes(8, sys.byteorder) for number in (0, full_from, short)))
        print(json.dumps([arguments, stdout, stderr]), file=self._server.stdin, flush=True)
        status = int(self._server.stdout.readline())
        calls = int.from_bytes(self._state.read_bytes()[:8], sys.byteorder)
        return Ended(status, (self._disk.parent / "stderr").read_text(), calls)

    def close(self) -> None:
        """End the process."""
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()


def serve() -> None:
    """Run the command of each line of stdin in a fork, and print its status."""
    for name in ("matplotlib.figure", "matplotlib.backends.backend_agg", "plotly", "pyarrow.parquet", "rich.console",
                 "zstandard", "orjson", *(f"kvtrace.cli.{name}" for name in commands.commands)):  # fmt: skip
        with suppress(ImportError):
            import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            sys.argv[1:], *names = json.loads(line)
            for number, name in enumerate((os.devnull, *names)):
                os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
            with quick_fits():
                main()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


COMMANDS = {  # name of the row -> its arguments
    "start": "start log.jsonl -o out/answer",
    "anonymize": "anonymize log.jsonl -o out/t.jsonl.gz --key-file out/key --rejects out/bad --on-error skip",
    "anonymize a data set": "anonymize log.jsonl -o out/t.dataset --runner local --memory 8GB --work-dir out/work",
    "convert to Parquet": "convert trace.jsonl -o out/t.parquet",
    "convert to zstd": "convert trace.jsonl -o out/t.jsonl.zst",
    "convert to a data set": "convert trace.jsonl -o out/t.dataset",
    "convert to Weka": "convert trace.jsonl -o out/t.sessions --to weka",
    "record": "record -o out/rec --follow log.jsonl --from-start --key-file out/key --profile exact --window 366d "
    "--for 1s",
    "release": "release trace.jsonl -o out/public.jsonl",
    "join": "join windows/monday.jsonl windows/tuesday.jsonl -o out/days.jsonl",
    "audit": "audit public.jsonl --card out/card.md",
    "analyze": "analyze trace.jsonl --png out/a.png --svg out/a.svg",
    "curve": "curve trace.jsonl --png out/a.png --svg out/a.svg",
    "compare": "compare trace.jsonl synthetic.jsonl --png out/a.png --svg out/a.svg",
    "report": "report trace.jsonl -o out/page.html --png out/plots",
    "simulate": "simulate trace.jsonl --capacity 25% --per-request out/r.csv --png out/a.png --svg out/a.svg",
    "explain": "explain trace.jsonl --capacity 25% --per-request out/r.csv --png out/a.png --svg out/a.svg",
    "sweep": "sweep trace.jsonl -o out/t.csv --policy lru,sieve --capacity 25%,50% --png out/a.png --svg out/a.svg",
    "tune": "tune trace.jsonl --capacity 25% --policy reuse-density --save-table out/table.json",
    "plan": "plan trace.jsonl --model-config config.json --gpu h100 --png out/a.png --svg out/a.svg",
    "calibrate": "calibrate recording --model llama-3.1-8b --gpu h100 -o out/costs.json",
    "validate": "validate recording --costs costs.json --html out/page.html --per-request out/r.csv --png out/a.png "
    "--svg out/a.svg",
    "synthesize": "synthesize trace.jsonl -n 100 -o out/t.jsonl --save-model out/model.json --seed 1",
    "texts": "texts trace.jsonl -o out/p.jsonl --tokenizer deepseek-r1",
}
