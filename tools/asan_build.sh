#!/bin/sh
# Build the kernels with bounds checks and AddressSanitizer in a copy of the tree, and fuzz them against their twins.
set -eu
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
shift  # the rest is for the fuzzer: --cases 1000 --seed 1
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r setup.py pyproject.toml README.md LICENSE src tests fuzz tools "$copy"
cd "$copy"
find . -name '*.so' -delete
rm -r src/kvtrace/cache src/kvtrace/serving  # they parse no bytes, and take three quarters of the time to build
runtime=$(gcc -print-file-name=libasan.so)
[ -e "$runtime" ] || { echo "gcc has no AddressSanitizer here: install libasan"; exit 1; }
CC=gcc CFLAGS="-fsanitize=address -fno-omit-frame-pointer" LDFLAGS="-fsanitize=address" KVTRACE_DEBUG_KERNELS=1 \
    "$python" setup.py --quiet build_ext --inplace >build.log 2>&1 || { cat build.log; exit 1; }
# leaks are the interpreter's at exit; its own allocator would hide what is past the end of an object
export ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc PYTHONPATH=src
LD_PRELOAD=$runtime "$python" -m fuzz.kernels "$@" --last last-case ||
    { echo "the last case was $(cat last-case)"; exit 1; }
