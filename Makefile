# SPDX-License-Identifier: Apache-2.0
# Every target does its own set-up and may be repeated; 'make help' lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV ?= .venv
ENGINE_VERSION ?= 0.32.0
ENGINE_VENV ?= .venv-engine
OLD_ENGINE_VERSION ?= 0.28.0
OLD_ENGINE_VENV ?= .venv-engine-$(OLD_ENGINE_VERSION)
DEMO_OUT ?= demo-out
PYTEST_ARGS ?=

PY := $(VENV)/bin/python
export GPUCORRELATE_ENGINE_VENV = $(abspath $(ENGINE_VENV))

.PHONY: help
help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.PHONY: packages
packages: ## compilers, libbpf and Python's venv, from the system's packages
	@scripts/system_packages.sh

$(VENV)/.ready: pyproject.toml setup.py scripts/venv.sh | packages
	@scripts/venv.sh $(VENV)

.PHONY: venv
venv: $(VENV)/.ready ## the development environment

# setup.py knows how; make only knows when.
NATIVE_SOURCES := $(wildcard probes/ebpf/*.bpf.c probes/ebpf/*.h probes/ebpf/build.py correlator/native/*.[ch] probes/importers/native/*.[ch] probes/agents/native/*.[ch] probes/agents/cupti/native/*.[ch])
.cache/native: $(NATIVE_SOURCES) setup.py $(VENV)/.ready
	@mkdir -p .cache
	@$(PY) setup.py -q build_native --inplace
	@touch $@

.PHONY: native
native: .cache/native ## the BPF objects and the C parts, in the source tree

.PHONY: engine-venv
engine-venv: packages ## an environment with a real vLLM on CPU, for tests and the demo
	@scripts/engine_venv.sh $(ENGINE_VERSION) $(ENGINE_VENV)

.PHONY: old-engine-venv
old-engine-venv: packages ## the same with the older engine that is tested too
	@scripts/engine_venv.sh $(OLD_ENGINE_VERSION) $(OLD_ENGINE_VENV)

.PHONY: demo
demo: venv native engine-venv ## a real engine, traced: where every microsecond of its requests went
	@$(PY) -m scripts.demo --out $(DEMO_OUT)

.PHONY: test
test: venv native engine-venv ## everything but the slow tests
	@$(PY) -m pytest -m "not slow" $(PYTEST_ARGS)

.PHONY: test-unit
test-unit: venv native ## what runs anywhere, in seconds
	@$(PY) -m pytest -m "not slow and not kernel and not engine and not system and not browser" $(PYTEST_ARGS)

.PHONY: test-browser
test-browser: venv native ## reports as pages, looked at in a real Chromium
	@scripts/browser_packages.sh
	@$(PY) -m pytest -m browser tests/browser $(PYTEST_ARGS)

.PHONY: test-slow
test-slow: venv native engine-venv old-engine-venv ## all tests, every engine profile, both engine versions, other kernels
	@scripts/qemu_packages.sh
	@scripts/browser_packages.sh
	@$(PY) -m pytest $(PYTEST_ARGS)
	@GPUCORRELATE_ENGINE_VENV=$(abspath $(OLD_ENGINE_VENV)) $(PY) -m pytest -m engine tests/engine $(PYTEST_ARGS)

TRUTH_OUT ?=
.PHONY: truth
truth: venv native ## how often the attribution is right; TRUTH_OUT=FILE for JSON
	@$(VENV)/bin/gpucorrelate verify --all $(if $(TRUTH_OUT),--output '$(TRUTH_OUT)')

FUZZ_S ?= 60
FUZZ_TARGETS ?=
.PHONY: fuzz
fuzz: venv native ## look for inputs that break a promise, FUZZ_S seconds a target; FUZZ_TARGETS: some
	@$(PY) -m pip install -q -r tests/fuzz/requirements.txt
	@$(PY) -m tests.fuzz --seconds $(FUZZ_S) $(FUZZ_TARGETS)

SOAK_MINUTES ?= 20
.PHONY: soak
soak: venv native engine-venv ## the daemon under a real engine's load for SOAK_MINUTES: does it stay as it is
	@$(PY) -m tests.soak --minutes $(SOAK_MINUTES)

.PHONY: lint
lint: venv native ## format, lint, types, import contracts, generated files
	@scripts/lint.sh $(VENV)

.PHONY: docs
docs: venv ## the documentation as a site in site/, links and navigation checked
	@$(PY) -m scripts.docs_commands --check
	@$(PY) -m scripts.docs_messages --check
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet

.PHONY: gen
gen: venv ## regenerate the C header, docs/events.md and the default settings from the code
	@$(PY) -m gpucorrelate.probes.wire.cgen
	@$(PY) -m gpucorrelate.daemon.configkeys >systemd/config.toml
	@$(PY) -m scripts.docs_commands
	@$(PY) -m scripts.docs_messages
	@$(PY) -m scripts.schema_page

.PHONY: bench
bench: venv native engine-venv ## throughput and overhead, beside other tools in the same run
	@scripts/bench_packages.sh
	@$(PY) -m tests.bench.overhead
	@$(PY) -m tests.bench.overhead.daemon
	@$(PY) -m tests.bench.report
	@$(PY) -m tests.bench.device
	@$(PY) -m tests.bench.drawing
	@$(ENGINE_VENV)/bin/python -m tests.bench.agent.in_process
	@$(PY) -m tests.bench.engine

.PHONY: build
build: venv ## wheel and sdist in dist/
	@$(PY) -m build --outdir dist .

# PREFIX, DESTDIR, PYTHON, WHEEL and PIP_ARGS are the script's, from the command line.
.PHONY: install
install: ## the program and its service: PREFIX (/usr/local), DESTDIR; see docs/operating.md
	@scripts/install.sh install

.PHONY: uninstall
uninstall: ## what install put there; recordings and changed settings stay
	@scripts/install.sh uninstall

.PHONY: clean
clean: ## what was built, not the environments
	rm -rf build dist *.egg-info .cache/native correlator/native/*.so probes/importers/native/*.so probes/agents/*.so probes/ebpf/*.bpf.o
