# make demo    the demo suite: a table and curves in report/demo/
# make test    the tests; make test-slurm    only those that start a Slurm cluster on this machine; make test-others    all others
# make test-thorough    all cases, of which `make test` tries those that tell most; hours
# make check   formatter, linter, types, architecture
# make docs    the docs as a site in build/site/, with search, API pages and the reports of all studies
# make slurm-demo, make slurm-chaos    docs/slurm_and_gpus.md: a real Slurm cluster on this machine
# make gpu-check    docs/slurm_and_gpus.md: in eight minutes, all that is to be known of this machine's GPU, or of several
# make chaos   tests/TRIALS.md: kills of each method before random operations of its disk, a disk that fails at each of
#              its operations, and slurm-chaos
PYTHON ?= python3
VENV := .venv
# what is imported is compiled then: to compile all of it takes pip as long as all else that it does
PIP_INSTALL := pip install --no-compile --quiet --constraint constraints.txt --editable
unexport PYTHONDONTWRITEBYTECODE
RUN := $(VENV)/bin/python

.PHONY: demo test test-slurm test-others test-thorough check lint docs slurm-demo slurm-chaos gpu-check chaos

demo: $(VENV)/installed
	$(RUN) run_all.py run demo
	@echo "A is the README's table, trained on Python 3.11's documentation. B is yours, trained on your Python's documentation:"
	@$(RUN) run_all.py compare results/demo runs | tail -n 1
	@echo open report/demo/index.html in a browser

# Coverage is measured where Python 3.12 makes that cheap (before, the tests would take twice as long); setup.cfg holds
# its floor.
MEASURED = $(shell $(RUN) -c 'import sys; print("--cov" if sys.version_info >= (3, 12) else "")')

# Where the tests write: in memory, if there is room for two gigabytes and programs may start from there. Each tiny run
# waits some fifty times until a file is on the disk, which on a common one takes as long as it computes.
MEMORY = $(shell $(RUN) -c 'import os, tempfile; place = os.statvfs("/dev/shm"); print("/dev/shm" \
	if place.f_bavail * place.f_frsize > 2e9 and not place.f_flag & os.ST_NOEXEC else tempfile.gettempdir())')

# A Slurm cluster mostly waits, so the other tests run beside it, and give way to its jobs. One thread a process.
test: $(VENV)/installed-test
	@$(MAKE) --jobs=2 test-slurm test-others

test-others: $(VENV)/installed-test
	TMPDIR=$(MEMORY) OMP_NUM_THREADS=1 nice -n 10 $(RUN) -m pytest -n auto --dist loadfile --ignore-glob 'tests/test_slurm*.py' $(MEASURED)

test-slurm: $(VENV)/installed-test
	TMPDIR=$(MEMORY) OMP_NUM_THREADS=1 $(RUN) -m pytest tests/test_slurm*.py

test-thorough: $(VENV)/installed-test
	THOROUGH=1 PYTEST_TIMEOUT=7200 $(MAKE) test

check: lint
	$(RUN) -m pytest -q tests/test_architecture.py

lint: $(VENV)/installed-check
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy

docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict
	@echo "open build/site/index.html; with search: $(RUN) -m http.server -d build/site"

slurm-demo: $(VENV)/installed-test
	$(RUN) -m tests.tools.slurm_demo

slurm-chaos: $(VENV)/installed-test
	$(RUN) -m tests.tools.slurm_chaos
	$(RUN) -m tests.tools.slurm_chaos --runs 24 --runs-per-job 6 --largest-array 0

gpu-check: $(VENV)/installed-test
	$(RUN) -m tests.tools.gpu_check

chaos: $(VENV)/installed-test
	OMP_NUM_THREADS=1 $(RUN) -m tests.tools.chaos kills
	$(RUN) -m tests.tools.chaos disk
	@$(MAKE) slurm-chaos

# What the suite itself needs, and with the extras of a purpose.
$(VENV)/installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m $(PIP_INSTALL) .
	touch $@
	@echo "installed; next: source $(VENV)/bin/activate"

$(VENV)/installed-test: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m $(PIP_INSTALL) .[test]
	touch $(VENV)/installed $@

$(VENV)/installed-docs: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m $(PIP_INSTALL) .[docs]
	touch $(VENV)/installed $@

$(VENV)/installed-check: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m $(PIP_INSTALL) .[test,check,docs]
	touch $(VENV)/installed $(VENV)/installed-test $(VENV)/installed-docs $@
