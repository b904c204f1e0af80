# `make` alone lists the targets. Everything runs in .venv, which is made from the lock files when they change.

.DEFAULT_GOAL := help
SHELL := /bin/sh

BIN := .venv/bin
PY := $(BIN)/python
RUNTIME := .venv/.runtime-installed
DEV := .venv/.dev-installed

# Each test process has a Temporal server of its own, so more processes than cores only slow each other down.
PYTEST := $(PY) -m pytest
PARALLEL := --numprocesses auto --maxprocesses 4 --dist worksteal
SLOW_SUITES := acceptance browser conformance crash fuzz interop processes
FAST_TESTS := $(foreach suite,$(SLOW_SUITES),--ignore=tests/$(suite))

LOCK := $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
	--no-annotate --no-header --no-emit-index-url --no-emit-find-links --group build $(LOCK_FLAGS)

# Read by the demo from its environment.
export CALLS KEEP

# Node comes from a package, and pyright's own version is pinned: it has nothing to look up.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.PHONY: help
help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: $(RUNTIME) ## Run one governed round on real MCP servers (CALLS=file.json plays other calls, KEEP=1 stays up)
	@$(PY) -m api.commands.demo

.PHONY: test
test: $(DEV) ## Run the tests, on SQLite where they need a database
	$(PYTEST) $(PARALLEL) $(FAST_TESTS)

.PHONY: test-postgres
test-postgres: $(DEV) ## Run the tests that need a database on a real PostgreSQL server
	$(PY) -m tests.support.postgres_server $(PYTEST) $(PARALLEL) $(FAST_TESTS) -m postgres

.PHONY: check check-format check-lint check-mypy check-pyright check-imports
check: check-format check-lint check-mypy check-pyright check-imports ## Check format, lint, types and import rules
check-format: $(DEV)
	$(BIN)/ruff format --check .
check-lint: $(DEV)
	$(BIN)/ruff check .
check-mypy: $(DEV)
	$(BIN)/mypy
check-pyright: $(DEV)
	$(BIN)/pyright
check-imports: $(DEV)
	$(BIN)/lint-imports --no-logo

.PHONY: format
format: $(DEV) ## Format the code and repair what lint can repair
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: bench
bench: $(DEV) ## Measure the added latency and the throughput
	$(PY) -m benchmarks.run

.PHONY: acceptance
acceptance: $(DEV) ## Use the finished product from outside, as a person would
	$(PY) -m tests.acceptance.run $(PYTEST) tests/acceptance

.PHONY: browser
browser: $(DEV) ## Look at the console and the Temporal UI in a real browser
	$(PYTEST) tests/browser

.PHONY: crash
crash: $(DEV) ## Kill processes in the middle of rounds and check that no tool ran twice
	$(PYTEST) tests/crash

.PHONY: fuzz
fuzz: $(DEV) ## Send generated requests to every route and judge the answers by the OpenAPI document
	$(PYTEST) $(PARALLEL) tests/fuzz

.PHONY: conformance
conformance: $(DEV) ## Run the MCP conformance suite against the transport
	$(PY) -m tests.conformance.run

.PHONY: interop
interop: $(DEV) ## Call MCP servers that others wrote
	$(PY) -m tests.interop.run

.PHONY: processes
processes: $(DEV) ## Run the command, `up`, `serve` and the demo as a person does
	$(PYTEST) $(PARALLEL) tests/processes

.PHONY: lock
lock: $(DEV) ## Write the lock files from pyproject.toml (LOCK_FLAGS=--upgrade takes newer versions)
	$(LOCK) --extra demo -o requirements.lock
	$(LOCK) --extra dev -c requirements.lock -o requirements-dev.lock

.PHONY: clean
clean: ## Remove .venv, caches and what builds leave
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	rm -rf tests/*/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUNTIME): requirements.lock pyproject.toml .ci/venv
	@sh .ci/venv requirements.lock
	@touch $@

# After the other one, so that two targets at once never install into .venv at the same time.
$(DEV): $(RUNTIME) requirements-dev.lock
	@sh .ci/venv requirements-dev.lock
	@touch $@
