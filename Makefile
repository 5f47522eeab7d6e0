# make            everything of the suite that config.yaml names
# make test       the test suite
# make test-slow  the tests that take minutes: kills, a SLURM cluster, extended
# make figures    every table, figure and notebook; with SOURCE=published from the committed
#                 measurements, without training
# make publish    freeze the measurements of a finished suite under resources/published
# make report     report.html: every table and figure of what was built, on one page
# make plan       what a suite costs: downloads, disk, operations, hours on this machine
# make freeze     which revisions a hub suite has, listed once and committed (needs the hub)
# make bench      the benchmarks beside other tools; ROWS="quantize probe" measures some rows
# make zoo        every model family of transformers, tiny, through the audit: docs/zoo.md
# make lint       the checks of style and structure alone
# make lock       write envs/requirements.lock anew (needs uv)
#
# SUITE=name names another suite, CONFIG=mine.yaml adds a configuration of your own:
# to all, figures, report, plan and freeze.

PYTHON ?= python3
CORES ?= all
SUITE ?=
CONFIG ?=
SOURCE ?=
BIN := .venv/bin
# What every call of Snakemake is told; targets stand before it.
CONFIGURED = $(if $(CONFIG),--configfile $(CONFIG)) $(if $(SUITE),--config suite=$(SUITE))
NAMED = $(if $(SUITE),--suite $(SUITE)) $(if $(CONFIG),--configfile $(CONFIG))
READY := .venv/ready

.PHONY: all figures publish test test-slow report plan freeze bench zoo lint lock clean
.DEFAULT_GOAL := all

# The environment is whole when the lock file has been installed to the end.
$(READY): envs/requirements.lock
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11, 5) or sys.exit("Python 3.11.5 or newer is needed, this is " + sys.version.split()[0] + "; name another one with make PYTHON=…")'
	$(PYTHON) -m venv .venv
	@echo "Installing the packages of envs/requirements.lock: 2 GB or more, some minutes without a word"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement envs/requirements.lock
# Snakemake imports jsonschema at every start, in every job. With these two optional validators of
# addresses, which only Jupyter's server asks for, jsonschema builds 38 grammars: 1.7 s each time.
	$(BIN)/python -m pip uninstall --quiet --yes rfc3987-syntax rfc3986-validator
	$(BIN)/python -c 'import site; print("$(CURDIR)/workflow_scripts", file=open(site.getsitepackages()[0] + "/flatminima.pth", "w"))'
	printf '#!/bin/sh\nPYTHONPATH="%s/workflow_scripts" exec "%s/$(BIN)/python" -m flatminima "$$@"\n' "$(CURDIR)" "$(CURDIR)" > $(BIN)/flatminima
	chmod +x $(BIN)/flatminima
	touch $(READY)

all: $(READY)
	$(BIN)/snakemake --cores $(CORES) all $(CONFIGURED)

# What is published of a suite is a suite of its own, with `-published` after its name.
figures: $(READY)
ifeq ($(SOURCE),published)
	$(BIN)/snakemake --cores $(CORES) all extended$(if $(CONFIG), --configfile $(CONFIG)) --config suite=$(or $(SUITE),mini)-published
else ifeq ($(SOURCE),)
	$(BIN)/snakemake --cores $(CORES) all $(CONFIGURED)
else
	$(error SOURCE=$(SOURCE) is not known; valid: published, or nothing)
endif

publish: $(READY)
	@$(BIN)/flatminima publish $(NAMED)

# Tests of one file share what they build, so a file stays on one worker.
test: $(READY)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder -m 'not slow'

test-slow: $(READY)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder -m slow

report: $(READY)
	$(BIN)/snakemake --report report.html $(CONFIGURED)

plan: $(READY)
	@$(BIN)/flatminima plan $(NAMED)

freeze: $(READY)
	@$(BIN)/flatminima freeze $(NAMED)

# The other tools have an environment of their own, on top of the workflow's.
.venv-bench/ready: $(READY) envs/bench.txt
	$(BIN)/python -m venv --clear .venv-bench
	$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' > "$$(.venv-bench/bin/python -c 'import site; print(site.getsitepackages()[0])')/workflow.pth"
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check --requirement envs/bench.txt --constraint envs/requirements.lock
	touch $@

bench: .venv-bench/ready
	.venv-bench/bin/python bench/bench.py $(if $(ROWS),--rows $(ROWS))

zoo: $(READY)
	PYTHONPATH=.:workflow_scripts OMP_NUM_THREADS=1 $(BIN)/python -m tests.zoo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile rules
	$(BIN)/snakemake --lint
	$(BIN)/python -m nbstripout --keep-id --verify notebooks/*.ipynb

lock:
	envs/lock.sh

clean:
	rm -rf results logs benchmarks .snakemake
