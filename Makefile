# `make test` and `make demo` do all the set-up on a fresh machine. Everything they make is in .venv, build and demo-out.
#
#   PYTHON=python3        use that interpreter as it is and install nothing (a machine without a package registry)
#   TORCH=torch==2.13.0   the torch to install where no CUDA torch is importable

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

VENV := .venv
PYTHON ?= $(VENV)/bin/python
# The suffix asks for the CPU build by name: without it pip may take several GB of CUDA libraries.
TORCH ?= torch==2.13.0$(if $(filter Linux-x86_64,$(shell uname -s)-$(shell uname -m)),+cpu)
PYTEST_ARGS ?=
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false
ifneq ($(PYTHON),$(VENV)/bin/python)
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
else
READY := $(VENV)/ready
endif

.PHONY: help demo test build lint headers clean
help:
	@echo "make demo     two recipes, first and second run, with a report"
	@echo "make test     the test suite (PYTEST_ARGS='-k planner' for a part)"
	@echo "make build    compile stalloc_accel._core again after a change in csrc/"
	@echo "make lint     ruff"
	@echo "make headers  compile the CUDA sources against every torch we support (by hand: downloads each; VERSIONS=2.9.1)"
	@echo "make clean    remove what was built; the virtual environment stays"

demo: build
	$(PYTHON) -m recipes.demo

# Side by side, a file's tests in one process: where there is no xdist (a machine without a package registry), one by one.
test: build
	$(PYTHON) -m pytest $$($(PYTHON) -c 'import xdist' 2>/dev/null && echo --numprocesses auto --dist loadfile) $(PYTEST_ARGS)

# egg_info: where nothing is installed, the entry point for torch is found beside the package on PYTHONPATH.
build: $(READY)
	@$(PYTHON) setup.py -q $(if $(READY),,egg_info) build_ext --inplace

lint: $(READY)
	$(PYTHON) -m ruff check .

headers: $(READY)
	$(PYTHON) tests/header_matrix.py $(VERSIONS)

clean:
	rm -rf build dist demo-out stalloc_accel/*.so *.egg-info .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# A CUDA torch that python3 can import is used where it is; else the CPU build goes into the virtual environment.
# Whatever torch that was, the constraint keeps every later install from replacing it.
$(VENV)/ready: requirements.txt setup.cfg setup.py pyproject.toml
	@if python3 -c 'import torch; assert torch.version.cuda or torch.version.hip' 2>/dev/null; then \
		python3 -m venv --system-site-packages $(VENV); \
	else \
		python3 -m venv $(VENV); \
	fi
	@$(VENV)/bin/python -c 'import torch' 2>/dev/null || $(VENV)/bin/pip install -q '$(TORCH)' || { \
		echo "No CPU build of torch found by pip: TORCH=$(TORCH). Name what to install, for example" \
			"make test TORCH=torch==2.13.0, which takes several GB where pip knows the CUDA build only." >&2; \
		exit 1; }
	@$(VENV)/bin/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' > $(VENV)/constraint
	$(VENV)/bin/pip install -q -c $(VENV)/constraint -r requirements.txt
	$(VENV)/bin/pip install -q --no-build-isolation --no-deps -e .
	@touch $@
