# `make quickstart` and `make test` work as the first command on a fresh clone: both set up `.venv`.
# PYTHON chooses the interpreter: make PYTHON=python3.12 test
PYTHON ?= python3
CHROMIUM ?= chromium
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
# megatron-core 0.16.1 is the newest release for Python 3.11; 0.19 runs there from source. The tests
# use this second copy (found through PYTHONPATH) to prove both; `make test` leaves out what differs
# from another test only in the code that is the input.
MCORE_NEXT := 0.19.2
MCORE_NEXT_DIR := $(VENV)/megatron-core-$(MCORE_NEXT)
# Transformer Engine's Python code, without its compiled part: its layers are built, not run.
TE := 2.20.2
TE_DIR := $(VENV)/transformer-engine-$(TE)
# Muon, which megatron-core 0.19 takes from there; it says Python 3.12, and runs on 3.11 but for one
# name of `typing`. Not on the path of other tests: megatron-core would import it everywhere.
EO := 0.3.0
EO_DIR := $(VENV)/emerging-optimizers-$(EO)
# torchtitan, whose training loop takes the input interface in one test; what else it needs is in .venv.
TT := 0.3.0
TT_DIR := $(VENV)/torchtitan-$(TT)
MCORE_TESTS := tests/transformer_engine tests/distributed $(wildcard tests/unit/test_config_*.py) tests/unit/test_data_datasets.py
MUON_TESTS := tests/distributed/test_muon.py

.PHONY: help setup quickstart report test test-full lint clean

help:
	@echo "make setup       create $(VENV) and install into it (once)"
	@echo "make quickstart  train learned, binary and gf2 models on this machine's CPU and compare them"
	@echo "make report      run the quickstart's comparison and photograph its page (needs Chromium)"
	@echo "make test        lint, types and all tests that a change must pass"
	@echo "make test-full   the same with the long proofs"

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints/cpu.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints/cpu.txt torch numpy setuptools
	$(PIP) install --quiet --constraint constraints/cpu.txt --no-build-isolation --editable '.[dev]'
	@touch $@

$(MCORE_NEXT_DIR)/.ready: $(VENV)/.ready
	$(PIP) install --quiet --no-deps --ignore-requires-python --no-binary megatron-core \
	    --upgrade --target $(MCORE_NEXT_DIR) megatron-core==$(MCORE_NEXT)
	@touch $@

$(TE_DIR)/.ready: $(VENV)/.ready
	$(PIP) install --quiet --no-deps --upgrade --target $(TE_DIR) transformer-engine==$(TE) einops
	@touch $@

$(EO_DIR)/.ready: $(VENV)/.ready
	$(PIP) install --quiet --no-deps --ignore-requires-python --upgrade --target $(EO_DIR) \
	    emerging-optimizers==$(EO)
	@touch $@

$(TT_DIR)/.ready: $(VENV)/.ready
	$(PIP) install --quiet --no-deps --upgrade --target $(TT_DIR) torchtitan==$(TT) \
	    spmd_types==0.2.3 torchdata==0.11.0 tyro==1.0.17 docstring-parser==0.18.0
	@touch $@

quickstart: setup
	$(BIN)/python tools/quickstart.py

report: setup
	$(BIN)/python tools/compare_runs.py examples/grids/quickstart.yaml
	$(CHROMIUM) --headless=new --no-sandbox --disable-gpu --hide-scrollbars --window-size=1100,1340 \
	    --screenshot=$(CURDIR)/docs/images/comparison.png \
	    file://$(CURDIR)/runs/compare_quickstart/report.html

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/shellcheck .ci/run $$(git ls-files '*.sh' '*.sbatch')
	if [ -x $(BIN)/hadolint ]; then $(BIN)/hadolint Dockerfile; fi

test: lint $(MCORE_NEXT_DIR)/.ready $(TE_DIR)/.ready $(EO_DIR)/.ready $(TT_DIR)/.ready
	$(BIN)/python -m pytest -m 'not slow'
	PYTHONPATH=$(MCORE_NEXT_DIR) $(BIN)/python -m pytest -m 'not slow' -k 'not gf2' $(MCORE_TESTS)
	PYTHONPATH=$(MCORE_NEXT_DIR):$(EO_DIR) $(BIN)/python -m pytest -m 'not slow' $(MUON_TESTS)

test-full: lint $(MCORE_NEXT_DIR)/.ready $(TE_DIR)/.ready $(EO_DIR)/.ready $(TT_DIR)/.ready
	$(BIN)/python -m pytest
	PYTHONPATH=$(MCORE_NEXT_DIR) $(BIN)/python -m pytest $(MCORE_TESTS)
	PYTHONPATH=$(MCORE_NEXT_DIR):$(EO_DIR) $(BIN)/python -m pytest $(MUON_TESTS)

clean:
	rm -rf $(VENV) build *.egg-info
