# Entry points for people and for CI.  docs/building.md explains them.
#
#   make demo   a virtual environment, a build, and a training that is watched
#   make test   everything that the tests need, and the tests
#   make help   the rest

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

PYTHON ?= python3
# Compiler jobs and test processes.
JOBS ?= 2
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

BUILD_FILES := CMakeLists.txt pyproject.toml requirements/pinned.txt README.md \
  $(wildcard cmake/*.cmake)
CPP_FILES := $(shell find cpp -type f)
CPP_TESTS := $(shell find tests/cpp -type f)
PYTHON_FILES := $(shell find python -name '*.py' -o -name '*.pyi')
FORMATTED_CPP = $(shell find cpp tests/cpp -name '*.h' -o -name '*.cc' -o -name '*.cu')

SOURCE_TESTS := $(patsubst %,tests/python/test_%.py,benchmark_harness \
  benchmark_overhead case_study cuda_build file_sizes include_layers \
  no_dangerous_calls)

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
	@$(BIN)/pip install -qq '.[demo]'
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/tools: pyproject.toml requirements/pinned.txt | $(BIN)/pip
	@echo "== installing the build tools"
	@$(BIN)/pip install -qq $(BUILD_TOOLS)
	@mkdir -p $(STAMPS) && touch $@

# Changes when a Python file appears or goes, not when one is edited: an editable
# installation reads them where they are, but has a list of them.
$(STAMPS)/files: FORCE | $(BIN)/pip
	@mkdir -p $(STAMPS)
	@echo '$(sort $(PYTHON_FILES))' | cmp -s - $@ || \
	  echo '$(sort $(PYTHON_FILES))' > $@
.PHONY: FORCE
FORCE:

# The editable installation, and the C++ tests in the same build tree.  Debian's pip
# (23.0) does not know the short -C.
$(STAMPS)/editable: $(STAMPS)/tools $(STAMPS)/files $(BUILD_FILES) $(CPP_FILES) \
    $(CPP_TESTS)
	@echo "== building tdbg and its C++ tests, installing the tools for testing"
	@$(BIN)/pip install -qq --no-build-isolation --editable '.[dev]' \
	  --config-settings=build-dir=$(EDITABLE) \
	  --config-settings=cmake.define.TDBG_BUILD_TESTS=ON \
	  --config-settings=cmake.define.TDBG_WERROR=$(WERROR)
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

develop: $(STAMPS)/editable ## an editable installation with every tool

# ---- tests -------------------------------------------------------------------

.PHONY: test test-cpp asan tsan pytest test-nightly test-wheel
test: test-cpp asan tsan pytest ## all tests of a change

test-cpp: $(STAMPS)/editable ## C++ tests, optimized
	@echo "== C++ tests"
	@ctest --test-dir $(EDITABLE) -j $(JOBS) --output-on-failure \
	  --no-tests=error

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

# Tests marked `serial` first, alone; pytest exits with 5 where there are none.  To
# collect all files takes ten seconds.  Then file by file, so that what a file's tests
# share is made once, and in their order, in which the last ones are short.
SERIAL_TESTS := $(shell grep -l 'mark\.serial' tests/python/test_*.py)
pytest: $(STAMPS)/editable ## Python tests: make pytest ARGS='-k writer -x'
	@echo "== Python tests"
	@$(BIN)/python -m pytest -q -m 'serial and not slow' $(ARGS) \
	  $(SERIAL_TESTS) || test $$? -eq 5
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile \
	  --no-loadscope-reorder -m 'not serial and not slow' $(ARGS)

test-wheel: $(STAMPS)/editable ## Python tests on a wheel, from the index, in an environment of its own
	@rm -rf build/wheel && mkdir -p build/wheel
	@$(PYTHON) -m venv build/wheel/venv
	@build/wheel/venv/bin/pip install -qq '.[test]'
	@cp -r tests pyproject.toml README.md docs build/wheel/
	@# Without the tests of the source tree, which is left behind on purpose.
	@cd build/wheel && TDBG_BUILD_DIR=$(CURDIR)/$(EDITABLE) \
	  venv/bin/python -m pytest -q -m 'not slow' $(SOURCE_TESTS:%=--ignore=%) \
	  $(ARGS)

test-nightly: test tidy test-wheel ## the above, the slow tests, tidy, and a wheel
	@# A race is found by chance: one pass is not enough.
	@ctest --preset tsan -j $(JOBS) --repeat until-fail:20
	@$(BIN)/python -m pytest -q -m slow $(ARGS)

# ---- style -------------------------------------------------------------------

.PHONY: lint format tidy stubs
lint: $(STAMPS)/editable ## formatting, lint, types and layers
	@echo "== ruff, mypy, import-linter, clang-format"
	@ruff check .
	@ruff format --check .
	@mypy
	@PYTHONPATH=python lint-imports
	@clang-format --dry-run --Werror $(FORMATTED_CPP)
	@$(MAKE) --no-print-directory stubs

format: $(STAMPS)/editable ## rewrite the sources in the house style
	@ruff check --fix-only .
	@ruff format .
	@clang-format -i $(FORMATTED_CPP)

tidy: $(STAMPS)/tools ## compile core and module under clang-tidy
	@mkdir -p build && cmake --preset tidy > build/tidy.log || \
	  { cat build/tidy.log; exit 1; }
	@cmake --build --preset tidy

stubs: $(STAMPS)/editable ## compare _core.pyi with the module
	@echo "== stubtest"
	@$(BIN)/python -m mypy.stubtest tdbg._core

# ---- the rest ----------------------------------------------------------------

.PHONY: bench bench-detection bench-environments bench-report clean distclean
# FULL=1 for all rounds; SECONDS=60 bounds each slowdown; ONLY has beginnings of
# names, with commas: make bench ONLY=overhead/resnet,writer
bench: | $(BIN)/pip ## benchmarks, quickly: make bench ONLY=overhead/resnet FULL=1
	@$(BIN)/python -m benchmarks.run --only '$(ONLY)' $(if $(FULL),--full) \
	  $(if $(SECONDS),--seconds $(SECONDS))

# Recorded runs are kept in build/detection: a second time takes minutes. The second table
# has the thresholds moved.
bench-detection: $(STAMPS)/editable ## what rules find, on sick and healthy trainings: make bench-detection ONLY=raw SEEDS=1
	@for verb in judge sweep; do OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.detection $$verb \
	  --only '$(ONLY)' --seeds $(or $(SEEDS),5) --jobs $(JOBS) \
	  $(if $(WRITE),--write docs/detection.md) || exit 1; done

bench-environments: | $(BIN)/pip ## what the benchmarks' contenders need
	@$(BIN)/python -m benchmarks.environments.create

bench-report: ## tables of all results; plots into docs/images
	@python=$${TDBG_BENCH_ENVS:-build/benchmarks}/env-tdbg/bin/python; \
	$$python -m benchmarks.report $(ONLY) --plots docs/images

# On a machine with a GPU, without a network: docs/gpu.md.  Uses $(PYTHON) as it is.
.PHONY: gpu-check gpu-kernels
gpu-check: ## build, test and measure on a GPU: make gpu-check PYTHON=python3 SECONDS=540
	@PYTHONPATH=$(CURDIR):$(CURDIR)/python $(PYTHON) -m benchmarks.gpu.check \
	  $(if $(SECONDS),--seconds $(SECONDS)) $(if $(STAGES),--stages $(STAGES))

gpu-kernels: $(STAMPS)/tools ## registers of the CUDA kernels, on later GPUs too; fails on a spill
	@mkdir -p build/ptx && cmake -DFOLDER=$(CURDIR)/build/ptx -P cmake/CheckPtx.cmake

clean: ## remove what was built; the environment stays
	@rm -rf build $(STAMPS)/editable
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

distclean: clean ## remove the environment too
	@rm -rf $(VENV)
