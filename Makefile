# Two commands matter: `make demo` and `make test`. Each does all the set-up it needs.
SHELL := /bin/bash
VENV := .venv
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready
# pyspark 4.3 needs Python 3.11 or newer: the first of these that runs and is.
SYSTEM_PYTHON := $(shell for each in python3 python3.13 python3.12 python3.11; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$each && break; done)

.PHONY: demo test setup lint audit bench dynoxide jar clean

demo: setup
	@$(VENV)/bin/dynastate demo

test: setup
	@$(PYTHON) -m pytest $(PYTEST)

setup: $(READY) jar

$(READY): pyproject.toml constraints.txt
	@test -n "$(SYSTEM_PYTHON)" || { echo "dynastate: pyspark 4.3 needs Python 3.11 or newer; install it (Debian: apt-get install python3 python3-venv)" >&2; exit 1; }
	@$(SYSTEM_PYTHON) jvm-bridge/build.py --check-java
	@test -x $(PYTHON) || $(SYSTEM_PYTHON) -m venv $(VENV) || { echo "dynastate: no virtual environment can be made; install the venv module (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@echo "installing Python packages into $(VENV) (once; about 500 MB with pyspark)"
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

jar: $(READY)
	@$(PYTHON) jvm-bridge/build.py

lint: setup
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

# Known weaknesses of what constraints.txt pins. It asks PyPI, so it needs a network, and it is no part of CI.
# --strict: what cannot be looked up fails it, too.
audit: setup
	@test -x build/audit/bin/pip-audit || { $(PYTHON) -m venv build/audit && build/audit/bin/pip install --quiet --disable-pip-version-check pip-audit; }
	build/audit/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

# All run, and each may fail the target: figures are printed with their targets.
bench: setup
	@status=0; for each in provider scans query recovery growth background; do $(PYTHON) benchmarks/$$each.py || status=1; done; exit $$status

# A fast DynamoDB for the benchmarks, for Linux on x86-64; without it they run on the embedded one.
dynoxide:
	npm install --prefix build/dynoxide --no-save --no-package-lock --ignore-scripts @dynoxide/linux-x64@1.2.1

clean:
	rm -rf $(VENV) build dist src/dynastate/jars .mypy_cache .ruff_cache .pytest_cache .hypothesis
