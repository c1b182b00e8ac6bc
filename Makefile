# Everything sets itself up: the first `make run` or `make test` makes a virtual environment, later ones
# find it ready. Needs Python 3.11 or newer with pip; with gcc the codec is compiled, without it runs slower.

VENV ?= .venv
DATA_DIR ?= data
BENCH_ARGS ?=
SERVE_ARGS ?=
SIM_ARGS ?=
BUSY_ARGS ?=
SCALE_ARGS ?=
PYTEST_ARGS ?=

PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
# The stamps live in the environment they describe. Whatever a build reads is in BUILD_INPUTS.
RUN_READY := $(VENV)/.goqueue-run
SPARK_READY := $(VENV)/.goqueue-spark
TEST_READY := $(VENV)/.goqueue-test
BUILD_INPUTS := pyproject.toml setup.py constraints.txt $(wildcard src/goqueue/codec/*.pyx src/goqueue/codec/*.pxi src/goqueue/codec/*.h)
CHECKED := src $(foreach room,sim tests bench examples,$(if $(wildcard $(room)/*.py),$(room)))
# Two more than there are cores: tests wait, too.
IN_PARALLEL := --numprocesses $(shell expr $$(nproc) + 2) --maxprocesses 4 --dist worksteal

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run spark test lint pytest busy codec bench bench-short sim crash broker-crash group-crash group-rebalance delivery-crash client-crash client-swarm txn-crash txn-lost spark-crash powercut sidecar-powercut delivery-powercut scale clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{printf "%-24s %s\n", $$1, $$2}'

run: $(RUN_READY) ## start a broker and say what to try (DATA_DIR=data SERVE_ARGS=)
	@exec $(VENV)/bin/goqueue serve --data-dir "$(DATA_DIR)" --log-format text $(SERVE_ARGS)

spark: $(SPARK_READY) ## install what the data pipeline needs: PySpark, Arrow, and a Java for machines without one

test: lint pytest ## every check, then the suite over both codecs (PYTEST_ARGS=)

lint: $(TEST_READY) ## report style, type and import problems; change nothing
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(PY) -m mypy $(CHECKED)
	$(VENV)/bin/lint-imports --no-logo

# The second run swaps the codec under the storage room; what concerns the codec itself ran over both before.
pytest: $(TEST_READY) codec
	$(PY) -m pytest $(IN_PARALLEL) -m "not long" $(PYTEST_ARGS)
	@if $(compiled); then \
	    echo "GOQUEUE_CODEC=python $(PY) -m pytest $(IN_PARALLEL) -m \"not long and not one_codec\" tests/unit tests/interplay $(PYTEST_ARGS)"; \
	    GOQUEUE_CODEC=python $(PY) -m pytest $(IN_PARALLEL) -m "not long and not one_codec" tests/unit tests/interplay $(PYTEST_ARGS); \
	else echo "The run above was with the pure-Python codec, the only one here."; fi

busy: $(TEST_READY) ## the suite while every core is kept busy and its processes are stopped at random (BUSY_ARGS= PYTEST_ARGS=)
	$(PY) -m tests.chaos.busy_machine $(BUSY_ARGS) -- $(PY) -m pytest $(IN_PARALLEL) -m "not long" $(PYTEST_ARGS)

codec: $(TEST_READY) ## say which codec is in use; GOQUEUE_REQUIRE_COMPILED=1 refuses the slow one
	@$(say_codec)
	@$(compiled) || [ "$(GOQUEUE_REQUIRE_COMPILED)" != 1 ] || \
	    { echo "GOQUEUE_REQUIRE_COMPILED=1 is set and the codec is not compiled." >&2; exit 1; }

bench: $(if $(findstring spark,$(BENCH_ARGS)),$(SPARK_READY),$(RUN_READY)) ## measure today's figures in minutes; fails when a target is missed (BENCH_ARGS=)
	$(PY) -m bench $(BENCH_ARGS)

bench-short: $(if $(findstring spark,$(BENCH_ARGS)),$(SPARK_READY),$(RUN_READY)) ## the same in seconds, less exact
	$(PY) -m bench --short $(BENCH_ARGS)

sim: $(TEST_READY) ## simulated disks and crashes (SEED= one seed again, SEEDS= how many)
	$(PY) -m sim $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) $(SIM_ARGS)

crash: CYCLES ?= 200
crash: $(TEST_READY) ## kill -9 a real writer again and again (CYCLES=200)
	$(PY) -m tests.chaos.kill --cycles $(CYCLES)

broker-crash: CYCLES ?= 60
broker-crash: $(TEST_READY) ## kill -9 a broker under load again and again (CYCLES=60)
	$(PY) -m tests.chaos.broker_kill --cycles $(CYCLES)

group-crash: CYCLES ?= 30
group-crash: $(TEST_READY) ## kill -9 a broker and members of a group at work again and again (CYCLES=30)
	$(PY) -m tests.chaos.group_kill --cycles $(CYCLES)

group-rebalance: SECONDS ?= 60
group-rebalance: $(TEST_READY) ## measure how long partitions pause while members come and go (SECONDS=60)
	$(PY) -m tests.chaos.group_rebalance --seconds $(SECONDS)

delivery-crash: CYCLES ?= 50
delivery-crash: $(TEST_READY) ## kill -9 a broker while messages are delayed, delivered and settled (CYCLES=50)
	$(PY) -m tests.chaos.delivery_kill --cycles $(CYCLES)

client-crash: CYCLES ?= 20
client-crash: $(TEST_READY) ## kill -9 a broker under programs that use the Python client (CYCLES=20)
	$(PY) -m tests.chaos.client_kill --cycles $(CYCLES)

client-swarm: SECONDS ?= 600
client-swarm: $(TEST_READY) ## clients that leave at every point of everything there is, at all doors (SECONDS=600)
	$(PY) -m tests.chaos.client_swarm --seconds $(SECONDS)

txn-crash: CYCLES ?= 30
txn-crash: $(TEST_READY) ## kill -9 a broker and programs that consume, transform and produce in transactions (CYCLES=30)
	$(PY) -m tests.chaos.transaction_kill --rounds $(CYCLES)

txn-lost: SECONDS ?= 1800
txn-lost: $(TEST_READY) ## lose answers of a program that writes in transactions, and cancel it wherever it waits (SECONDS=1800)
	$(PY) -m tests.chaos.lost_replies --seconds $(SECONDS)

spark-crash: CYCLES ?= 20
spark-crash: $(TEST_READY) ## kill -9 the driver of a Spark query between its two commits again and again (CYCLES=20)
	$(PY) -m tests.chaos.spark_kill --kills $(CYCLES)
	$(PY) -m pytest -m long tests/spark tests/docs

powercut: CYCLES ?= 500
powercut: $(TEST_READY) ## cut the power under a real file system; needs root (CYCLES=500)
	$(PY) -m tests.chaos.powercut --cycles $(CYCLES)

sidecar-powercut: CYCLES ?= 200
sidecar-powercut: $(TEST_READY) ## cut the power under a consumer group at work; needs root (CYCLES=200)
	$(PY) -m tests.chaos.sidecar_powercut --cycles $(CYCLES)

delivery-powercut: CYCLES ?= 60
delivery-powercut: $(TEST_READY) ## cut the power while messages are delivered and settled; needs root (CYCLES=60)
	$(PY) -m tests.chaos.delivery_powercut --cycles $(CYCLES)

scale: $(TEST_READY) ## deliveries by the million, in minutes; fails when a limit is missed (SCALE_ARGS=)
	$(PY) -m tests.scale $(SCALE_ARGS)

clean: ## remove what make made: .venv (or VENV=), builds, caches, bench results; logs stay
	@if [ -e "$(VENV)" ] && [ ! -e "$(VENV)/pyvenv.cfg" ]; then echo "$(VENV) is no virtual environment; it stays" >&2; exit 1; fi
	rm -rf "$(VENV)" build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f src/goqueue/codec/_compiled*.so src/goqueue/codec/_compiled.c bench/results/*.json
	find src sim tests bench -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# ---------------------------------------------------------------- set-up

compiled = $(PY) -c 'import sys; from goqueue.codec import COMPILED; sys.exit(not COMPILED)'
has_compiler = { command -v "$${CC:-gcc}" || command -v cc; } >/dev/null 2>&1
has_headers = $(PY) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'

define say_codec
if $(compiled); then echo "codec: compiled"; \
elif [ "$$GOQUEUE_CODEC" = python ]; then echo "codec: pure Python, because GOQUEUE_CODEC=python"; \
else \
    if ! $(has_compiler); then why="no C compiler here: install gcc and run make again"; \
    elif ! $(has_headers); then why="no Python.h here: install python3-dev and run make again"; \
    else why="its build failed: see why with touch setup.py; make codec PIP_FLAGS=-v"; fi; \
    echo "codec: pure Python, slower ($$why). Everything works."; \
fi
endef

PIP_FLAGS ?= -q
# A library from an earlier build must not outlive its source. UNABLE remembers that nothing could be
# compiled here, so that the first make after somebody installed a compiler builds again.
UNABLE := $(VENV)/.goqueue-unable-to-compile
define install
@rm -f src/goqueue/codec/_compiled$$($(PY) -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
@echo "Installing goqueue$(1) into $(VENV)"
@$(PIP) install $(PIP_FLAGS) -c constraints.txt -e '.$(1)'
@if $(has_compiler) && $(has_headers); then rm -f $(UNABLE); else touch $(UNABLE); fi
endef

.PHONY: compile-at-last
COMPILE_AT_LAST := $(if $(wildcard $(UNABLE)),$(shell if $(has_compiler) && $(has_headers); then echo compile-at-last; fi))

$(RUN_READY): $(BUILD_INPUTS) $(COMPILE_AT_LAST) | $(PY)
	$(call install,)
	@touch $@
	@$(say_codec)

# What Spark and the tests need besides: goqueue itself is installed, and the codec compiled, once.
define install_extra
@$(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["$(1)"], sep="\n")' \
    >$(VENV)/.goqueue-needs
@$(PIP) install $(PIP_FLAGS) -c constraints.txt -r $(VENV)/.goqueue-needs
@touch $@
endef

$(SPARK_READY): $(RUN_READY)
	@echo "Installing what Spark needs into $(VENV): hundreds of megabytes, once"
	$(call install_extra,spark)

$(TEST_READY): $(SPARK_READY)
	@echo "Installing what the tests need into $(VENV)"
	$(call install_extra,test)

# PYTHON= chooses what a new environment is made with; one that is there keeps its own.
ifneq ($(and $(PYTHON),$(wildcard $(PY))),)
.PHONY: same-python
$(RUN_READY) $(SPARK_READY) $(TEST_READY): | same-python
same-python:
	@asked=$$($(PYTHON) -c '$(which_python)') || { echo "$(PYTHON) cannot be run; name another with PYTHON=" >&2; exit 1; }; \
	there=$$($(PY) -c '$(which_python)'); \
	if [ "$$asked" != "$$there" ]; then \
	    echo "$(VENV) was made with $$there, and PYTHON=$(PYTHON) is $$asked." >&2; \
	    echo "Run make clean first, or give it a place of its own: make VENV=.venv-other PYTHON=$(PYTHON) ..." >&2; exit 1; \
	fi
endif
which_python = import sys, platform; print("Python", platform.python_version(), "in", sys.base_prefix)

# Debian has a venv module that cannot make pip; the pip beside it can.
$(PY):
	@for candidate in $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python); do \
	    if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	    echo "GoQueue needs Python 3.11 or newer; none of $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python) is one." >&2; \
	    echo "Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; \
	fi; \
	echo "Making $(VENV) with $$found"; \
	$$found -m venv "$(VENV)" >/dev/null 2>&1 || { \
	    rm -rf "$(VENV)" && $$found -m venv --without-pip "$(VENV)" && \
	    $$found -m pip --python "$(PY)" install -q -c constraints.txt pip; } || { \
	    rm -rf "$(VENV)"; \
	    echo "Could not make a virtual environment with $$found; it needs pip (Debian: apt-get install python3-pip or python3-venv)." >&2; exit 1; }
