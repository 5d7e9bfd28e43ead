# The two commands are `make demo` and `make test`. They need python3 (3.11 or newer) with pip, and nothing else:
# uv is taken from the PATH or fetched into .tools, and everything is installed into .venv.

PY     ?= python3
UV     ?= $(or $(shell command -v uv 2>/dev/null),.tools/bin/uv)
ROUNDS ?= 20

PYTHON  := .venv/bin/python
INSTALL  = $(UV) pip install -q --python $(PYTHON) -c constraints.txt -e .

check_version = @$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "onejob needs Python 3.11 or newer, \
	but $(PY) is " + sys.version.split()[0] + ": name another one, as in make PY=python3.12")'

.DEFAULT_GOAL := help
.PHONY: help demo test check bench races graphs ticks test-matrix constraints clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

demo: .venv/.core ## Watch duplicates being absorbed
	@.venv/bin/onejob demo $(ARGS)

test: check ## Run the whole gate: static checks, then every suite (ARGS="-k name" narrows it)
	$(PYTHON) -m pytest -q -n 2 --dist loadfile tests $(ARGS)

check: .venv/.test ## Run the static part of the gate
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports --no-logo

bench: .venv/.bench ## Measure throughput, ours and others'
	$(PYTHON) -m bench $(ARGS)

races: .venv/.test ## Race 32 clients on 100 keys of each store, then repeat the tests with races ROUNDS times (20)
	$(PYTHON) -m tests.races $(ARGS)
	for round in $$(seq $(ROUNDS)); do $(PYTHON) -m pytest -q -m races tests || exit 1; done

graphs: .venv/.test ## Play 10 000 random graphs of chains in lives that end anywhere, and 200 per store with kill -9
	ONEJOB_SIMULATED=10000 ONEJOB_GRAPHS=200 $(PYTHON) -m pytest -q -s tests/graphs $(ARGS)

ticks: .venv/.test ## Watch 200 cron lines in 20 time zones for two years, minute by minute
	ONEJOB_HYPOTHESIS=deep $(PYTHON) -m pytest -q -s tests/unit/test_cron_years.py $(ARGS)

test-matrix: .venv/.matrix ## Run the contract suite on every version of the servers, a pooler and a cluster
	$(PYTHON) -m tests.matrix $(ARGS)

constraints: | $(UV) ## Move constraints.txt to the newest versions
	$(UV) pip compile -q --upgrade --universal --python-version 3.11 --group test --group matrix --group bench \
		--no-annotate --no-header --no-emit-index-url pyproject.toml -o constraints.txt

clean: ## Remove what the other targets made
	rm -rf .venv .tools .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache dist
	find src tests -name __pycache__ -prune -exec rm -rf {} +

.tools/bin/uv:
	$(check_version)
	$(PY) -m pip install -qq --upgrade --target .tools uv

.venv/bin/python: | $(UV)
	$(check_version)
	$(UV) venv -q --clear --no-python-downloads --python "$$($(PY) -c 'import sys; print(sys.executable)')" .venv

.venv/.core: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL)
	@touch $@

.venv/.test: .venv/.core
	$(INSTALL) --group test
	@touch $@

.venv/.matrix: .venv/.test
	$(INSTALL) --group test --group matrix
	@touch $@

.venv/.bench: .venv/.core
	$(INSTALL) --group bench
	@touch $@
