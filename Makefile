# make demo    the demo suite: a table and curves in report/demo/
# make test    the tests
# make check   formatter, linter, types, architecture
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python

.PHONY: demo test check
demo: $(VENV)/installed
	$(RUN) run_all.py

# One thread a process: the tests run side by side.
test: $(VENV)/installed
	OMP_NUM_THREADS=1 $(RUN) -m pytest -n auto --dist worksteal

check: $(VENV)/installed-check
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(RUN) -m pytest -q tests/test_architecture.py

$(VENV)/installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable .[test]
	touch $@

$(VENV)/installed-check: $(VENV)/installed
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable .[test,check]
	touch $@
