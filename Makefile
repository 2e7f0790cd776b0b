# keepstep. `make demo` and `make test` are all one needs on a fresh Debian 12; second runs are quick.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
PYTHON_VENV := .venv/bin/python
BUILD := build
JOBS ?= $(shell nproc)
BUILD_SH = BUILD="$(BUILD)" JOBS="$(JOBS)" scripts/build.sh
PYTEST = $(PYTHON_VENV) -m pytest -q -p no:cacheprovider

# The engine's extension for another interpreter; the rest of the build does not depend on Python.
OLDEST_FLAGS = -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo "-DPython_EXECUTABLE=$(CURDIR)/.venv-oldest/bin/python" \
	-DKEEPSTEP_CONTROL_PLANE=OFF -DKEEPSTEP_TESTS=OFF

.PHONY: help setup build demo test test-all test-cc test-python test-oldest test-gpu chaos sanitize fuzz bench docs lock wheel sbom lint format clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup:  ## install what is missing (apt, .venv)
	@scripts/setup.sh

build: setup  ## build engine, agent and command
	@$(BUILD_SH)

# What the demo runs, and no more; configured as for the tests, which then only build what is missing.
demo:  ## the main job: two ranks, then a whole node killed; no step lost, every loss equal bit for bit
	@scripts/setup.sh run env $(BUILD_SH) keepstep _engine _checkpoint
	@$(PYTHON_VENV) -m keepstep.bench demo

test: test-cc test-python  ## all tests but the long matrices

test-cc: build
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS) --timeout 300 | tail -n 25

test-python: build
	@scripts/setup.sh strangers
	@PYTHON=$(PYTHON_VENV) scripts/test_python.sh tests -m "not long"

test-oldest: build  ## the tests in Python with the oldest Python and torch supported
	@scripts/setup.sh oldest
	@cmake -S . -B build-oldest $(OLDEST_FLAGS) >/dev/null
	@ninja -C build-oldest -j $(JOBS) | tail -n 1
	@ln -sf "$(CURDIR)/$(BUILD)/keepstep" .venv-oldest/bin/keepstep
	@.venv-oldest/bin/python -c 'import sys, torch; print("Python", sys.version.split()[0], "torch", torch.__version__)'
	@PYTHON=.venv-oldest/bin/python scripts/test_python.sh tests -m "not long"

test-gpu: build  ## what only a GPU can show; skipped, with the reason, where there is none
	@$(PYTEST) -rs tests/gpu

# SEED, ROUND, STEPS and MODEL repeat what a failure prints. ELASTIC=1: jobs of changing size.
SECONDS ?= 3600
chaos: build  ## all faults at random for SECONDS=3600, bits compared with undisturbed runs, nothing may leak
	@$(PYTHON_VENV) tests/chaos --seconds $(SECONDS) --build "$(CURDIR)/$(BUILD)" $(if $(SEED),--seed $(SEED)) \
		$(if $(ROUND),--round $(ROUND)) $(if $(STEPS),--steps $(STEPS)) $(if $(MODEL),--model $(MODEL)) \
		$(if $(ELASTIC),--elastic)

# STAGE: this one, or a group such as long. FRESH=1: what has passed, too. LIST=1: only show what is known. SECONDS: instead
# of an hour of chaos, and of half an hour beside a load.
test-all: build  ## everything, in stages that are kept: the whole kill matrix, oldest torch, sanitizers, chaos, ...
	@$(PYTHON_VENV) scripts/test_all.py $(foreach stage,$(STAGE),--only $(stage)) $(if $(FRESH),--fresh) \
		$(if $(LIST),--list) $(if $(filter command environment,$(firstword $(origin SECONDS))),--seconds $(SECONDS))

sanitize: setup  ## the engine's tests under ASan/UBSan and TSan
	@scripts/sanitize.sh address
	@scripts/sanitize.sh thread

fuzz: setup  ## what is read from connections, under libFuzzer
	@scripts/fuzz.sh 60

bench: build  ## recovery against torchrun, what a step costs, all_reduce against Gloo, rendezvous against TCPStore
	@$(PYTHON_VENV) -m keepstep.bench step --json
	@$(PYTHON_VENV) -m keepstep.bench allreduce --json
	@$(PYTHON_VENV) -m keepstep.bench rendezvous --against tcpstore --json
	@$(PYTHON_VENV) -m keepstep.bench recovery --against torchrun --json

lock: setup  ## requirements*.lock from requirements*.txt: all versions, and the hashes of all files
	@scripts/lock.sh

# PYTHONS: interpreters, by name in PATH or by path; one of 3.12 or newer makes the wheel for all from 3.12 on.
wheel: setup  ## dist/*.whl for Python 3.10, 3.11, and 3.12 and newer: everything in them, for any Linux
	@PYTHONS="$(PYTHONS)" JOBS=$(JOBS) scripts/wheel/build.sh

sbom: build  ## build/sbom.json: all that the build is made of and links to (CycloneDX)
	@$(PYTHON_VENV) scripts/sbom.py --build $(BUILD) --out $(BUILD)/sbom.json

docs:  ## the site of the documentation, in build-docs/site; fails if a link leads nowhere
	@scripts/docs.sh

lint: build  ## formatting, types, and mistakes that clang-tidy finds
	@$(PYTHON_VENV) -m ruff check python tests examples scripts
	@$(PYTHON_VENV) -m ruff format --check python tests examples scripts
	@$(PYTHON_VENV) -m mypy
	@scripts/format.sh --check
	@scripts/tidy.sh

format: setup  ## format C++ and Python
	@$(PYTHON_VENV) -m ruff check --fix python tests examples scripts
	@$(PYTHON_VENV) -m ruff format python tests examples scripts
	@scripts/format.sh

clean:  ## remove build folders (packages stay)
	@rm -rf $(BUILD) build-* demo dist .venv-oldest .venv*.new
