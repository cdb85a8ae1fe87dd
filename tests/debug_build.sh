#!/bin/sh
# Build the kernels with bounds checks in a copy of the tree, and run the tests of what they carry.
set -eu
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r setup.py pyproject.toml README.md LICENSE src tests docs "$copy"
find "$copy" -name '*.so' -delete
cd "$copy"
KVTRACE_DEBUG_KERNELS=1 "$python" setup.py --quiet build_ext --inplace >build.log 2>&1 || { cat build.log; exit 1; }
PYTHONPATH=src "$python" -m pytest -p no:cacheprovider tests/test_kernels.py tests/test_rows.py tests/test_trace.py tests/test_forest.py tests/test_reuse.py tests/test_analyze.py tests/test_simulate.py tests/test_policies_classic.py tests/test_policies_more.py tests/test_engine_vllm.py tests/test_engine_sglang.py tests/test_engine_lmcache.py tests/test_engine_tensorrt_llm.py tests/test_prefix_cache.py tests/test_synthesize.py tests/test_synthesize_attach.py tests/test_synthesize_tree.py
