# Three commands matter: `make demo`, `make check` and `make test`. Each does all the set-up it needs.
SHELL := /bin/bash
VENV := .venv
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready
DYNOXIDE := build/dynoxide/node_modules/@dynoxide/linux-x64/dynoxide
# pyspark 4.3 needs Python 3.11 or newer: the first of these that runs and is.
SYSTEM_PYTHON := $(shell for each in python3 python3.13 python3.12 python3.11; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$each && break; done)

# The minors of Spark with a jar each, or versions of them such as 4.0.1: `make test-spark SPARK=4.1`. `next` is the newest
# Spark that is not supported yet.
SPARK ?= all
SPARKS := 3.5 4.0 4.1 4.2 4.3

# Schedules of the simulation: `make sim SEED=17 RUNS=1` tells every step of one.
SEED ?= 1000000
RUNS ?= 10000

.PHONY: demo check test-unit test test-all test-rest test-spark test-upgrade test-wheel test-aws sim mutations reach histories judged prove kills pictures setup lint lint-scala format-scala audit bench bench-network test-network jmh jcstress threads model dynoxide fast-engine \
	java jar wheel test-pythons sbom maven docs clean region

demo: setup
	@$(VENV)/bin/dynastate demo

# Tests run in two processes, `make test WORKERS=0` in one. More options of pytest: `make test PYTEST='-k fork'`.
WORKERS ?= 2
RUN_TESTS = @$(PYTHON) -m pytest -n $(WORKERS) --dist loadgroup --ignore tests/upstream --ignore tests/aws

# In a minute, without Java, and on tables in memory.
check: $(READY)
	@$(MAKE) --no-print-directory -j2 lint test-unit

test-unit: $(READY)
	$(RUN_TESTS) -q -m 'not (slow or emulator)' tests/unit $(PYTEST)

# What shows that it works on this machine.
test: setup fast-engine
	$(RUN_TESTS) -m 'not slow' $(PYTEST)

test-all: setup fast-engine
	$(RUN_TESTS) $(PYTEST)
	@$(MAKE) --no-print-directory test-upstream-fast

# What `make test` leaves out of `make test-all`; `make test-rest PART=2/5` runs the tests of each fifth file.
PART ?= 1/1
test-rest: setup fast-engine
	$(RUN_TESTS) -m slow --part $(PART) $(PYTEST)

# Where it cannot be had, tests of Spark run on the embedded DynamoDB, which is slower, and one test is skipped.
fast-engine:
	@$(MAKE) --silent dynoxide >/dev/null 2>&1 || true

# The suites of the state store's traits, real queries and the artifact for Maven, on another Spark, in an environment
# of its own. It is downloaded once. Older pysparks leave sockets to the garbage collector; 3.5 needs distutils, NumPy 1
# and an Arrow for NumPy 1.
test-spark: $(patsubst %,test-spark-%,$(if $(filter all,$(SPARK)),$(SPARKS),$(SPARK)))

test-spark-%: build/spark-%/.ready
	@build/spark-$*/bin/python jvm-bridge/build.py
	@DYNASTATE_EXAMPLES=$${DYNASTATE_EXAMPLES:-5} build/spark-$*/bin/python -m pytest -n $(WORKERS) --dist loadgroup -m every_spark \
		-W 'ignore:unclosed:ResourceWarning' -W 'ignore:The distutils package:DeprecationWarning' tests/contract/provider tests/spark tests/process/test_maven.py $(PYTEST)

# The newest pre-release, or a release that is not supported yet; where there is neither, nothing.
test-spark-next: $(READY)
	@next=$$($(PYTHON) jvm-bridge/build.py --next) || exit; \
	if test -n "$$next"; then $(MAKE) --no-print-directory test-spark-$$next; \
	else echo "no Spark after the newest supported one can be had: nothing to test"; fi

.PRECIOUS: build/spark-%/.ready
build/spark-%/.ready: pyproject.toml constraints.txt | $(READY)
	@$(PYTHON) jvm-bridge/build.py --fetch $*
	@grep -v '^pyspark==' constraints.txt $(if $(filter 3.5%,$*),| sed 's/^numpy==.*/numpy==1.26.4/; s/^pyarrow==.*/pyarrow==18.1.0/') > build/spark-$*/constraints.txt
	@build/spark-$*/bin/python -c 'import pyspark; print(f"pyspark=={pyspark.__version__}")' >> build/spark-$*/constraints.txt
	@$(PYTHON) jvm-bridge/build.py --install build/spark-$*/bin/python --constraint build/spark-$*/constraints.txt --editable '.[test]'
	@touch $@

# Queries that begin on Spark 3.5, and continue on 4.0 and the newest minor, each in an environment of its own.
test-upgrade: $(patsubst %,build/spark-%/.ready,3.5 4.0) setup
	@build/spark-3.5/bin/python -m pytest -n 0 -W 'ignore:unclosed:ResourceWarning' \
		-W 'ignore:The distutils package:DeprecationWarning' tests/spark/test_upgrade.py $(PYTEST)

# With a jar for every minor; CI has `JARS=4.1`, with those for one older minor and the newest. Files in it have the time
# that those in the jars have, so that two builds are equal.
JARS ?= all
OLDER_JARS = $(filter-out all,$(JARS))
wheel: export SOURCE_DATE_EPOCH := 1767225600
wheel: $(READY)
	@$(PYTHON) jvm-bridge/build.py $(if $(filter all,$(JARS)),--all)
	@$(foreach minor,$(OLDER_JARS),$(PYTHON) jvm-bridge/build.py --fetch $(minor) && build/spark-$(minor)/bin/python jvm-bridge/build.py &&) true
	@rm -rf dist
	@$(PYTHON) -m hatchling build -d dist

# The wheel, alone in an environment of its own: what it holds, and the demo.
test-wheel: wheel
	@$(VENV)/bin/twine check --strict dist/*
	@$(PYTHON) -m pytest tests/process/test_wheel.py $(PYTEST)
	@$(PYTHON) -m tests.support.installed_wheel $(OLDER_JARS) dist/dynastate-*.whl

# The same queries with the wheel on each Python from 3.10 to 3.14 that this machine has, with the newest Spark for it.
test-pythons: wheel
	@$(PYTHON) -m tests.support.installed_wheel --pythons dist/dynastate-*.whl

# What the package and its extras need, with all that those need, as a CycloneDX list, in build/.
sbom: wheel
	@rm -rf build/sbom && $(PYTHON) -m venv --without-pip build/sbom
	@$(PYTHON) jvm-bridge/build.py --install build/sbom/bin/python --constraint constraints.txt \
		"$$(echo dist/dynastate-*.whl)[demo,otlp,prometheus,sql,zstd]"
	@$(PYTHON) -m tests.support.sbom build/sbom/bin/python build

# Artifacts for Maven Central, in build/maven; signed, and with the bundle to upload, by `make maven KEY=ID`.
maven: $(READY)
	@$(PYTHON) jvm-bridge/maven.py --all --key '$(KEY)'

sim: $(READY)
	@PYTHONPATH=src $(PYTHON) -m tests.simulation $(SEED) $(RUNS)

# The first seed that finds each mutation of the simulation.
mutations: $(READY)
	@PYTHONPATH=src $(PYTHON) -m tests.simulation mutations $(addprefix --rate ,$(RATE))

# The lines and branches of the engine that schedules do not reach.
reach: RUNS = 200
reach: $(READY)
	@$(PYTHON) -m pip install --quiet coverage==7.17.5
	@rm -rf build/reach && mkdir -p build/reach
	@PYTHONPATH=src $(PYTHON) -m coverage run -m tests.simulation $(SEED) $(RUNS)
	@$(PYTHON) -m coverage combine --quiet
	@$(PYTHON) -m coverage report --show-missing --precision 1

# Random histories of the provider, in one JVM, up to the first that fails.
histories: RUNS = 100
histories: setup fast-engine
	@DYNASTATE_SEED=$(SEED) DYNASTATE_HISTORIES=$(RUNS) $(PYTHON) -m pytest -q -s -m 'not slow' tests/contract/provider/test_histories.py

# Histories of real sidecars that porcupine judges; with MUTATION, of sidecars that are broken by it.
judged: RUNS = 10
judged: $(READY) dynoxide
	@$(PYTHON) -m tests.judged $(SEED) $(RUNS) $(MUTATION)

# What judges without an example: histories, the simulation with its mutations, and the models, from a new seed. All
# run, and each may fail the target.
prove: SEED := $(shell date +%s)
prove: $(READY) dynoxide
	@status=0; for each in 'judged RUNS=60' 'sim RUNS=3000' mutations model; do \
		echo "== $$each"; $(MAKE) --no-print-directory $$each SEED=$(SEED) || status=1; done; exit $$status

# Many more kills than the tests have, of the query whose checkpoint is in DynamoDB.
KILLS ?= 200
kills: setup fast-engine
	@DYNASTATE_SEED=$(SEED) DYNASTATE_KILLS=$(KILLS) $(PYTHON) -m pytest -q -s tests/spark/test_killed.py -k test_log

# Each view of the page at three widths, light and dark, beside those of BEFORE, in build/pictures; with
# PICTURES=--docs also the pictures of the documentation. It needs Chromium.
BEFORE ?= HEAD
pictures: $(READY) fast-engine
	@$(PYTHON) -m tests.ui.pictures --before '$(BEFORE)' $(PICTURES)

setup: java $(READY) jar

# It is looked for first, because what comes next takes a while.
java:
	@test -z "$(SYSTEM_PYTHON)" || $(SYSTEM_PYTHON) jvm-bridge/build.py --check-java

$(READY): pyproject.toml constraints.txt
	@test -n "$(SYSTEM_PYTHON)" || { echo "dynastate: pyspark 4.3 needs Python 3.11 or newer; install it (Debian: apt-get install python3 python3-venv)" >&2; exit 1; }
	@test -x $(PYTHON) || $(SYSTEM_PYTHON) -m venv $(VENV) || { echo "dynastate: no virtual environment can be made; install the venv module (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@echo "installing Python packages into $(VENV) (once; about 500 MB with pyspark)"
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	@$(PYTHON) jvm-bridge/build.py --install $(PYTHON) --constraint constraints.txt --editable '.[dev]'
	@touch $@

jar: $(READY)
	@$(PYTHON) jvm-bridge/build.py

lint: $(READY)
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/lint-imports
	$(VENV)/bin/mypy

# Format and layers of all Scala. Needs Java, and Maven and a network once.
lint-scala: java $(READY)
	@$(PYTHON) -m tests.support.scala_lint

format-scala: java $(READY)
	@$(PYTHON) -m tests.support.scala_lint --fix

# Known weaknesses of what constraints.txt pins. It asks PyPI, so it needs a network, and it is no part of CI.
# --strict: what cannot be looked up fails it, too.
audit: setup
	$(VENV)/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

# All run, and each may fail the target: figures are printed with their targets.
bench: setup
	@status=0; for each in provider scans query recovery deltas beyond_memory queries_beyond_memory growth background lookup request_path commands scale objects page transfer; do $(PYTHON) benchmarks/$$each.py || status=1; done; exit $$status

# At AWS's distances, in a world that is a program in Go.
bench-network: setup
	@status=0; for each in distance distance_stores serving; do $(PYTHON) benchmarks/$$each.py || status=1; done; exit $$status

# The world itself: its percentiles are those of the sources, and it throttles as the documentation says. And the judge
# of histories, which needs a network once.
test-network:
	@for each in benchmarks/network tests/judged/judge; do \
		(cd $$each && test -z "$$(gofmt -l .)" && go vet ./... && go test -count=1 ./...) || exit 1; done

# Small benchmarks of rows in memory: `make jmh JMH='get -prof gc'`. They need Maven and a network once, and no JDK, as do the races.
jmh: setup
	@mkdir -p build/benchmarks
	@$(PYTHON) -m tests.support.harness jmh benchmarks/jmh -rf json -rff $(CURDIR)/build/benchmarks/jmh.json $(JMH)

# Readers beside folds, in every mode of the JVM's compilers. More options of jcstress: `make jcstress JCSTRESS='-t GetShort'`.
jcstress: setup
	@$(PYTHON) -m tests.support.harness jcstress tests/races -m quick -sc false -r $(CURDIR)/build/jcstress $(JCSTRESS)

# Threads of the provider, at each switch that Lincheck chooses, SECONDS for each scenario; some of them alone:
# `make threads THREADS='"get beside folds"'`. Needs Maven, and a network once, and no JDK.
threads: SECONDS = 60
threads: setup
	@$(PYTHON) -m tests.support.harness lincheck tests/threads $(SECONDS) $(THREADS)

# Models of the protocol, solved by Alloy; some of them alone: `make model MODEL='commit.als Readable'`. Needs Maven, and
# a network once.
model: java $(READY)
	@$(PYTHON) -m tests.model $(MODEL)

# A DynamoDB for Linux on x86-64 that is fast, for the benchmarks, and keeps its data, for the test that kills it.
dynoxide: $(DYNOXIDE)

$(DYNOXIDE):
	npm install --prefix build/dynoxide --no-save --no-package-lock --ignore-scripts --fetch-retries 2 --fetch-timeout 60000 @dynoxide/linux-x64@1.2.1

# The documentation site, in build/site; without a network.
docs: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --quiet --strict

# It is asked for first, because what comes next takes a while.
region:
	@test -n "$(REGION)" || { echo "dynastate: say in which Region: make test-aws REGION=eu-west-1 CAP_USD=1" >&2; exit 1; }

# On AWS itself, with the credentials of the environment, in REGION; it spends at most CAP_USD, and deletes its tables.
# Policies need credentials of a user, or a ROLE to assume.
test-aws: region setup
	@$(PYTHON) -m pytest -n 0 tests/aws --aws-region '$(REGION)' --aws-cap-usd '$(or $(CAP_USD),1)' --aws-role '$(ROLE)' $(PYTEST)

include tests/upstream/upstream.mk

clean:
	rm -rf $(VENV) build dist src/dynastate/jars .mypy_cache .ruff_cache .pytest_cache .hypothesis
