# The project's commands; `make` lists them. CI and hooks call these and nothing of their own.

PYTHON ?= python3
VENV ?= .venv
FUZZ_SHORT ?= 20
FUZZ_SECONDS ?= 3600
PY := $(VENV)/bin/python
.DEFAULT_GOAL := help
.PHONY: help demo test check lint types wheel debug fuzz-short fuzz docs vectors bench clean

help:  ## list the commands
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/demo  ## set up, then turn a raw log of our own into a trace and check it
	@sh examples/demo.sh $(VENV)/bin/kvtrace

test: $(VENV)/dev  ## run the tests
	$(PY) -m pytest

check: $(VENV)/engine lint types test debug fuzz-short wheel  ## all that CI runs, PyTorch's tests among it

lint: $(VENV)/dev  ## ruff: style and formatting of the code
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(VENV)/dev  ## mypy over the package
	$(PY) -m mypy

debug: $(VENV)/dev  ## the kernels' tests against a build with bounds checks
	sh tests/debug_build.sh $(PY)

fuzz-short: $(VENV)/dev  ## fuzzers for FUZZ_SHORT seconds each, the kernels' with AddressSanitizer; 100,000 canaries
	$(PY) -m fuzz.readers --seconds $(FUZZ_SHORT)
	$(PY) -m fuzz.scanner --seconds $(FUZZ_SHORT)
	sh tests/asan_build.sh $(PY) $(FUZZ_SHORT)
	KVTRACE_CANARY_ROWS=100000 $(PY) -m pytest tests/ingest/test_canary.py -k nothing_that_a_run_leaves

fuzz: $(VENV)/dev  ## fuzzers for FUZZ_SECONDS each (an hour), what they find kept in build/fuzz; a million canaries, 200 kills
	$(PY) -m fuzz.readers --seconds $(FUZZ_SECONDS) build/fuzz/readers
	$(PY) -m fuzz.scanner --seconds $(FUZZ_SECONDS) build/fuzz/scanner
	sh tests/asan_build.sh $(PY) $(FUZZ_SECONDS)
	KVTRACE_CANARY_ROWS=1000000 $(PY) -m pytest tests/ingest/test_canary.py -k nothing_that_a_run_leaves
	KVTRACE_KILL_POINTS=200 $(PY) -m pytest tests/ingest/test_resume.py -k killed_its_resumption

wheel: $(VENV)/dev  ## build a wheel and try it in a bare environment
	sh tests/smoke_wheel.sh $(PY)

docs: $(VENV)/dev  ## write the --help texts into docs/cli/cli.md
	$(PY) -m tests.make_docs

vectors: $(VENV)/dev  ## write the test vectors from the reference; a diff is a change of behaviour
	for module in tests/make_vectors*.py; do $(PY) -m tests.$$(basename $$module .py); done

bench: $(VENV)/dev  ## measure, with the rivals in the same run
	$(PY) -m benchmarks

clean:  ## remove what was built
	rm -rf build dist $(VENV) demo-output .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find src -name '*.so' -delete

COMPILED := $(addprefix src/kvtrace/,_native cache/core cache/live cache/policies cache/structures serving/core)
SOURCES := pyproject.toml setup.py $(wildcard $(COMPILED:%=%/*.py) $(COMPILED:%=%/*.pxd))

# an editable install with the kernels compiled in place; made again when a kernel or a dependency changes
$(VENV)/demo: $(SOURCES)
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV): packages from the index, and our kernels compiled (about a minute) ..."
	@$(PY) -m pip install -qq --disable-pip-version-check --editable .
	@touch $@

# the experiments' tests of a real engine skip without it; `make test` alone does not ask for it
$(VENV)/engine: | $(VENV)/dev
	$(PY) -m pip install -qq --disable-pip-version-check torch==2.13.0
	@touch $@

$(VENV)/dev: $(SOURCES)
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) for development: packages from the index, and our kernels compiled (a minute or two) ..."
	@$(PY) -m pip install -qq --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/demo
