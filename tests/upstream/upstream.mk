# What others wrote, from Maven Central: Spark's own suites, and AWS's DynamoDB Local as the engine of our tests.
# Needs Maven and a network once; where they are missing, it says so and ends, and in CI it fails.
.PHONY: test-upstream test-upstream-fast test-aws-local

ON_DYNAMODB_LOCAL := tests/unit/engine tests/unit/reader tests/unit/operations tests/unit/sidecar tests/process/test_cli.py \
	tests/process/test_sidecar.py tests/process/test_under_load.py tests/process/test_security.py tests/process/test_doctor.py

SOUND := tests/process/test_doctor.py::test_a_sound_engine_passes

test-upstream: setup fast-engine
	@$(PYTHON) -m pytest --dynamodb-local tests/contract/test_tables.py $(ON_DYNAMODB_LOCAL) $(PYTEST)
	@$(PYTHON) -m pytest tests/upstream $(PYTEST)

# In three minutes, and a part of `make test-all`.
test-upstream-fast: $(READY) fast-engine
	@$(PYTHON) -m pytest --dynamodb-local tests/contract/test_tables.py $(SOUND) $(PYTEST)
	@$(PYTHON) -m pytest -m 'not slow' tests/upstream $(PYTEST)
	@$(MAKE) --no-print-directory test-aws-local

# The tests of `make test-aws`, on DynamoDB Local; what it cannot do is skipped.
test-aws-local: setup
	@$(PYTHON) -m pytest -n 0 --dynamodb-local tests/aws $(PYTEST)
