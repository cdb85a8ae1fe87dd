#!/bin/sh
# The main job on a log of our own: what `make demo` runs. The argument is the kvtrace command.
set -eu
kvtrace=$1
out=demo-output
mkdir -p "$out"

echo "A raw log of $(wc -l <examples/raw_log.jsonl | tr -d ' ') requests, examples/raw_log.jsonl; its first 160 characters:"
head -c 160 examples/raw_log.jsonl
printf '...\n\n$ kvtrace anonymize examples/raw_log.jsonl -o %s/trace.jsonl --block-size 16\n' "$out"
"$kvtrace" anonymize examples/raw_log.jsonl -o "$out/trace.jsonl" --block-size 16

printf '\nThe trace, text replaced by block ids; its first 160 characters:\n'
head -c 160 "$out/trace.jsonl"
printf '...\n\n$ kvtrace check %s/trace.jsonl\n' "$out"
"$kvtrace" check "$out/trace.jsonl"
printf '\n$ kvtrace audit %s/trace.jsonl\n' "$out"
"$kvtrace" audit "$out/trace.jsonl"
printf '\nIn %s/: trace.jsonl, which holds no text, trace.jsonl.meta.json, which says how it was made, and trace.jsonl.card.md, its data card.\n' "$out"
