# Everything runs in .venv, which the first target that needs it makes and fills.
# Variables: PYTHON (the interpreter to build .venv with), ARGS (passed to pytest).

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo lab test test-all test-bare test-jupyter ops fuzz operands models mutants peer compilers bench-cpu bench-gpu bench-models bench-compile bench-calls pages docs lint format clean labs faults soak pictures lab-pictures

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# In a container one is root, which Jupyter wants confirmed.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)
INSTALLED := $(VENV)/.installed
# nbgrader and otter-grader bring versions of Jupyter of their own: they get a place of their own.
GRADERS := build/graders

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## Run notebooks/quickstart.ipynb; leave it, its HTML and its plots in build/demo
	@$(BIN)/python -m fuselab.demo

lab: $(INSTALLED) ## Open the quickstart in JupyterLab
	@$(BIN)/jupyter lab $(AS_ROOT) notebooks/quickstart.ipynb

test: $(INSTALLED) ## Run the tests (ARGS="-k name" to choose)
	@$(BIN)/python tests/run.py $(ARGS)

test-all: $(INSTALLED) ## Run the slow tests too
	@$(BIN)/python tests/run.py --all $(ARGS)

test-bare: $(INSTALLED) ## The tests without Triton and without what only Linux has (BARE=plain: nor what only POSIX has)
	@FUSEC_BARE=$(or $(BARE),posix) PYTHONPATH=tests/support/bare $(BIN)/python tests/run.py $(ARGS)

test-jupyter: $(INSTALLED) ## The panel's browser tests in other ipykernels and in Notebook 7
	@$(BIN)/python tests/browser/jupyters.py $(ARGS)

ops: $(INSTALLED) ## torch's operator database, a sample or --all (ARGS="--help" for the choices)
	@PYTHONPATH=tests $(BIN)/python -m ops $(ARGS)

fuzz: $(INSTALLED) ## Random programs beside eager and float64 (ARGS="--help" for the choices)
	@PYTHONPATH=tests $(BIN)/python -m programs $(ARGS)

operands: $(INSTALLED) ## Calls with operands of random types, sizes and layouts (ARGS="--help")
	@PYTHONPATH=tests $(BIN)/python -m operands $(ARGS)

faults: $(INSTALLED) ## Edits that do harm, and what may happen around them: what became of each (ARGS="--help")
	@PYTHONPATH=tests $(BIN)/python -m faults $(ARGS)

soak: $(INSTALLED) ## Fuse, edit, tune and run again for half an hour: is what it holds level (ARGS="--minutes 2")
	@PYTHONPATH=tests $(BIN)/python -m faults.soak $(ARGS)

models: $(INSTALLED) ## Whole models beside eager and TorchInductor (ARGS="--help" for the choices)
	@$(PIP) install --quiet -c $(VENV)/constraints.txt -e '.[models]'
	@PYTHONPATH=tests $(BIN)/python -m models $(ARGS)

mutants: $(INSTALLED) ## Mistakes made on purpose in the compiler: which do the tests find (ARGS="--help")
	@PYTHONPATH=tests $(BIN)/python -m mutants $(ARGS)

peer: $(INSTALLED) ## A peer's test files with our backend (ARGS="path/to/test_file.py", or --help)
	@PYTHONPATH=tests $(BIN)/python -m peer $(ARGS)

compilers: $(INSTALLED) ## The golden kernels with g++, clang and zig, and for other machines
	@$(PIP) install --quiet --retries 1 -c $(VENV)/constraints.txt -e '.[compiler]' || echo "ziglang could not be installed: what it builds is left out" >&2
	@PYTHONPATH=tests $(BIN)/python -m compilers $(ARGS)

bench-cpu: $(INSTALLED) ## Workloads on the CPU beside eager, TorchInductor and a copy (ARGS="--help")
	@$(BIN)/python tests/bench/cpu.py $(ARGS)

bench-gpu: $(INSTALLED) ## Workloads on a GPU beside eager, TorchInductor and a copy (ARGS="--help")
	@$(BIN)/python tests/bench/gpu.py $(ARGS)

bench-models: $(INSTALLED) ## Whole models on the CPU beside eager and TorchInductor (ARGS="--help")
	@$(PIP) install --quiet -c $(VENV)/constraints.txt -e '.[models]'
	@$(BIN)/python tests/bench/cpu_models.py $(ARGS)

bench-compile: $(INSTALLED) ## Compile time beside TorchInductor's (ARGS="--help" for the choices)
	@$(BIN)/python tests/bench/compile_time.py $(ARGS)

bench-calls: $(INSTALLED) ## What a small call costs, beside eager and TorchDynamo (ARGS="--help")
	@$(BIN)/python tests/bench/calls.py $(ARGS)

labs: $(INSTALLED) ## Make the labs' notebooks from their sources, and run them (the slow tests of labs)
	@$(PIP) install --quiet -e '.[labs]'
	@$(BIN)/python -m fuselab.labs build notebooks/labs
	@$(BIN)/python tests/support/graders.py install $(GRADERS) || echo "nbgrader and otter-grader could not be installed: their tests are skipped"
	@FUSELAB_GRADERS_PYTHON=$(GRADERS)/bin/python $(BIN)/python -m pytest tests/ext/labs $(ARGS)

pages: $(INSTALLED) ## Write what today's code prints into the pages that show it
	@OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m support.pages --write README.md docs/tour.md $(ARGS)

pictures: $(INSTALLED) ## Pictures of the workbench in both themes, in build/screenshots, to be looked at
	@PYTHONPATH=tests:tests/browser $(BIN)/python tests/browser/gallery.py
	@PYTHONPATH=tests:tests/browser $(BIN)/python tests/browser/pictures.py $(ARGS)
	@$(BIN)/python -m pytest -q tests/browser/test_stranger.py

lab-pictures: $(INSTALLED) ## Pictures of every lab, opened, wrong, right and printed (ARGS="--only 3"), to be looked at
	@PYTHONPATH=tests:tests/browser $(BIN)/python tests/browser/lab_pictures.py $(ARGS)

docs: $(INSTALLED) ## Build the site into build/site
	@$(PIP) install --quiet -c $(VENV)/constraints.txt -e '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo build/site/index.html

lint: $(INSTALLED) ## Check style, types and layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: $(INSTALLED) ## Rewrite the code in the project's style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## Remove what was built and the tools' caches; keep .venv
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache
	find compiler ext tests notebooks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# torch goes first and alone: an exact pin takes the CPU build where an index has it,
# while a later resolution with ranges could prefer another one. A CUDA build asks for
# its own Triton, so the pin on Triton holds only where torch does not name one.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; v >= (3, 11) or sys.exit("Fuselab needs Python 3.11 or newer; $(PYTHON) is %d.%d. Try: make PYTHON=python3.12" % v)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "Could not make $(VENV). On Debian: apt install python3-venv" >&2; exit 1; }
	@echo "Installing into $(VENV) ..."
	@$(PIP) install --quiet --no-deps -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	@if $(BIN)/python -c 'import importlib.metadata as m, sys; sys.exit(any(r.startswith("triton") for r in m.requires("torch")))'; \
	then cp constraints.txt $(VENV)/; else grep -v '^triton==' constraints.txt > $(VENV)/constraints.txt; fi
	@$(PIP) install --quiet -c $(VENV)/constraints.txt -e '.[lab,dev]'
	@touch $@
