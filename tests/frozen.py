"""What kvtrace prints and writes: `python -m tests.frozen FOLDER` runs every command and keeps the bytes in the folder.

For a change that no user should notice: run it before and after (three minutes each), then `diff -r BEFORE AFTER`.
The inputs are the repository's own; a terminal has 80 and 120 columns.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from string import Template

from kvtrace.cli import commands
from kvtrace.formats.targets import TARGETS as CLIENTS
from tests.docs import ROOT

COLUMNS = (80, 120)
KVTRACE = Path(sys.executable).with_name("kvtrace")
DATAGEN = KVTRACE.with_name("datagen")
DATES = re.compile(rb'"(created|date|written|measured)": *"[^"]*"')  # differ between two runs of the same code
FIGURES = re.compile(rb"\d+(\.\d+)?")  # of `watch --json`: they decay with the time of day
INPUTS = {
    "LOGS": ROOT / "tests/data/logs", "RAW": ROOT / "examples/raw_log.jsonl", "RECORDING": ROOT / "examples/recording",
    "LLAMA": ROOT / "tests/data/models/llama-3.1-8b.json", "TINY": ROOT / "tests/data/tokenizers/tiny",
}  # fmt: skip
SETUP = """
kvtrace anonymize $RAW -o trace.jsonl --block-size 16 --profile exact -q
kvtrace anonymize $RAW -o shared.jsonl -q
kvtrace synthesize trace.jsonl -n 10x -o large.jsonl --method attach --seed 1 --quiet
kvtrace synthesize trace.jsonl -n 10x -o other.jsonl --method tree --seed 2 --quiet
kvtrace anonymize $LOGS/conversations.jsonl -o sessions.jsonl --block-size 16 --profile exact -q --arrivals rate=2/s
kvtrace convert trace.jsonl -o trace.parquet --quiet
kvtrace calibrate $RECORDING --model llama-3.1-8b --gpu h100 -o costs.json --quiet
"""
FORMATS = ("mooncake", "bailian", "agentic-mooncake", "parquet", "dataset", "weka", *CLIENTS)
SUFFIXES = dict.fromkeys(("azure", "burstgpt", "vidur"), "csv") | {"libcachesim": "oracleGeneral", "weka": "sessions"}
UNTIMED = ("chats.jsonl", "conversations.jsonl", "lmsys.jsonl", "sharegpt.jsonl")  # these have no times
LOGS = sorted(path.name for path in (ROOT / "tests/data/logs").iterdir())
ROWS = """
anonymize $RAW -o OUT/t.jsonl
anonymize $RAW -o OUT/t.jsonl --profile strict --format bailian
anonymize $RAW -o OUT/t.jsonl --profile exact --keep-domains --keep-order -v
anonymize $RAW -o OUT/t.jsonl --profile exact --block-size 16 --keep-measured ttft_ms
anonymize $RAW -o OUT/t.jsonl --profile exact --block-size 16 --outputs
anonymize $RAW -o OUT/t.parquet --block-size 32 -v
anonymize $RAW -o OUT/t.dataset --runner local --partitions 2 --workers 1
anonymize $LOGS/absent.jsonl -o OUT/t.jsonl
lint $RAW
lint $RAW --json
lint $RAW --block-size 64
check trace.jsonl
check large.jsonl
check $RAW
audit trace.jsonl
audit trace.jsonl --json
audit shared.jsonl --profile strict
audit shared.jsonl --card OUT/card.md
release trace.jsonl -o OUT/t.jsonl
release trace.jsonl -o OUT/t.jsonl --profile strict --seed 1 --sample-sessions 50%
release trace.jsonl -o OUT/t.parquet --profile exact
release trace.jsonl -o OUT/t.jsonl --time-step 10s --round-input 32 --keep-measured ttft_ms
anonymize $RAW -o OUT/t.jsonl --time-step 10s --round-output pow2 --tail dropped
convert trace.jsonl -o OUT/t.jsonl --start 1m --stop '2 min'
convert trace.jsonl -o OUT/t.jsonl --fold 4 --to vllm
convert trace.jsonl -o OUT/t.parquet --sample 50% --seed 1
convert trace.parquet -o OUT/t.jsonl
analyze trace.jsonl
analyze trace.jsonl --basic
analyze trace.jsonl --basic --json
analyze trace.jsonl --json
analyze trace.jsonl --quantiles 90%,99% --fold 1,2,4
analyze trace.jsonl --model gpt-oss-20b --engine vllm
analyze trace.jsonl --model gpt-oss-20b --engine vllm --json
analyze shared.jsonl
curve trace.jsonl
curve trace.jsonl --json
curve trace.jsonl --csv
curve trace.jsonl --capacity 100,25% --csv
curve large.jsonl --points 5 --sample 50% --seed 3 --json
curve trace.jsonl --capacity 40GB --kv-bytes-per-token 131,072
compare trace.jsonl large.jsonl
compare trace.jsonl large.jsonl --json
compare trace.jsonl other.jsonl --csv
report trace.jsonl -o OUT/r.html
report trace.jsonl other.jsonl -o OUT/r.html --title 'Before and after'
report trace.jsonl -o OUT/r.html --model-config $LLAMA --gpu h100
simulate trace.jsonl
simulate trace.jsonl --json
simulate trace.jsonl --csv
simulate trace.jsonl -v
simulate trace.jsonl --policy lru,arc,sieve --capacity 25%
simulate trace.jsonl --policy lru,belady,unlimited,ttl:5m,slru --capacity 10%,100 --pool leaf-first --json
simulate trace.jsonl --engine vllm,sglang --capacity 400,50%
simulate trace.jsonl --engine vllm,sglang,nano-vllm,tensorrt-llm,lmcache --capacity 100 --csv
simulate trace.jsonl --engine vllm --capacity 200 --mode token --json
simulate trace.jsonl --engine vllm --capacity 200 --mode grow --schedule concurrency:4 --json
simulate trace.jsonl --engine sglang --capacity 200 --mode grow --schedule open-loop:30 -v
simulate trace.jsonl --capacity 200 --instances 4 --router kv-aware --schedule open-loop:30
simulate trace.jsonl --capacity 200 --instances 4 --router kv-aware,round-robin,sticky --json
simulate trace.jsonl --capacity 200 --instances 2 --router dynamo --seed 3 --csv
simulate trace.jsonl --gpu h100 --model-config $LLAMA
simulate trace.jsonl --gpu h100 --model-config $LLAMA --json
simulate trace.jsonl --gpu h100 --model-config $LLAMA --engine vllm,sglang --csv
simulate trace.jsonl --gpu h100 --model-config $LLAMA --per-request OUT/requests.csv --instances 2
simulate sessions.jsonl --gpu h100 --model-config $LLAMA --loop closed --lanes 2
simulate sessions.jsonl --gpu h100 --model-config $LLAMA --loop closed --lanes 2 --json
simulate trace.jsonl --gpu h100 --model-config $LLAMA --tiers hbm=500,dram=5000@25GB
simulate trace.jsonl --costs costs.json --extrapolate
simulate trace.jsonl --engine dynamo --capacity 500
simulate trace.jsonl --tiers hbm=50,dram=500
simulate trace.jsonl --tiers hbm=50,dram=500 --inclusive --json
simulate trace.jsonl --capacity 100 --over-time 1m
simulate trace.jsonl --capacity 100 --over-time 1m --json
simulate trace.jsonl --capacity 100 --per-request OUT/requests.csv
simulate trace.jsonl --model gpt-oss-20b --engine vllm --capacity 500
simulate trace.jsonl --model gpt-oss-20b --engine vllm,sglang --capacity 500 --json
simulate trace.jsonl --capacity 100 --warm-up 10% --json
simulate trace.jsonl --capacity 0
simulate trace.jsonl --policy nothing
simulate trace.jsonl --mode bloc
simulate absent.jsonl
explain trace.jsonl --capacity 25%
explain trace.jsonl --capacity 25% --json
explain trace.jsonl --capacity 25% --csv
explain trace.jsonl --capacity 400 --instances 4 --router round-robin --per-request OUT/causes.csv
explain trace.jsonl --capacity 400 --ttl 5m --over-time 10m
explain trace.jsonl --gpu h100 --model-config $LLAMA
explain trace.jsonl --gpu h100 --model-config $LLAMA --json --no-cures
explain trace.jsonl --capacity 100 --engine vllm --by-session
explain large.jsonl --capacity 20% --model llama-3.1-8b
explain large.jsonl --capacity 20% --model llama-3.1-8b --json
explain trace.jsonl --model gpt-oss-20b --engine vllm --capacity 500 --json
sweep trace.jsonl --policy lru,sieve --capacity auto
sweep trace.jsonl -o OUT/table.csv --policy lru,sieve --capacity auto
sweep trace.jsonl --policy lru,arc --capacity 10%,25%,50% --block-sizes 1x,2x --json
sweep trace.jsonl -o OUT/table.parquet --engine vllm,sglang --capacity 100 --mode block,token
tune trace.jsonl --capacity 25% --policy slru,lhd
tune trace.jsonl --capacity 25% --policy slru,lhd --pool leaf-first --json
tune trace.jsonl --capacity 50% --policy slru,reuse-density --save-table OUT/table.json --csv
plan trace.jsonl --model-config $LLAMA --gpu h100 --ttft 2s
plan trace.jsonl --model-config $LLAMA --gpu h100 --ttft 2s --json
plan trace.jsonl --model-config $LLAMA --gpu h100 --csv
plan trace.jsonl --model-config $LLAMA --gpu h100 --quantile 95% --tiers dram=512GiB@25GB/s
plan sessions.jsonl --model-config $LLAMA --gpu h100 --loop closed --ttft 2s
plan trace.jsonl --costs costs.json --extrapolate
plan trace.jsonl --model-config $LLAMA
calibrate $RECORDING --model llama-3.1-8b --gpu h100 -o OUT/costs.json
calibrate $RECORDING --model llama-3.1-8b --gpu h100 --holdout 30% --json
validate $RECORDING --model llama-3.1-8b --gpu h100
validate $RECORDING --model llama-3.1-8b --gpu h100 --json
validate $RECORDING --costs costs.json --warm-up 50% --html OUT/validation.html
validate $RECORDING --model llama-3.1-8b --gpu h100 --per-request OUT/times.csv
models
models qwen3
models gpt-oss-120b
models gemma-3 --json
synthesize trace.jsonl -n 3x -o OUT/s.jsonl --seed 1
synthesize trace.jsonl -n 200 -o OUT/s.jsonl --method attach --seed 1 --tenants 3 --osl-multiplier 2
synthesize trace.jsonl --check --method attach --save-model OUT/model.json
synthesize trace.jsonl:0.7 large.jsonl:0.3 -n 300 --tenants 4 -o OUT/s.jsonl --seed 2
texts trace.jsonl -o OUT/p.jsonl --tokenizer $TINY
texts trace.jsonl -o OUT/p.jsonl --tokenizer $TINY --to openai --model my-model --seed 4
watch --follow $RAW --from-start --block-size 16 --capacity 100 --once
watch --follow $RAW --from-start --block-size 16 --capacity 100 --once --json
synthesize sessions.jsonl --sessions 3x -o OUT/s.jsonl
analyze sessions.jsonl --json
analyze sessions.jsonl
completion bash
completion zsh
completion fish
datagen analyze --input-file trace.jsonl --block-size 16
datagen synthesize --input-file trace.jsonl --block-size 16 --num-requests 50 --output-file OUT/d.jsonl
"""


def rows() -> Iterator[str]:
    """Each command line: the rows above, each log of tests/data, each format of `convert`, and each help text."""
    yield from (row for row in ROWS.splitlines() if row)
    for log in LOGS:
        arrivals = " --arrivals rate=2/s,think=30s,seed=1" if log in UNTIMED else ""
        yield f"anonymize $LOGS/{log} -o OUT/t.jsonl --profile exact --block-size 16 --allow-truncated{arrivals}"
        yield f"lint $LOGS/{log}"
    for name in FORMATS:
        suffix = name if name in ("parquet", "dataset") else SUFFIXES.get(name, "jsonl")
        yield f"convert sessions.jsonl -o OUT/t.{suffix} --to {name} --assume-output 100"
    yield "--help"
    for name in commands.commands:
        yield f"{name} --help"


def name_of(row: str) -> str:
    """A file name for a command line."""
    return re.sub(r"[^\w.%+-]+", "_", row.replace("$LOGS/", "").replace("$", "")).strip("_")[:150]


def run(row: str, columns: int, folder: Path) -> None:
    """Run one command line in the folder; keep its output, status and files."""
    name = name_of(row)
    out = folder / "files" / f"{name}.{columns}"
    out.mkdir(parents=True)
    program = DATAGEN if row.startswith("datagen ") else KVTRACE
    words = shlex.split(_filled(row.removeprefix("datagen ")).replace("OUT/", f"{out.relative_to(folder)}/"))
    environment = {**os.environ, "COLUMNS": str(columns), "LINES": "40", "NO_COLOR": "1"}
    ended = subprocess.run([program, *words], cwd=folder, env=environment, capture_output=True, timeout=300)
    stdout = FIGURES.sub(b"N", ended.stdout) if row.startswith("watch") and "--json" in row else ended.stdout
    text = b"$ %s\nstatus %d\n--- stdout\n%s\n--- stderr\n%s" % (
        row.encode(), ended.returncode, _masked(stdout, out), _masked(ended.stderr, out)
    )  # fmt: skip
    (folder / f"{name}.{columns}.txt").write_bytes(text)
    for path in [path for path in out.rglob("*") if path.suffix in (".json", ".md", ".html")]:
        path.write_bytes(_masked(path.read_bytes(), out))
    if not any(out.iterdir()):
        out.rmdir()


def _filled(row):
    return Template(row).substitute(INPUTS)


def _masked(text, out):
    text = DATES.sub(b"DATE", text)
    return text.replace(str(ROOT).encode(), b"ROOT").replace(out.name.encode(), b"OUT")


def main(folder: Path) -> None:
    """Run every command line at each width."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for row in filter(None, SETUP.splitlines()):
        subprocess.run(shlex.split(_filled(row).replace("kvtrace", str(KVTRACE), 1)), cwd=folder, check=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(run, row, columns, folder) for row in rows() for columns in COLUMNS]
    for job in jobs:
        job.result()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
