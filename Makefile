# On a fresh machine with Python 3.11 or newer: `make run` or `make test` is all it takes.
# Another interpreter: make PYTHON=python3.12 test

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt
RUNS := $(VENV)/.ready-to-run
TESTS := $(VENV)/.ready-to-test
TYPED := .build/taskrecipe
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup run test lint format types chaos bench readme docs pictures release clean

help:  ## Show the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

setup: $(TESTS)  ## Create .venv and install the project with everything its tests need

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no python3 found; set PYTHON=" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python 3.11 or newer is needed, {sys.executable} is {sys.version.split()[0]}; set PYTHON=")'
	"$(PYTHON)" -m venv $(VENV)

$(RUNS): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e .
	touch $(RUNS)

$(TESTS): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e ".[dev]"
	touch $(RUNS) $(TESTS)

run: $(RUNS)  ## Train specs/mrpc.toml, in a .venv with what running needs
	$(BIN)/recipe run specs/mrpc.toml

test: setup  ## Run the tests, three at a time
	@$(BIN)/python -m compileall -q core recipes contrib tests  # else each process that a test starts may do so
	OMP_NUM_THREADS=1 $(PYTEST) -n 3 --timeout 600

lint: setup types  ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup  ## Rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup  ## Check types
	@rm -rf $(TYPED) && mkdir -p $(TYPED)
	@for part in core/* recipes contrib; do ln -sfn "$(CURDIR)/$$part" $(TYPED)/; done
	MYPYPATH=.build $(BIN)/mypy -p taskrecipe

chaos: setup  ## Run the long fault-injection tests, and property tests on new examples
	$(INSTALL) -e ".[dev,deepspeed]"
	$(PYTEST) -m chaos
	HYPOTHESIS_PROFILE=searching $(PYTEST) -m "hypothesis and not chaos"

bench: setup  ## Print the benchmarks
	$(PYTEST) -m bench -s

docs: setup  ## Build the site into .build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet -f docs/mkdocs.yml

pictures: setup  ## Take the pictures of the site again, with Chromium
	$(BIN)/python docs/take_pictures.py

release: setup  ## Build sdist and wheel into dist/, try them in an empty environment, write the notes
	$(BIN)/python .ci/release.py

readme: setup  ## Write the output of today's commands into the README, the site and the guide
	$(BIN)/python tests/test_pages.py
	$(BIN)/python tests/test_own_recipe_page.py

clean:  ## Remove what was built, the environment too
	rm -rf $(VENV) .build build dist ./*.egg-info
