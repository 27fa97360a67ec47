# Targets for people: demo, test, check, bench. Everything lives in .venv; `make clean` takes it away.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed-dev
DEMO := $(VENV)/.installed-demo
DOCS := .venv-docs/.installed
AZURITE := $(VENV)/azurite/node_modules/.bin/azurite-blob
# Some images set it, and then each of the thousands of processes that the tests start compiles all modules anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help audit demo docs man test test-again nightly hostile quick lint check check-deploy format fuzz peer azurite dist bench bench-all bench-fleet bench-preempt bench-relaunch bench-goodput bench-soak bench-mirror bench-gang bench-gang-scale bench-hangs bench-page bench-exactness systemd-test slurm-test gpu-test lock diagram clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/ -/' | sort

demo: $(DEMO)  ## trains on real data, breaks it on purpose, shows that nothing is lost (3 minutes)
	$(BIN)/python -m examples.demo

# How many processes `make test` has: for two cores, as tests of the daemon wait for half of their time. Each takes up to 2 GB.
AT_ONCE ?= 5
# Files begin in the order of tests/tiers.py.
BY_FILE := --dist loadfile --no-loadscope-reorder

test: $(INSTALLED)  ## every claim once (half an hour): before a change lands
	$(BIN)/python -m bench.peer --tests
	$(BIN)/python -m pytest -n $(AT_ONCE) $(BY_FILE) -m "not nightly"

test-again: $(INSTALLED)  ## what failed in the last run, alone; four and more are no accident, and fail at once
	$(BIN)/python -m tests.again

nightly: $(INSTALLED)  ## everything at length, with coverage, other versions of TensorFlow, bench-exactness and the soak (hours; ARGS="tests fuzz" picks, ARGS=--last prints how it ended last)
	$(BIN)/python -m tests.nightly $(ARGS)

hostile: $(INSTALLED)  ## as root: what a job's user, other users of the host and strangers can try, with two users that every Debian has
	$(BIN)/python -m pytest -q -rs -m hostile

# What they write waits for no disk, which on some machines stands still for seconds: `make test` writes to one.
SHORT_TESTS := PYTEST_DEBUG_TEMPROOT=/dev/shm $(BIN)/python -m pytest -q --fail-long-tests \
  -o tmp_path_retention_policy=failed
SHORT := not integration and not slow and not nightly

# Three at a time for two cores, as some wait; TensorFlow's have threads enough for two.
quick: $(INSTALLED)  ## the tests that need no process and no TensorFlow: for every edit
	QUICK=1 $(SHORT_TESTS) -n 3 --dist worksteal -m "$(SHORT) and not tensorflow and not thorough"

dist: $(INSTALLED)  ## wheel and sdist in dist/, each installed into a fresh environment and run
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m tests.dist dist

lint: $(INSTALLED)  ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

check: lint docs  ## lint, types, the site of docs/, and all tests that start no process and take under five seconds: before every commit
	$(SHORT_TESTS) -n 2 $(BY_FILE) -m "$(SHORT)"

docs: $(DOCS)  ## the site of docs/ in build/site, with its links checked; open build/site/index.html, no server is needed
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict -f website/mkdocs.yml
	.venv-docs/bin/python -m tests.site build/site

man: $(INSTALLED)  ## the man pages in man/, from the commands' help and docs/
	$(BIN)/python -m man.pages

audit: $(INSTALLED)  ## locked packages with known vulnerabilities; skipped where PyPI can't be asked
	$(BIN)/python -m tests.audit

check-deploy: $(INSTALLED)  ## judges deploy/ with every tool that is here, and lists what was skipped and why
	$(BIN)/python -m pytest tests/deploy -rs

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

peer: $(INSTALLED)  ## PyPI's Supervisor in .venv-supervisor, for the comparing tests and the bench; they make it too
	$(BIN)/python -m bench.peer

azurite: $(AZURITE)  ## an Azure store in .venv for the tests of the mirror; needs npm, 365 MB; without it they are skipped

bench: $(INSTALLED)  ## kill to new process, idle cost, beside Supervisor; saves beside TensorFlow's, Keras' and Orbax
	$(BIN)/python -m bench.daemon
	$(BIN)/python -m bench.saves

bench-all: $(INSTALLED)  ## every bench, twice, into docs/benchmarks.md (hours; ARGS="saves daemon" picks)
	$(BIN)/python -m bench.all_benches $(ARGS)

fuzz: $(INSTALLED)  ## every parser, 100,000 cases each (some hours; FUZZ_CASES says how many; tests/test_mutations.py takes minutes)
	FUZZ_CASES=$${FUZZ_CASES:-100000} $(BIN)/python -m pytest --timeout=0 tests

bench-fleet: $(INSTALLED)  ## 1 to 1,000 programs under one daemon, beside Supervisor and Circus (half an hour)
	$(BIN)/python -m bench.fleet

bench-preempt: $(INSTALLED)  ## notices beside TensorFlow's PreemptionCheckpointHandler (6 minutes; long: ARGS=--long)
	$(BIN)/python -m bench.preempt $(ARGS)

bench-relaunch: $(INSTALLED)  ## kill -9 to the first new step, with and without standby, beside Supervisor (half an hour)
	$(BIN)/python -m bench.relaunch $(ARGS)

bench-goodput: $(INSTALLED)  ## goodput under kills, hangs and damage, beside two peers (20 minutes; long: ARGS=--long)
	$(BIN)/python -m bench.goodput $(ARGS)

bench-mirror: $(INSTALLED)  ## a checkpoint's way to an object store, beside obstore and aws s3 cp (10 minutes)
	$(BIN)/python -m bench.mirror $(ARGS)

bench-gang: $(INSTALLED)  ## a rank's death under a real Slurm, beside TensorFlow's detection and a requeue (as root, 15 minutes)
	$(BIN)/python -m bench.gang $(ARGS)

bench-gang-scale: $(INSTALLED)  ## the daemons of a gang of 8, 64 and 512 simulated nodes (5 minutes)
	$(BIN)/python -m bench.gang_scale $(ARGS)

bench-page: $(INSTALLED)  ## what the page costs an idle daemon, beside Supervisor's (6 minutes)
	$(BIN)/python -m bench.page $(ARGS)

bench-hangs: $(INSTALLED)  ## 200 hangs of eight kinds, and 1,000 hours of what is only silent (as root, 5 minutes)
	$(BIN)/python -m bench.hangs $(ARGS)

bench-soak: $(INSTALLED)  ## every fault at random moments (ARGS="--minutes 10"; or ARGS="--daemon-kills 200")
	$(BIN)/python -m bench.soak $(ARGS)

bench-exactness: $(INSTALLED)  ## 100 kills of each example, bit for bit (an hour and a half; ARGS="--kills 10" is short)
	$(BIN)/python -m bench.exactness $(ARGS)

systemd-test: $(INSTALLED)  ## stops, crashes, upgrades and boots under a real systemd, in a container (as root, 5 to 11 minutes)
	$(BIN)/python -m tests.systemd

gpu-test: $(INSTALLED)  ## on a host with a GPU of NVIDIA's: deaths, faults, hangs and memory there (5 minutes; first .venv/bin/pip install 'tensorflow[and-cuda]')
	$(BIN)/python -m pytest -n $(AT_ONCE) -rA tests/real_gpu

slurm-test: $(INSTALLED)  ## jobs and gangs under a real Slurm of three nodes, with every fault (as root, 10 to 30 minutes)
	$(BIN)/python -m tests.slurm

diagram: $(INSTALLED)  ## the state diagram for docs/state-machine.md
	$(BIN)/python -m supervisor.core.diagram

lock: $(INSTALLED)  ## pins every dependency with its hashes
	$(BIN)/python -m piptools compile --quiet --strip-extras --generate-hashes --allow-unsafe --no-emit-index-url \
	  --no-emit-find-links --no-emit-trusted-host --no-emit-options --extra tensorflow --extra examples --extra mirror \
	  -o requirements/demo.txt requirements/build.in pyproject.toml
	$(BIN)/python -m piptools compile --quiet --strip-extras --generate-hashes --allow-unsafe --no-emit-index-url \
	  --no-emit-find-links --no-emit-trusted-host --no-emit-options --extra tensorflow --extra examples --extra dev \
	  -c requirements/demo.txt -o requirements/dev.txt requirements/build.in pyproject.toml
	$(BIN)/python -m piptools compile --quiet --strip-extras --generate-hashes --allow-unsafe --no-emit-index-url \
	  --no-emit-find-links --no-emit-trusted-host --no-emit-options --extra logind \
	  -c requirements/dev.txt -o requirements/install.txt requirements/build.in pyproject.toml
	$(BIN)/python -m piptools compile --quiet --strip-extras --generate-hashes --allow-unsafe --no-emit-index-url \
	  --no-emit-find-links --no-emit-trusted-host --no-emit-options -o requirements/audit.txt requirements/audit.in
	$(BIN)/python -m piptools compile --quiet --strip-extras --generate-hashes --allow-unsafe --no-emit-index-url \
	  --no-emit-find-links --no-emit-trusted-host --no-emit-options -o requirements/docs.txt requirements/docs.in

# Most of TensorFlow's modules are never imported. Those that are, are compiled once here, as a job's user can't write here.
PIP_INSTALL := install --quiet --disable-pip-version-check --no-compile

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(DEMO): requirements/demo.txt pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip $(PIP_INSTALL) --require-hashes -r requirements/demo.txt
	$(BIN)/pip $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	$(BIN)/python -c 'import tensorflow' 2> /dev/null || $(BIN)/python -c 'import tensorflow' # which says why not
	touch $@

$(INSTALLED): requirements/dev.txt $(DEMO)
	$(BIN)/pip $(PIP_INSTALL) --require-hashes -r requirements/dev.txt
	touch $@

$(DOCS): requirements/docs.txt
	rm -rf .venv-docs
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip $(PIP_INSTALL) --require-hashes -r requirements/docs.txt
	touch $@

$(AZURITE): | $(VENV)/bin/python
	npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(VENV)/azurite azurite@3.37.0

clean:
	rm -rf $(VENV) .venv-docs demo-run
