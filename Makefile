# Two commands do everything: `make demo` (shows the product) and `make test` (checks and tests it).
# `make kills` is the long form of the tests that kill the agent, some minutes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test kills check format dashboards clean

demo: $(VENV)/.installed
	@$(BIN)/scorewatch demo $(ARGS)

test: check
	@$(BIN)/pytest -q -n 2 --dist loadfile $(ARGS)

kills: $(VENV)/.installed-dev
	@SCOREWATCH_LONG=1 $(BIN)/pytest -q -n 2 $(ARGS) tests/kill

check: $(VENV)/.installed-dev
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/lint-imports && $(BIN)/pytest -q tests/test_purity.py

format: $(VENV)/.installed-dev
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

dashboards: $(VENV)/.installed-dev
	@$(BIN)/python grafana/build.py

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "Scorewatch needs Python 3.11 or newer, $(PYTHON) is not: install it and run \`make PYTHON=python3.11 $(MAKECMDGOALS)\`"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "Python's venv module is missing: run \`apt-get install python3-venv\` (or what your system calls it) and try again"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,report]'
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
