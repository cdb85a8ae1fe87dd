#!/bin/sh
# Build the kernels with bounds checks in a copy of the tree, and run the tests of what they carry.
set -eu
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r setup.py pyproject.toml README.md LICENSE src tests docs tools "$copy"
find "$copy" -name '*.so' -delete
cd "$copy"
KVTRACE_DEBUG_KERNELS=1 "$python" setup.py --quiet build_ext --inplace >build.log 2>&1 || { cat build.log; exit 1; }
PYTHONPATH=src "$python" -m pytest -n 2 -p no:cacheprovider tests/native/test_kernels.py tests/formats/test_rows.py tests/trace/test_trace.py tests/trace/test_forest.py tests/analysis/test_reuse.py tests/analysis/test_analyze.py tests/cache/test_simulate.py tests/cache/test_policies_classic.py tests/cache/test_policies_more.py tests/cache/test_engine_vllm.py tests/cache/test_engine_sglang.py tests/cache/test_engine_lmcache.py tests/cache/test_engine_tensorrt_llm.py tests/cache/test_prefix_cache.py tests/synthesis/test_synthesize.py tests/synthesis/test_synthesize_attach.py tests/synthesis/test_synthesize_tree.py
