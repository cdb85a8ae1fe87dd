#!/bin/sh
# Build a wheel into dist/, install it in a bare environment, and do one of each thing that a user does first, with no
# compiler. `make demo` of a clone takes its kernels from there.
set -eu
python=$1
root=$(pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$python" -m pip wheel -qq --disable-pip-version-check --no-deps --wheel-dir "$scratch" .
"$python" -m venv "$scratch/bare"
mkdir -p dist
cp "$scratch"/kvtrace-*.whl dist
"$scratch/bare/bin/pip" install -qq --disable-pip-version-check "$scratch"/kvtrace-*.whl
cd "$scratch"
PATH=$scratch/bare/bin bare/bin/python "$root/tools/try_install.py" "$root"
echo "wheel: $(ls kvtrace-*.whl) works in a bare environment"
