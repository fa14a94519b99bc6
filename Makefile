# `make demo` shows the main job, `make test` runs the tests, `make check` adds format, lint and types,
# `make bench` measures the speed claims. Each creates .venv on first use, with the versions that
# constraints.txt pins.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
DEMO_DIR ?= runs/demo
DEMO_BUDGET ?= 200
TEST_WORKERS ?= 2

.PHONY: help demo test lint check bench format constraints clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^\([a-z]*\):.*## /  make \1	/p' Makefile

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "SOLGym needs Python 3.11 or newer; say which with: make PYTHON=python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# threadpoolctl lets the comparison name the BLAS kernels that numpy runs.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable . threadpoolctl
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[dev,rl]'
	@touch $@ $(VENV)/.installed

demo: $(VENV)/.installed ## calibrate this CPU and tune a 512 x 512 x 512 GEMM on it (under 5 minutes)
	$(BIN)/solgym calibrate
	$(BIN)/solgym tune KernelDSL-GEMM-v0 --tuner random --budget $(DEMO_BUDGET) --seconds 200 --seed 0 --out $(DEMO_DIR)

test: $(VENV)/.installed-dev ## run the tests
	$(BIN)/python -m pytest -n $(TEST_WORKERS)

lint: $(VENV)/.installed-dev ## check format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test ## everything that must hold before a commit

bench: $(VENV)/.installed-dev ## measure the speed claims (needs a quiet machine)
	$(BIN)/python -m pytest benchmarks --benchmark-only

format: $(VENV)/.installed-dev ## rewrite the sources in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

constraints: $(VENV)/.installed-dev ## pin what is installed now
	@{ sed -n '/^#/p' constraints.txt; $(BIN)/python -m pip freeze --exclude-editable | sed 's/+[a-z0-9.]*$$//' | grep -v '@'; } > constraints.txt.new
	@mv constraints.txt.new constraints.txt

clean: ## remove the virtual environment and everything built
	rm -rf $(VENV) build dist solgym.egg-info .pytest_cache .mypy_cache .ruff_cache .benchmarks
