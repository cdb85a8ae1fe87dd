# The project's commands; `make` lists them. CI and hooks call these and nothing of their own.

PYTHON ?= python3
VENV ?= .venv
TESTS ?= tests
# tests that start processes wait for them, so one job more than there are processors
TEST_JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
CIBUILDWHEEL ?= pipx run cibuildwheel==4.3.3
FUZZ_SECONDS ?= 3600
# folders where a wheel may lie that has these sources compiled
WHEELS ?= dist ../wheels
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
.DEFAULT_GOAL := help
include tools/times.mk
.PHONY: help demo build test quick check lint types wheel wheels sdist oldest image release-ready debug fuzz-short fuzz docs site vectors bench bench-quick times experiments check-pythons clean

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-14s %s\n", $$1, $$2}'

# what the demo needs is compiled first, and the rest once it has run; later on, what changed is compiled before it
demo: $(or $(wildcard $(VENV)/built),$(VENV)/installed)  ## set up, then turn a raw log of our own into a trace and check it
	@sh examples/demo.sh $(VENV)/bin/kvtrace
	@$(MAKE) --no-print-directory build

build: $(VENV)/built  ## compile what changed
	@:

test: $(VENV)/dev $(VENV)/built  ## run the tests; TESTS="tests/cache -k sieve" runs some of them
	$(PY) -m pytest -n $(TEST_JOBS) --dist loadgroup --randomly-seed=1 $(TESTS)

quick: $(VENV)/dev $(VENV)/built  ## run the fast tests of what you changed, a few minutes; ROOMS="cache text" names the rooms
	paths=$$($(PY) -m tests.quick $(ROOMS)) && KVTRACE_EXAMPLES=5 $(PY) -m pytest -n $(TEST_JOBS) --dist loadgroup -m "not slow" $$paths

check: $(VENV)/engine lint types test  ## all that CI runs, PyTorch's tests among it
	@$(MAKE) --no-print-directory -j 2 --output-sync=target debug fuzz-short bench-quick wheel

lint: $(VENV)/dev  ## ruff: style and formatting of the code
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(VENV)/dev $(VENV)/built  ## mypy over the package, and the share of its types that pyright knows
	$(PY) -m mypy
	$(PY) tools/type_completeness.py 0.95

debug: $(VENV)/dev  ## the kernels' tests against a build with bounds checks
	sh tools/debug_build.sh $(PY)

fuzz-short: $(VENV)/dev $(VENV)/built  ## the fuzzers on the same inputs each time, the kernels' with AddressSanitizer; 100,000 canaries
	PYTHONHASHSEED=0 $(PY) -m fuzz.readers --seed 1 --cases 20000
	PYTHONHASHSEED=0 $(PY) -m fuzz.scanner --seed 1 --cases 8000
	$(PY) -m fuzz.files --seed 1 --cases 200
	PYTHONHASHSEED=0 $(PY) -m fuzz.kinds --seed 1 --cases 40
	sh tools/asan_build.sh $(PY) --seed 1 --cases 20000
	KVTRACE_CANARY_ROWS=100000 $(PY) -m pytest tests/ingest/test_canary.py -k nothing_that_a_run_leaves

fuzz: $(VENV)/dev $(VENV)/built  ## fuzzers for FUZZ_SECONDS each (an hour), what they find kept in build/fuzz; more examples, a million canaries, 200 kills each
	$(PY) -m fuzz.readers --seconds $(FUZZ_SECONDS) build/fuzz/readers
	$(PY) -m fuzz.scanner --seconds $(FUZZ_SECONDS) build/fuzz/scanner
	$(PY) -m fuzz.files --seconds $(FUZZ_SECONDS)
	$(PY) -m fuzz.kinds --seconds $(FUZZ_SECONDS)
	sh tools/asan_build.sh $(PY) --seconds $(FUZZ_SECONDS)
	KVTRACE_RANDOM=1 KVTRACE_THOROUGH=1 KVTRACE_EXAMPLES=400 $(PY) -m pytest -n $(TEST_JOBS) --dist loadgroup tests
	KVTRACE_CANARY_ROWS=1000000 $(PY) -m pytest tests/ingest/test_canary.py -k nothing_that_a_run_leaves
	KVTRACE_KILL_POINTS=200 $(PY) -m pytest tests/ingest/test_resume.py -k killed_at_any_point
	KVTRACE_KILL_POINTS=200 $(PY) -m pytest tests/capture/test_crash.py
	KVTRACE_DISK_POINTS=20 $(PY) -m pytest tests/cli/test_full_disk.py

wheel: $(VENV)/built  ## build a wheel into dist, and try it in a bare environment
	sh tools/smoke_wheel.sh $(PY)

sdist: $(VENV)/dev  ## build the source archive into dist, and try it outside of git
	sh tools/smoke_sdist.sh $(PY)

wheels:  ## build a wheel for each Python into dist and try it, as a release does; on Linux it needs docker
	$(CIBUILDWHEEL) --output-dir dist

oldest: $(VENV)/dev  ## install the oldest packages that pyproject.toml allows, and try kvtrace with them
	sh tools/try_oldest.sh $(PY)

release-ready:  ## compare the versions that the files name, and the tag where there is one
	$(PYTHON) tools/release_ready.py

image:  ## build the container image kvtrace and try it; it needs docker
	docker build --tag kvtrace .
	docker run --rm --network none --read-only kvtrace --version
	docker run --rm --network none --read-only --tmpfs /tmp --volume "$(CURDIR):/source:ro" --entrypoint python \
		kvtrace /source/tools/try_install.py /source

docs: $(VENV)/dev $(VENV)/built  ## write the JSON schemas and the outputs of pages into docs
	$(PY) -m tests.make_docs

site: $(VENV)/dev $(VENV)/built  ## write the docs site into build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build

vectors: $(VENV)/dev $(VENV)/built  ## write the test vectors from the reference; a diff is a change of behaviour
	for module in tests/make_vectors*.py; do $(PY) -m tests.$$(basename $$module .py); done

bench: $(VENV)/dev $(VENV)/built  ## measure, with the rivals in the same run
	$(PY) -m benchmarks

bench-quick: $(VENV)/dev $(VENV)/built  ## run each part of the bench on little data: promises of time are not checked
	$(PY) -m benchmarks --quick

times: $(VENV)/dev  ## measure in a fresh clone what set-up and build take, and write it into tools/times.mk
	$(PY) -m tools.times

experiments: $(VENV)/engine $(VENV)/built  ## Lin's report again, 7 minutes, into build/experiments; REQUESTS=100 tries it in one
	$(PY) -m experiments all build/experiments $(if $(REQUESTS),--requests $(REQUESTS))

check-pythons:  ## build, demo and fast tests with each Python from 3.11 to 3.14 that is installed
	sh tools/check_pythons.sh

clean:  ## remove what was built
	rm -rf build dist $(VENV) demo-output .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find src -name '*.so' -delete

# kernels are compiled while pip fetches the packages that kvtrace needs
$(VENV)/installed: pyproject.toml
	@test -x $(PY) || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	 { echo "kvtrace needs Python 3.11 or newer, and this is $$($(PYTHON) --version). Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV): packages from the index, and kernels to compile (about $(DEMO_S) s on 2 processors) ..."
	@$(PY) tools/requirements.py build >$(VENV)/build.txt && $(PIP) install -qq --requirement $(VENV)/build.txt
	@{ $(PY) tools/prebuilt.py $(WHEELS) && touch $(VENV)/built || KVTRACE_ONLY=_native $(PY) setup.py -q build_ext --inplace; } & \
	 compiling=$$!; $(PY) tools/requirements.py run >$(VENV)/run.txt && $(PIP) install -qq --requirement $(VENV)/run.txt && \
	 KVTRACE_IS_BUILT=1 $(PIP) install -qq --no-build-isolation --no-deps --editable . && wait $$compiling
	@touch $@

# each .pyx, each .pxd, and each .py that has a .pxd beside it; a plain Python file is not among them
DECLARED := $(shell find src -name '*.pxd')
SOURCES := setup.py $(DECLARED) $(wildcard $(DECLARED:.pxd=.py)) $(shell find src -name '*.pyx')

# a wheel's kernels are new already; find fails, and says so, where nothing but _native was compiled
$(VENV)/built: $(SOURCES) | $(VENV)/installed
	@test -z "$$(find $(SOURCES) -newer $@ 2>&1)" || { \
	 if test -f $@; then echo "compiling what changed (a policy takes about $(POLICY_CPU_S) s, all of it $(BUILD_S) s on 2 processors) ..."; \
	 else echo; echo "Compiling what simulations need (about $(REST_S) s on 2 processors) ..."; fi; \
	 $(PY) setup.py -q build_ext --inplace; }
	@touch $@

$(VENV)/dev: pyproject.toml | $(VENV)/built
	@echo "setting up $(VENV) for development: more packages from the index (about $(DEV_S) s) ..."
	@$(PY) tools/requirements.py dev >$(VENV)/dev.txt && $(PIP) install -qq --requirement $(VENV)/dev.txt
	@touch $@

# the experiments' tests of a real engine skip without it; `make test` alone does not ask for it
$(VENV)/engine: | $(VENV)/dev
	$(PY) tools/requirements.py engine >$(VENV)/engine.txt && $(PIP) install -qq --requirement $(VENV)/engine.txt
	@touch $@
