#!/bin/sh
# Build a wheel, install it in a bare environment, and do one of each thing that a user does first.
set -eu
python=$1
root=$(pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$python" -m pip wheel -qq --disable-pip-version-check --no-deps --wheel-dir "$scratch" .
"$python" -m venv "$scratch/bare"
"$scratch/bare/bin/pip" install -qq --disable-pip-version-check "$scratch"/kvtrace-*.whl
cd "$scratch"
bare/bin/kvtrace --help >/dev/null
bare/bin/kvtrace anonymize --quiet "$root/examples/raw_log.jsonl" -o trace.jsonl --block-size 16
bare/bin/kvtrace check trace.jsonl
bare/bin/kvtrace audit trace.jsonl >/dev/null
bare/bin/kvtrace release trace.jsonl -o strict.jsonl --profile strict >/dev/null
bare/bin/kvtrace simulate trace.jsonl --engine vllm --capacity 400 --no-gap >/dev/null
bare/bin/python -c 'import kvtrace; print(kvtrace.read("trace.jsonl"))'
bare/bin/python -c 'import kvtrace, pathlib; assert (pathlib.Path(kvtrace.__file__).parent / "cache/live/prefix_cache.pyi").exists() and kvtrace.__all__'
echo "wheel: $(ls kvtrace-*.whl) works in a bare environment"
