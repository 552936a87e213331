# Two commands do all the set-up: `make demo` and `make test`. Only Python 3.11 or newer is needed.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INPUTS := pyproject.toml constraints.txt
# Whatever is installed, builds too, must have the version and the hash of constraints.txt.
INSTALL = $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -b constraints.txt $(LEAN)
# 1 GB that compiles kernels for GPUs, and that torch imports only for its compiler: left out where
# no NVIDIA driver is. `make env GPU=1` installs it, for a machine with a GPU.
GPU ?= $(wildcard /proc/driver/nvidia)
LEAN = $(if $(GPU),,--excludes $(VENV)/no-gpu.txt)
# Tests start hundreds of processes; a locked one cannot keep the bytecode that it compiles.
COMPILED := av boto3 botocore cv2 numpy open_clip pyarrow pydantic ray scipy sympy torch torchvision transformers
# Folders that no test, or one test, imports.
NOT_COMPILED := /(tests|testing|models|_inductor|rllib|serve|train|tune)/
EXTRAS := captions-local clip cloud cluster demo faces gpu gpu-flow latents learn loading-ray mcap metrics rights run safety sound sql test text view

.DEFAULT_GOAL := help
.PHONY: help env demo test test-long test-gpu test-mds lint types unit lock format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(VENV)/.env ## make .venv with everything that `curate` and its demo need

$(VENV)/.uv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	sed -n '/^uv==/,/[^\\]$$/p' constraints.txt > $(VENV)/uv.txt
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps -r $(VENV)/uv.txt
	touch $@

$(VENV)/no-gpu.txt: | $(VENV)/.uv
	echo triton > $@

$(VENV)/.env: $(VENV)/.uv $(INPUTS) | $(VENV)/no-gpu.txt
	$(INSTALL) -e '.[demo]'
	touch $@

$(VENV)/.test: $(VENV)/.uv $(INPUTS) | $(VENV)/no-gpu.txt
	$(INSTALL) -e '.[test]'
	# Some packages have templates that are no Python.
	cd $(VENV)/lib/python3*/site-packages && ../../../bin/python -m compileall -qq -j 0 -x '$(NOT_COMPILED)' $(COMPILED) || true
	touch $@

$(VENV)/.gpu: $(VENV)/.test
	$(INSTALL) -e '.[test,gpu]'
	touch $@

demo: env ## make footage, curate it, print the funnel, and what to try next
	$(BIN)/curate demo demo

# mypy takes one core and never waits; tests wait for processes and servers to start.
test: lint ## ruff, then mypy and pytest in parallel, as CI runs them
	$(MAKE) --jobs 2 types unit

lint: $(VENV)/.test ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test ## mypy, strict
	$(BIN)/mypy

unit: $(VENV)/.test ## pytest, in three processes: many tests wait for clusters and servers to start
	# Bytecode is kept: some images turn that off, and hundreds of processes would compile torch.
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

$(VENV)/.long: $(VENV)/.test
	$(INSTALL) --no-deps --group long
	touch $@

test-long: $(VENV)/.long ## long scenarios, and the sweeps of which `make test` runs a sample
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m long

test-gpu: $(VENV)/.gpu ## the tests that need a GPU; they fail where there is none
	FAIL_WITHOUT_GPU=1 $(BIN)/python -m pytest -m needs_gpu

$(VENV)-mds/.mds: $(VENV)/.uv pyproject.toml
	$(PYTHON) -m venv $(VENV)-mds
	$(BIN)/uv pip install --quiet --python $(VENV)-mds/bin/python -e '.[mds]' 'moto[s3,server]>=5.1' 'pytest>=8.3'
	touch $@

test-mds: $(VENV)-mds/.mds ## the tests of the export to MDS, which need older packages, in an environment of their own
	$(VENV)-mds/bin/python -m pytest tests/export/test_mds.py

# Without what only Windows and browsers need, where this does not run.
lock: $(VENV)/.uv ## write constraints.txt anew: the same versions where they fit, with their hashes
	$(BIN)/uv pip compile pyproject.toml --quiet --universal --generate-hashes --no-annotate --group build --group long \
	    $(EXTRAS:%=--extra %) --no-emit-package pywin32 --no-emit-package httpx2-jsfetch \
	    --custom-compile-command 'make lock' --output-file constraints.txt

format: $(VENV)/.test ## let ruff mend and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove .venv, the demo's results and caches
	rm -rf $(VENV) $(VENV)-mds demo .mypy_cache .ruff_cache .pytest_cache
