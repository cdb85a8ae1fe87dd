#!/bin/sh
# The main job on a log of our own: what `make demo` runs. The argument is the kvtrace command.
# Each line that is shown with a $ is the line that runs.
set -eu
PATH=$(cd "$(dirname "$1")" && pwd):$PATH
mkdir -p demo-output

step() { printf '\n%s\n' "$1"; }
show() { printf '$ %s\n' "$1"; sh -c "$1"; }

step '1. A raw log: 96 requests to a railway assistant, with the text of each prompt.'
show 'head -n 1 examples/raw_log.jsonl | cut -c 1-230'

step '2. Turn it into a trace. Each block of 16 tokens becomes a number, and the text
   is gone. Equal numbers mean equal prefixes.'
show 'kvtrace anonymize examples/raw_log.jsonl -o demo-output/trace.jsonl \
    --block-size 16 --quiet'
show 'head -n 3 demo-output/trace.jsonl'

step '3. Check the trace: is it valid, and is it safe to share?'
show 'kvtrace check demo-output/trace.jsonl'
show 'kvtrace audit demo-output/trace.jsonl | tail -n 1'

step '4. Use the trace: what would a prefix cache of 30, 60 or 120 blocks hit?'
show 'kvtrace curve demo-output/trace.jsonl --capacity 30,60,120'

cat <<'END'

Next, put kvtrace on your PATH and paste any of these:
  . .venv/bin/activate
  cat demo-output/trace.jsonl.card.md          # what the trace still shows
  kvtrace analyze demo-output/trace.jsonl      # lengths, reuse, arrivals
  kvtrace simulate demo-output/trace.jsonl --engine vllm,sglang --capacity 60

A page of plots needs one more package:
  pip install 'plotly>=6'
  kvtrace report demo-output/trace.jsonl -o demo-output/report.html

With a log of your own:
  kvtrace anonymize YOUR_LOG.jsonl -o shared.jsonl
END
