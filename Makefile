# setup demo check test test-all coverage parity docs bench clean: each does whatever it needs first, on a fresh clone too.
#
#   PYTHON     the interpreter that makes the virtual environment (3.11 or newer)
#   EXTRAS     the optional packages that `setup` installs
#   WORKERS    how many processes run the tests
#   OPTIONS    more options for pytest, such as OPTIONS="--cov"
#
# Where PIP_FIND_LINKS names folders with wheels, they are used. On a Linux machine without a GPU,
# `UV_TORCH_BACKEND=cpu make setup` asks uv for the small CPU build of torch.

PYTHON  ?= python3
EXTRAS  ?= timm,hf,clip,bench,data,ray,report,app,notebook,photo,dev,copyleft
WORKERS ?= 2

BIN   := .venv/bin
STAMP := .venv/.sightline-setup
LINKS := $(foreach place,$(PIP_FIND_LINKS),--find-links "$(place)")

# Install the arguments into .venv: with uv, or with pip where uv cannot be had or cannot reach the packages.
define install
	@uv=uv; \
	if ! uv --version >/dev/null 2>&1; then \
	    uv=$(BIN)/uv; \
	    [ -x $$uv ] || $(BIN)/python -m pip install --quiet uv || true; \
	fi; \
	if $$uv --version >/dev/null 2>&1 && \
	    $$uv pip install --python $(BIN)/python $(LINKS) --constraint constraints.txt $(1); then :; \
	else \
	    echo "uv could not install this; trying pip, which takes longer"; \
	    $(BIN)/python -m pip install --constraint constraints.txt $(1); \
	fi
endef

.DEFAULT_GOAL := help
.PHONY: help setup demo check test test-all coverage parity docs bench clean

help:
	@echo "make setup     a virtual environment in .venv with everything below"
	@echo "make demo      explain a few samples and write a page to open"
	@echo "make check     lint, formatting, types"
	@echo "make test      the test suite"
	@echo "make test-all  the test suite and the slow checks on real models"
	@echo "make coverage  the test suite, and which lines it ran, in coverage.xml"
	@echo "make parity    compare with other packages, and write docs/measured/parity.csv"
	@echo "make docs      the documentation, in docs/_build/html"
	@echo "make bench     one script per claim about speed"
	@echo "make clean     remove what the others made, except .venv"

setup: $(STAMP)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "sightline needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
	           "Install one and name it: make setup PYTHON=python3.12"; exit 1; }
	@rm -rf .venv
	$(PYTHON) -m venv .venv || \
	    { rm -rf .venv; echo "$(PYTHON) cannot make a virtual environment;" \
	           "on Debian and Ubuntu: apt install python3-venv"; exit 1; }

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(call install,--editable ".[$(EXTRAS)]")
	# an oracle of the tests; without what it asks for, since opencv-python would overwrite the headless build
	$(call install,--no-deps "quantus>=0.6")
	@touch $@

demo: setup
	$(BIN)/sightline demo

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The tests, and the examples in docstrings. One thread per process: two test processes on two cores are faster than two
# that fight for them.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(OPTIONS) --doctest-modules src/sightline tests

test: setup
	$(PYTEST) -m "not slow"

test-all: setup
	$(PYTEST)

coverage: setup
	$(PYTEST) -m "not slow" --cov --cov-report=term --cov-report=xml

parity: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --parity docs/measured/parity.csv tests

.venv/.sightline-docs: $(STAMP)
	$(call install,--editable ".[docs]")
	@touch $@

# One process per core, with one thread each.
docs: .venv/.sightline-docs
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -j auto -b html docs docs/_build/html

bench: setup
	@found=; \
	for script in benchmarks/*.py; do \
	    [ -f "$$script" ] || continue; \
	    found=yes; echo "== $$script"; $(BIN)/python "$$script" || exit 1; \
	done; \
	[ -n "$$found" ] || echo "there is no script in benchmarks/ yet"

clean:
	rm -rf build dist docs/_build docs/generated demo-out coverage.xml .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
