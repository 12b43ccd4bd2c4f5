# Commands of the project. Each sets itself up on a machine that has only Python 3.10 to 3.13.

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
TESTS ?=

# These wait more than they work: some side by side, by file; those of the cloud by twos, each in a box of its
# own. What needs an Airflow takes its turn after them.
QUICK_TIERS := tests/unit tests/property tests/conformance tests/scenario
SIDE_BY_SIDE := -n 4 --dist loadfile

BIN := $(VENV)/bin
STAMP := $(VENV)/.complete

# An Airflow of its own, whose log shows warnings and what this package says.
DEMO_HOME := $(CURDIR)/.demo
DEMO_ENV := env AIRFLOW_HOME="$(DEMO_HOME)" AIRFLOW__CORE__DAGS_FOLDER="$(CURDIR)/example_dags" \
	AIRFLOW__CORE__LOAD_EXAMPLES=False AIRFLOW__LOGGING__LOGGING_LEVEL=WARNING PYTHONWARNINGS=ignore \
	AIRFLOW__LOGGING__NAMESPACE_LEVELS="airflow.task.operators.airflow_provider_spotbatch=INFO airflow_provider_spotbatch=INFO"

# A virtual environment whose Python was removed or whose set-up was cut short is made anew.
REMAKE := $(shell test -e $(STAMP) && $(BIN)/python -c '' 2>/dev/null || echo remake)

# The emulator of Amazon's interfaces, which wants other versions than Airflow does: a program of its own.
CLOUD := .venv-cloud

.PHONY: demo test bench cloudbox lint docs constraints clean $(REMAKE)

test: lint $(CLOUD)/.complete
ifeq ($(TESTS),)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(QUICK_TIERS)
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/cloud
	$(BIN)/python -m pytest tests $(QUICK_TIERS:%=--ignore=%) --ignore=tests/cloud
else
	$(BIN)/python -m pytest $(TESTS)
endif

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: $(DEMO_HOME)/airflow.db
	@$(DEMO_ENV) $(BIN)/airflow dags test stdlib_search

$(DEMO_HOME)/airflow.db: $(STAMP)
	@mkdir -p $(DEMO_HOME)
	@$(DEMO_ENV) $(BIN)/airflow db migrate >$(DEMO_HOME)/migrate.log 2>&1 || { cat $(DEMO_HOME)/migrate.log; exit 1; }
	@touch $@

bench: $(STAMP)
	@$(BIN)/python -m benchmarks.bench

# A cloud on this machine, to try by hand: needs root, debootstrap and iproute2.
cloudbox: $(STAMP) $(CLOUD)/.complete
	@$(BIN)/python -m tests.cloud.cloudbox

docs: $(STAMP)
	$(BIN)/sphinx-build -q -W --keep-going docs docs/_build

$(STAMP): pyproject.toml $(CONSTRAINTS) $(REMAKE)
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; (3, 10) <= sys.version_info < (3, 14) or \
		sys.exit(f"Python 3.10 to 3.13 is needed, this is {v}: name one with make PYTHON=/path/to/python3.x")'
	$(if $(REMAKE),$(PYTHON) -m venv --clear $(VENV))
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c $(CONSTRAINTS) -b $(CONSTRAINTS) -e '.[aws]' --group dev
	@touch $@

$(CLOUD)/.complete: constraints-cloud.txt $(STAMP)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(CLOUD)
	$(BIN)/uv pip install --quiet --python $(CLOUD)/bin/python -r constraints-cloud.txt
	@touch $@

# Newest versions of everything, for all supported Pythons at once.
constraints: $(STAMP)
	printf '%s\n' hatchling editables 'apache-airflow<3.4' | $(COMPILE) $(OURS) -o constraints.txt
	printf '%s\n' hatchling editables 'apache-airflow<3.2' | $(COMPILE) $(OURS) -o constraints-airflow-3.1.txt
	$(COMPILE) --group cloud -o constraints-cloud.txt

OURS = --extra aws --group dev pyproject.toml -
COMPILE = $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 \
	--no-annotate --no-header

clean:
	rm -rf .venv* .demo docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis
