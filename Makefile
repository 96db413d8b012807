# `make run` solves the bundled test set with the bundled models, `make test` runs all tests; both set up .venv first.
PYTHON ?= python3
# Without a CUDA driver the CPU build of torch is asked for by version; a plain `torch` would bring gigabytes of CUDA.
TORCH ?= $(if $(shell command -v nvidia-smi),torch>=2.11$(comma)<2.15,torch==2.13.0)
comma := ,
BIN := .venv/bin

.PHONY: run test lint bench clean

run: .venv/ready
	$(BIN)/pipeline run graphs/speccot.yaml --input datasets/arith/test.parquet

test: .venv/ready lint
	$(BIN)/python -m pytest

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/ready
	$(BIN)/python bench/overhead.py
	$(BIN)/python bench/schedules.py

.venv/ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -qq --disable-pip-version-check "$(TORCH)"
	$(BIN)/pip install -qq --disable-pip-version-check --editable ".[dev]"
	touch $@

clean:
	rm -rf .venv build dist
