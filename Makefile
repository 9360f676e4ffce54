# Everything a contributor needs; CI runs the same targets (.ci/run).
# Each target builds .venv by itself; that takes no time while requirements/ is unchanged.

PYTHON ?= python3
UV_VERSION := 0.13.9
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TESTS ?=
# Most tests wait more than they compute; tests/conftest.py says which stay in one process.
WORKERS ?= 2
PYTEST = $(BIN)/python -m pytest -n $(WORKERS)
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
	--no-emit-index-url --no-header --no-annotate

.DEFAULT_GOAL := help
.PHONY: help autospec-suite demo test test-extended test-fast test-sglang test-lowest check fix bench catalogue patches lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## watch a load rise and fall and opsctl switch profiles (simulated engine)
	@$(BIN)/opsctl demo

test: $(STAMP) ## what CI runs; what cannot run here (a real SGLang, systemd hosts) is skipped with a reason
	@$(PYTEST) -m "not extended" tests/unit tests/integration tests/e2e $(TESTS)

test-extended: $(STAMP) ## the rest, most of it on systemd hosts (an hour)
	@$(PYTEST) -m extended tests/unit tests/integration tests/e2e $(TESTS)

test-fast: $(STAMP) ## unit and integration tests
	@$(PYTEST) -m "not extended" tests/unit tests/integration $(TESTS)

test-sglang: $(STAMP) ## tests on a real SGLang server, on CPU (first run: about 2 GB of disk)
	@$(BIN)/python -m pytest -m sglang tests/e2e $(TESTS)

test-lowest: $(VENV)-lowest/.installed ## unit and integration tests with the lowest versions allowed
	@$(VENV)-lowest/bin/python -m pytest tests/unit tests/integration $(TESTS)

check: $(STAMP) ## lint, format, types, import rules, roles
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m opsctl.provision.specs --check
	@PATH="$(CURDIR)/$(BIN):$$PATH" ANSIBLE_LIBRARY=playbooks/library \
	  ANSIBLE_MODULE_UTILS=playbooks/module_utils \
	  $(BIN)/ansible-lint --offline -q --profile production playbooks

fix: $(STAMP) ## apply what ruff can repair, and format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

autospec-suite: $(STAMP) ## play the 630 cases of the policy (an hour) and write docs/auto-spec-results.md
	$(BIN)/python benchmarks/suites/autospec.py --write docs/auto-spec-results.md

bench: $(STAMP) | nginx ## all benchmarks, one after the other
	@missed=; for file in benchmarks/*.py; do echo "== $$file"; \
	  timeout -k 30 900 $(BIN)/python "$$file" || missed="$$missed $$file"; done; \
	  test -z "$$missed" || { echo "failed or missed a target:$$missed" >&2; exit 1; }

catalogue: $(STAMP) ## read SGLang's releases anew for opsctl/profiles/catalogue_data (270 MB of wheels)
	@$(BIN)/python -m opsctl.profiles.catalogue_build $(if $(WHEELS),--wheels $(WHEELS))

patches: $(STAMP) ## apply every patch to every release's wheel and record the digests (690 MB of wheels)
	@$(BIN)/python -m opsctl.patching.digests_build $(if $(WHEELS),--wheels $(WHEELS))

lock: $(STAMP) ## work out the pins in requirements/ anew
	@test -x $(BIN)/uv || $(BIN)/pip install -qq uv==$(UV_VERSION)
	$(COMPILE) --generate-hashes pyproject.toml -o requirements/runtime.txt
	$(COMPILE) --generate-hashes pyproject.toml --group dev -o requirements/dev.txt
	$(COMPILE) --resolution lowest-direct pyproject.toml --group dev -o requirements/lowest.txt

clean: ## remove .venv and caches
	rm -rf $(VENV) $(VENV)-lowest .pytest_cache .mypy_cache .ruff_cache .hypothesis dist

# The stamp's prerequisites are all that an installation depends on: the sources are used in place.
$(STAMP): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("opsctl needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) ..." >&2
	@$(BIN)/python -m pip install -qq --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install -qq --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)-lowest/.installed: requirements/lowest.txt pyproject.toml
	@test -x $(VENV)-lowest/bin/python || $(PYTHON) -m venv $(VENV)-lowest
	@echo "installing into $(VENV)-lowest ..." >&2
	@$(VENV)-lowest/bin/python -m pip install -qq -r requirements/lowest.txt
	@$(VENV)-lowest/bin/python -m pip install -qq --no-deps --no-build-isolation --editable .
	@touch $@

# nginx is what the gateway is measured beside; without it that benchmark says so and goes on.
.PHONY: nginx
nginx:
	@command -v nginx >/dev/null || test -x /usr/sbin/nginx || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq nginx-light >/dev/null; \
	  else echo "nginx is not installed (apt-get install nginx-light): no comparison with it" >&2; fi; }
