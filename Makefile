# Entry points for people and for CI.  docs/building.md explains them.
#
#   make demo   a virtual environment, a build, and a training that is watched
#   make test   what the first tests need, and these tests: at most ten minutes
#   make help   the rest

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

PYTHON ?= python3
# Compiler jobs, and tests at a time; those of Python wait for programs that they start,
# so that one more of them keeps the processors busy.
JOBS ?= 2
WORKERS ?= $(shell expr $(JOBS) + 1)
# More arguments for pytest: make pytest ARGS='-k writer -x'.
ARGS ?=
# ON in CI: compilers that nobody has tried may warn of something new.
WERROR ?= OFF

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
EDITABLE := build/editable

# Versions are pinned in one file; pip 25.3 and later read the second name for
# what they install to build with.
export PIP_CONSTRAINT := $(CURDIR)/requirements/pinned.txt
export PIP_BUILD_CONSTRAINT := $(CURDIR)/requirements/pinned.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# cmake and ninja of the environment, whatever the machine has.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
# A second build of the same files costs nothing where ccache is installed.
ifneq ($(shell command -v ccache),)
export CMAKE_CXX_COMPILER_LAUNCHER ?= ccache
endif

BUILD_FILES := CMakeLists.txt pyproject.toml requirements/pinned.txt README.md \
  $(wildcard cmake/*.cmake)
CPP_FILES := $(shell find cpp -type f)
CPP_TESTS := $(shell find tests/cpp -type f)
PYTHON_FILES := $(shell find python -name node_modules -prune -o \
  \( -name '*.py' -o -name '*.pyi' -o -path '*/ui/static/*' \) -print)
FORMATTED_CPP = $(shell find cpp tests/cpp -name '*.h' -o -name '*.cc' -o -name '*.cu')

# Tests of what a wheel has not: the sources, the benchmarks, the examples.
SOURCE_TESTS := $(addprefix tests/python/,benchmarks docs/test_form.py examples house \
  ui/test_bundle.py)

# Modules are compiled to bytecode by their first import, if there is one: to compile
# those of all packages takes a minute.  Whoever keeps imports from writing it would wait
# five seconds for each program that imports torch, and tests start hundreds.
PIP_INSTALL := $(BIN)/pip install -qq --no-compile
unexport PYTHONDONTWRITEBYTECODE

# What pip needs to build without isolation, for builds that are incremental.
BUILD_TOOLS := blosc2 cmake ninja pybind11 scikit-build-core

.PHONY: help
help:
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 15

# ---- environment -------------------------------------------------------------

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "tdbg needs Python 3.11 or later: make PYTHON=/path/to/python3.11"; \
	    exit 1; }
	@echo "== creating $(VENV) with $$($(PYTHON) --version)"
	@# Debian's Python has venv without ensurepip; its pip can stand in.
	@$(PYTHON) -m venv $(VENV) > /dev/null || \
	  { $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	    $(PYTHON) -m pip --python $(BIN)/python install -qq pip; } || \
	  { echo "no pip for $(PYTHON): apt-get install python3-venv"; exit 1; }

# A regular `pip install` as a user would do it, isolated.
$(STAMPS)/installed: $(BUILD_FILES) $(CPP_FILES) $(PYTHON_FILES) | $(BIN)/pip
	@echo "== building and installing tdbg with what its demo needs"
	@$(PIP_INSTALL) '.[demo]'
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/tools: pyproject.toml requirements/pinned.txt | $(BIN)/pip
	@echo "== installing the build tools"
	@$(PIP_INSTALL) $(BUILD_TOOLS)
	@mkdir -p $(STAMPS) && touch $@

# Changes when a Python file appears or goes, not when one is edited: an editable
# installation reads them where they are, but has a list of them.
$(STAMPS)/files: FORCE | $(BIN)/pip
	@mkdir -p $(STAMPS)
	@echo '$(sort $(PYTHON_FILES))' | cmp -s - $@ || \
	  echo '$(sort $(PYTHON_FILES))' > $@
.PHONY: FORCE
FORCE:

# The editable installation, and the C++ tests in the same build tree; meanwhile the
# packages that the first tests need are fetched and unpacked.  Debian's pip (23.0) does
# not know the short -C.
$(STAMPS)/editable: $(STAMPS)/tools $(STAMPS)/files $(BUILD_FILES) $(CPP_FILES) \
    $(CPP_TESTS)
	@echo "== building tdbg and its C++ tests, installing what the first tests need"
	@$(PIP_INSTALL) $$($(BIN)/python requirements/of_extras.py test) & \
	packages=$$!; failed=0; \
	$(PIP_INSTALL) --no-build-isolation --no-deps --no-warn-conflicts --editable . \
	  --config-settings=build-dir=$(EDITABLE) \
	  --config-settings=cmake.define.TDBG_BUILD_TESTS=ON \
	  --config-settings=cmake.define.TDBG_WERROR=$(WERROR) || failed=$$?; \
	wait $$packages && exit $$failed
	@touch $@

# All frameworks, and what drives a browser: 4 GB.
$(STAMPS)/test-all: $(STAMPS)/editable
	@echo "== installing what all tests need"
	@$(PIP_INSTALL) $$($(BIN)/python requirements/of_extras.py test-all)
	@touch $@

# mypy reads the types of every library that tdbg imports somewhere.
$(STAMPS)/lint: $(STAMPS)/test-all
	@echo "== installing the tools for linting"
	@$(PIP_INSTALL) $$($(BIN)/python requirements/of_extras.py lint)
	@touch $@

# A checkout that has been made editable stays so: the demo then runs from it.
ifneq ($(wildcard $(STAMPS)/editable),)
DEMO_INSTALLATION := $(STAMPS)/editable
else
DEMO_INSTALLATION := $(STAMPS)/installed
endif

.PHONY: demo case-study develop
demo: $(DEMO_INSTALLATION) ## install tdbg and run its demo
	@$(BIN)/tdbg demo

case-study: $(DEMO_INSTALLATION) ## a sick training found, stopped, mended: docs/case-study.md
	@$(BIN)/pip install -qq pillow
	@$(BIN)/python -m examples.case_study $(ARGS)

develop: $(STAMPS)/lint ## an editable installation with every tool

# MXNet of 2022 needs a NumPy that nothing else runs with: an environment of its own, into
# which the editable installation is copied, so that nothing is compiled again. That NumPy
# is for Python 3.11 at the latest.
MXNET := .venv-mxnet
$(MXNET)/installed: requirements/mxnet.txt pyproject.toml $(STAMPS)/editable
	@echo "== installing MXNet into $(MXNET)"
	@$(BIN)/python -m venv --clear --without-pip $(MXNET)
	@PIP_CONSTRAINT=requirements/mxnet.txt PIP_BUILD_CONSTRAINT=requirements/mxnet.txt \
	  $(BIN)/pip --python $(MXNET)/bin/python install -qq --no-compile \
	  $$($(BIN)/python requirements/of_extras.py test-mxnet)
	@folder='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	cp -r $$($(BIN)/python -c "$$folder")/*tdbg* $$($(MXNET)/bin/python -c "$$folder")
	@touch $@

# ---- tests -------------------------------------------------------------------

.PHONY: test test-all test-rest test-cpp test-cpp-stress test-cuda asan tsan fuzz
.PHONY: pytest pytest-rest test-faults test-jupyterlab test-mxnet test-nightly test-wheel
test: test-cpp pytest ## C++ tests, and Python tests of the first tier: at most ten minutes

test-all: test test-rest ## all tests of a change

test-rest: test-cpp-stress asan tsan fuzz test-cuda pytest-rest test-mxnet ## what `make test-all` adds to `make test`

test-cpp: $(STAMPS)/editable ## C++ tests, optimized, but for those that repeat
	@echo "== C++ tests"
	@TDBG_TEST_QUICK=1 ctest --test-dir $(EDITABLE) -j $(JOBS) --output-on-failure \
	  --no-tests=error -LE stress

test-cpp-stress: $(STAMPS)/editable ## C++ tests that repeat, as often as they should
	@echo "== C++ tests that repeat"
	@ctest --test-dir $(EDITABLE) -j $(JOBS) --output-on-failure --no-tests=error \
	  -L stress

# Nothing to do where there is no nvcc.  The tests of the build read what is made here.
test-cuda: $(STAMPS)/editable ## compile the CUDA kernels if there is an nvcc
	@echo "== CUDA kernels"
	@mkdir -p build && cmake --preset cuda -DTDBG_WERROR=$(WERROR) > build/cuda.log || \
	  { cat build/cuda.log; exit 1; }
	@cmake --build --preset cuda
	@test ! -e build/cuda/cuda/ptxas.txt || cmake -DARCHITECTURES=2 \
	  -DREPORT=build/cuda/cuda/ptxas.txt -P cmake/CheckPtxas.cmake
	@$(BIN)/python -m pytest -q tests/python/house/test_cuda_build.py -k kernels_for_each

# Each file on its own: that shows that it includes what it uses.
asan: $(STAMPS)/tools ## C++ tests under AddressSanitizer and UBSan
	@echo "== C++ tests, AddressSanitizer and UBSan"
	@mkdir -p build && cmake --preset asan -DTDBG_WERROR=$(WERROR) > build/asan.log || \
	  { cat build/asan.log; exit 1; }
	@cmake --build --preset asan
	@ctest --preset asan -j $(JOBS)

tsan: $(STAMPS)/tools ## C++ tests of threads under ThreadSanitizer
	@echo "== C++ tests, ThreadSanitizer"
	@mkdir -p build && cmake --preset tsan -DTDBG_WERROR=$(WERROR) > build/tsan.log || \
	  { cat build/tsan.log; exit 1; }
	@cmake --build --preset tsan
	@ctest --preset tsan -j $(JOBS)

# Thirty minutes each: make fuzz SECONDS=1800.
fuzz: $(STAMPS)/tools ## fuzz what decodes a file: a minute for each structure
	@echo "== fuzz targets"
	@mkdir -p build && cmake --preset fuzz -DTDBG_WERROR=$(WERROR) \
	  -DTDBG_FUZZ_SECONDS=$(or $(SECONDS),60) > build/fuzz.log || \
	  { cat build/fuzz.log; exit 1; }
	@cmake --build --preset fuzz
	@ctest --preset fuzz -j $(JOBS)
	@grep -h ' runs in ' build/fuzz/Testing/Temporary/LastTest.log

# Tests marked `serial` first, alone; pytest exits with 5 where there are none.  Then file
# by file, so that what a file's tests share is made once, and in their order, in which
# the last ones are short.  What belongs to a tier: tests/python/helpers/tiers.py.
SERIAL_TESTS := $(shell grep -rl 'mark\.serial' tests/python --include='test_*.py')
# CI has a pytest of its own.
PYTEST ?= $(BIN)/python -m pytest
define run_pytest
	@$(PYTEST) -q --tier=$(1) -m 'serial and not nightly' $(ARGS) \
	  $(SERIAL_TESTS) || test $$? -eq 5
	@OMP_NUM_THREADS=1 $(PYTEST) -q --tier=$(1) -n $(WORKERS) \
	  --dist loadfile --no-loadscope-reorder -m 'not serial and not nightly' $(ARGS)
endef

pytest: $(STAMPS)/editable ## Python tests of the first tier: make pytest ARGS='-k writer -x'
	@echo "== Python tests"
	$(call run_pytest,first)

pytest-rest: $(STAMPS)/test-all ## Python tests of the second tier: all frameworks, a browser, slow ones
	@echo "== Python tests of the second tier"
	$(call run_pytest,second)

ifeq ($(shell $(PYTHON) -c 'import sys; print(sys.version_info[:2] == (3, 11))'),True)
test-mxnet: $(MXNET)/installed ## tests of the hook for MXNet, in its environment
	@echo "== tests with MXNet"
	@OMP_NUM_THREADS=1 $(MXNET)/bin/python -m pytest -q -n $(WORKERS) tests/mxnet
else
test-mxnet:
	@echo "== no tests with MXNet: it needs Python 3.11"
endif

test-wheel: $(STAMPS)/editable ## Python tests on a wheel, from the index, in an environment of its own
	@rm -rf build/wheel && mkdir -p build/wheel
	@$(PYTHON) -m venv build/wheel/venv
	@build/wheel/venv/bin/pip install -qq '.[test-all]'
	@cp -r tests pyproject.toml README.md docs build/wheel/
	@# Without the tests of the source tree, which is left behind on purpose.
	@cd build/wheel && TDBG_BUILD_DIR=$(CURDIR)/$(EDITABLE) \
	  venv/bin/python -m pytest -q -m 'not slow' $(SOURCE_TESTS:%=--ignore=%) \
	  $(ARGS)

test-jupyterlab: $(STAMPS)/test-all ## the live view in JupyterLab, driven by a browser
	@$(PIP_INSTALL) $$($(BIN)/python requirements/of_extras.py test-jupyterlab)
	@$(BIN)/python -m pytest -q -m nightly tests/python/notebook $(ARGS)

test-faults: $(STAMPS)/test-all ## what stores do to an uploader, with a hundred seeds: make test-faults SEEDS=10
	@TDBG_TEST_FAULT_SEEDS=$(or $(SEEDS),100) $(BIN)/python -m pytest -q -n $(WORKERS) \
	  tests/python/remote/test_faults.py $(ARGS)

test-nightly: test-all tidy test-wheel test-jupyterlab ## the above, what takes very long, tidy, and a wheel
	@# A race is found by chance: one pass is not enough.
	@ctest --preset tsan -j $(JOBS) --repeat until-fail:20
	@$(BIN)/python -m pytest -q -m nightly $(ARGS)

# ---- style -------------------------------------------------------------------

.PHONY: lint format tidy stubs
lint: $(STAMPS)/lint ## formatting, lint, types and layers
	@echo "== ruff, mypy, import-linter, clang-format"
	@ruff check .
	@ruff format --check .
	@mypy
	@PYTHONPATH=python lint-imports
	@clang-format --dry-run --Werror $(FORMATTED_CPP)
	@$(MAKE) --no-print-directory stubs

format: $(STAMPS)/lint ## rewrite the sources in the house style
	@ruff check --fix-only .
	@ruff format .
	@clang-format -i $(FORMATTED_CPP)

tidy: $(STAMPS)/lint ## compile core and module under clang-tidy
	@mkdir -p build && cmake --preset tidy > build/tidy.log || \
	  { cat build/tidy.log; exit 1; }
	@cmake --build --preset tidy

# The dashboard's page.  What is built is committed: users and tests need no node.
FRONTEND := python/tdbg/ui/frontend
.PHONY: ui
ui: $(FRONTEND)/node_modules/.package-lock.json ## build the dashboard's page: needs node 20
	@cd $(FRONTEND) && npm run --silent check && npm run --silent build

$(FRONTEND)/node_modules/.package-lock.json: $(FRONTEND)/package-lock.json
	@cd $(FRONTEND) && npm ci --ignore-scripts --silent

stubs: $(STAMPS)/lint ## compare _core.pyi with the module
	@echo "== stubtest"
	@$(BIN)/python -m mypy.stubtest tdbg._core

# ---- the rest ----------------------------------------------------------------

.PHONY: wheel
wheel: | $(BIN)/pip ## a wheel for others, with the CUDA kernels: needs nvcc
	@$(BIN)/pip wheel -q --no-deps --wheel-dir build/wheels . \
	  --config-settings=cmake.define.TDBG_CUDA=ON

.PHONY: bench bench-micro bench-intervals bench-detection bench-scenarios bench-wild bench-learnt bench-environments bench-report
.PHONY: bench-profiler
.PHONY: clean distclean
# FULL=1 for all rounds; SECONDS=60 bounds each slowdown; ONLY has beginnings of
# names, with commas: make bench ONLY=overhead/resnet,writer
bench: | $(BIN)/pip ## benchmarks, quickly: make bench ONLY=overhead/resnet FULL=1
	@$(BIN)/python -m benchmarks.run --only '$(ONLY)' $(if $(FULL),--full) \
	  $(if $(SECONDS),--seconds $(SECONDS))

# On a GPU: ARGS='--device cuda --only resnet,bert'.
bench-intervals: $(STAMPS)/test-all ## what each save interval costs, beside smdebug's paper: ten minutes
	@$(BIN)/python -m benchmarks.save_interval $(ARGS)

# Two commits: ARGS=--benchmark-save=before, then ARGS=--benchmark-compare.
bench-micro: $(STAMPS)/test-all ## reducers, codec, writer and reader: make bench-micro ARGS='-k codec'
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q benchmarks --benchmark-only $(ARGS)

# Recorded runs are kept in build/detection: a second time takes minutes. The second table
# has the thresholds moved.
bench-detection: $(STAMPS)/test-all ## what rules find, on sick and healthy trainings: make bench-detection ONLY=raw SEEDS=1
	@for verb in judge sweep; do OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.detection $$verb \
	  --only '$(ONLY)' --seeds $(or $(SEEDS),5) --jobs $(JOBS) \
	  $(if $(WRITE),--write benchmarks/detection/README.md) || exit 1; done

# Processes of 48 s, and four of 400 s that ARGS=--short leaves out. Others: ARGS=advice, ARGS=corpus.
bench-scenarios: $(STAMPS)/test-all ## what rules about time name, and whether gains are met: make bench-scenarios ONLY=loader
	@$(BIN)/python -m benchmarks.detection.scenarios $(ARGS) --only '$(ONLY)'

bench-wild: $(STAMPS)/test-all ## programs that know no tdbg, and mistakes in them: make bench-wild ONLY=vae,gan
	@$(BIN)/python -m benchmarks.wild --only '$(ONLY)' --jobs $(JOBS) \
	  $(if $(WRITE),--write benchmarks/wild/README.md)

bench-learnt: $(STAMPS)/test-all ## public bugs, named by what healthy twins teach: make bench-learnt ONLY=SO
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.learnt --only '$(ONLY)' \
	  $(if $(WRITE),--write benchmarks/learnt/README.md)

# Its peers are installed beside everything else: some of them want other versions.
PEERS := build/benchmarks/profiler-peers
bench-profiler: $(STAMPS)/editable ## the profiler against its targets, and its peers: ten minutes
	@test -d $(PEERS) || $(PIP_INSTALL) --target $(PEERS) wandb mlflow-skinny psutil py-spy
	@$(PIP_INSTALL) psutil
	@$(BIN)/python -m benchmarks.profiler --peers $(PEERS) $(ARGS)

bench-environments: | $(BIN)/pip ## what the benchmarks' contenders need
	@$(BIN)/python -m benchmarks.environments.create

bench-report: ## tables of all results; plots into docs/images
	@python=$${TDBG_BENCH_ENVS:-build/benchmarks}/env-tdbg/bin/python; \
	$$python -m benchmarks.report $(ONLY) --plots docs/images

# On a machine with a GPU, without a network: docs/gpu.md.  Uses $(PYTHON) as it is.
.PHONY: gpu-check gpu-kernels
gpu-check: ## build, test and measure on a GPU: make gpu-check PYTHON=python3 SECONDS=540
	@PYTHONPATH=$(CURDIR):$(CURDIR)/python$${PYTHONPATH:+:$$PYTHONPATH} \
	  $(PYTHON) -m benchmarks.gpu.check \
	  $(if $(SECONDS),--seconds $(SECONDS)) $(if $(STAGES),--stages $(STAGES))

gpu-kernels: $(STAMPS)/tools ## registers of the CUDA kernels, on later GPUs too; fails on a spill
	@mkdir -p build/ptx && cmake -DFOLDER=$(CURDIR)/build/ptx -P cmake/CheckPtx.cmake

clean: ## remove what was built; the environment stays
	@rm -rf build $(STAMPS)/editable $(STAMPS)/lint $(STAMPS)/test-all
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .benchmarks

distclean: clean ## remove the environment too
	@rm -rf $(VENV) $(MXNET)
