# make run [ARGS="task=vgg16 algo=bytegrad"]   one measurement, from a bare machine
# make test                                    the whole test suite (make check is part of it)
# make nightly                                 models and habits drawn at random, 1,000 of them
# make coverage                                which lines the tests run, of Python and of C++
# make docs                                    the pages as a site, build/site/index.html; a dead link is an error
# make test-netem                              the kernel's own network emulation, in a guest if need be
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= $(shell expr $$(nproc) + 1)  # most tests wait now and then
SOURCES := pyproject.toml setup.py constraints.txt $(shell find algorithms bagua_bench -name '*.cpp' -o -name '*.h')

.PHONY: run test nightly test-netem docs coverage check clean

run: $(VENV)/ready
	$(BIN)/python -m bagua_bench $(ARGS)

test: check
	$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

nightly: $(VENV)/ready
	$(BIN)/python -m pytest tests/unit/test_drawn_models.py --hypothesis-profile=nightly $(ARGS)

test-netem: $(VENV)/ready
	$(BIN)/python -m tools.guest

docs: $(VENV)/ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env -b dirhtml -c docs . build/site

coverage: $(VENV)/ready
	$(BIN)/python -m tests.covered $(ARGS)

check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# torch goes first and by its pin: a CPU build that pip is configured to find is taken, and nothing replaces it later.
# What answers about the suite's tasks need is rehearsed here, so that the first question is not kept waiting. It holds
# until the code changes; without it, answers only take longer.
$(VENV)/ready: $(SOURCES)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test]'
	-$(BIN)/bagua-bench advise --prepare > /dev/null
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info
	find algorithms bagua_bench tools -name '*.so' -delete
