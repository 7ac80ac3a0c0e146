# ptctl: `make demo` for a first look, `make test check` before a commit. Every target builds what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One thread a process: the models in tests are tiny, and ranks share the cores. Tests never reach for the network.
ENV := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
PYTEST := $(ENV) $(BIN)/python -m pytest
FAST := not slow and not kill and not gpu and not sandbox and not slim

.PHONY: help setup demo test check format docs bench test-sandbox test-kill test-slim test-quickstart test-gpu clean

help:  ## Say what the targets do
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install -q -c constraints.txt -e '.[train,sandbox]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install -q -c constraints.txt -e '.[train,sandbox,dev]'
	@touch $@

setup: $(VENV)/.installed-dev  ## Make .venv with everything that development needs

demo: $(VENV)/.installed  ## Run the quickstart to the end: runs/quickstart
	$(ENV) $(BIN)/ptctl run recipes/quickstart -o runs/quickstart

test: setup  ## The fast tests
	$(PYTEST) -m "$(FAST)" tests

check: setup  ## Style, types, architecture, documents
	$(BIN)/ruff check src tests recipes docs
	$(BIN)/ruff format --check src tests recipes docs
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo
	$(BIN)/python docs/build_reference.py --check

format: setup  ## Format the code
	$(BIN)/ruff check --fix-only -q src tests recipes docs
	$(BIN)/ruff format src tests recipes docs

docs: setup  ## Write docs/reference anew from the code
	$(BIN)/python docs/build_reference.py

bench: setup demo  ## Benchmarks, each with its ratio to an alternative in the same run
	$(ENV) $(BIN)/python benchmarks/shards.py
	$(ENV) $(BIN)/python benchmarks/local_engine.py runs/quickstart/policies/31

test-sandbox: setup  ## Hostile payloads in real sandboxes
	$(PYTEST) -m sandbox tests

test-kill: setup  ## SIGKILL at random moments
	$(PYTEST) -m kill tests

test-slim: setup  ## The wheel alone, without any extra (needs the package index)
	$(PYTEST) -m slim tests

test-quickstart: setup  ## The quickstart with three seeds: the gain is significant in each
	$(PYTEST) -m slow tests/e2e

test-gpu: setup  ## What needs a CUDA device
	$(PYTEST) -m gpu tests

clean:  ## Remove environment and caches, keep runs
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
