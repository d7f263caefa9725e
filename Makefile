# Everything is set up in .venv; nothing outside this folder is touched but the caches of pip, uv and npm.
# Debian's Python, where it is new enough: built with optimizations that others mostly lack, it takes a fifth less time.
PYTHON ?= $(shell /usr/bin/python3 -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
  && echo /usr/bin/python3 || echo python3)
VENV   := .venv
LOWEST := .lowest
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
COMPILED := $(VENV)/.compiled
TOOLS  := .tools/.ready
PORT   ?= 8000
# Tests wait for servers, leases and processes, so there are more workers than cores; but each of them collects all
# tests and starts servers of its own. To have another number, `make test WORKERS=6`.
WORKERS ?= $(shell expr 4 \* $$(getconf _NPROCESSORS_ONLN))

# A file is run by one worker: what its tests share is started once.
BY_FILE := --dist loadfile --no-loadscope-reorder

# Bytecode is compiled once: without it every process that a test starts would compile all of its modules again.
unexport PYTHONDONTWRITEBYTECODE

# The two things to set up are set up side by side.
MAKEFLAGS += -j2

.DEFAULT_GOAL := help
.PHONY: help run test lowest check bench soak fmt lock clean

help: ## Show what there is to make
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

$(READY): pyproject.toml requirements.lock requirements-build.lock
	@echo "Setting up $(VENV) with $(PYTHON) (once; a quarter of a minute) …"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-build.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

# What the tests import is compiled while their tools are being installed, and not when they wait for it. What is
# wrong with a test is shown when they run.
$(COMPILED): $(READY)
	@echo "Compiling the tests (once) …"
	@$(BIN)/python -m pytest --collect-only -q -q >/dev/null 2>&1 || true
	@touch $@

run: $(READY) ## Serve configs/hello.yaml on http://127.0.0.1:8000, without any key
	@$(BIN)/tealagents serve configs/hello.yaml --offline --port $(PORT)

test: $(COMPILED) $(TOOLS) ## Run the tests; those whose server or browser is missing are skipped
	@$(BIN)/python -m pytest -n $(WORKERS) $(BY_FILE)

# The tests' own dependencies stay at their locked versions. Old libraries warn about newer versions of theirs.
lowest: $(READY) $(TOOLS) ## Run the tests with the oldest libraries that pyproject.toml allows
	@echo "Setting up $(LOWEST) …"
	@$(PYTHON) -m venv --clear $(LOWEST)
	@$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --require-hashes -r requirements.lock
	@$(BIN)/uv pip compile --quiet --resolution lowest-direct --extra all pyproject.toml --output-file $(LOWEST)/lock
	@$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --no-deps -r $(LOWEST)/lock
	@$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --no-deps --no-build-isolation -e .
	@$(LOWEST)/bin/python -m pytest -n $(WORKERS) $(BY_FILE) -W ignore::DeprecationWarning

check: $(READY) ## Lint, types, generated code, and which layer may import which
	@$(BIN)/python scripts/generate_sync_client.py --check
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(READY) ## Measure what a request costs, compared with a bare handler in the same run
	@$(BIN)/python -m benchmarks

soak: $(READY) $(TOOLS) ## The long runs: hours of faults, compressed
	@$(BIN)/python -m pytest -m soak -n 0 -o faulthandler_timeout=0 \
	  -o addopts="-q --strict-markers -p no:cacheprovider"

fmt: $(READY) ## Format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# Three locks, each with the digests of what it names: everything, what the image holds, and what builds both.
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-emit-find-links --no-header --custom-compile-command "make lock"
IMAGE_EXTRAS := postgres redis dynamodb a2a ag-ui mcp tokens

lock: ## Pin the newest versions that pyproject.toml allows
	@test -x $(BIN)/uv || ($(PYTHON) -m venv $(VENV) && \
	  $(BIN)/python -m pip install --quiet --require-hashes -r requirements-build.lock)
	@$(COMPILE) pyproject.toml --upgrade --all-extras --group dev --output-file requirements.lock
	@$(COMPILE) pyproject.toml --upgrade --constraint requirements.lock $(IMAGE_EXTRAS:%=--extra %) \
	  --output-file requirements-image.lock
	@$(COMPILE) --upgrade --constraint requirements.lock --group build --output-file requirements-build.lock

clean: ## Remove what was set up
	@rm -rf $(VENV) $(LOWEST) .tools clients/js/node_modules build dist .mypy_cache .ruff_cache .hypothesis

$(TOOLS): tests/fixtures/tools/install.sh tests/fixtures/tools/package-lock.json clients/js/package-lock.json
	@sh tests/fixtures/tools/install.sh
	@test ! -d .tools || touch $@
