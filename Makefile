# make            everything of the suite that config.yaml names
# make paper      the paper against itself and public sources, in seconds
# make headline   the paper's two numbers on its own model, in about twenty minutes: fetches two
#                 revisions of Pythia-160m. SUITE= asks the same of another model
# make table1     the ten revisions of the paper's Table 1, in a good hour
# make test       the test suite
# make test-slow  the tests that take minutes: kills, a SLURM cluster, extended
# make figures    every table, figure and notebook; with SOURCE=published from the stored
#                 measurements, without training
# make publish    copy the measurements of a finished suite to resources/published
# make report     report.html: all tables and figures that were built, on one page
# make plan       what a suite costs: downloads, disk, operations, hours on this machine
# make freeze     list the revisions of a hub suite once, to be committed (needs the hub)
# make bench      compare with other tools; ROWS="quantize probe" measures some rows only
# make zoo        audit a tiny model of every transformers family: docs/zoo.md
# make lint       checks of style and structure only
# make lock       write envs/requirements.lock again (needs uv)
#
# SUITE=name selects another suite. CONFIG=mine.yaml adds a configuration of your own. Both work
# with all, figures, headline, table1, report, plan, freeze and publish.

PYTHON ?= python3
CORES ?= all
SUITE ?=
CONFIG ?=
SOURCE ?=
BIN := .venv/bin
# Options of every call of Snakemake. They come after targets: --configfile would read a target as
# another file.
CONFIGURED = $(if $(CONFIG),--configfile $(CONFIG)) $(if $(SUITE),--config suite=$(SUITE))
SUITE_OPTIONS = $(if $(SUITE),--suite $(SUITE)) $(if $(CONFIG),--configfile $(CONFIG))
READY := .venv/ready
PART_SUITE = $(or $(SUITE),pythia-160m)
TABLE_1 = results/$(PART_SUITE)/table1/table1.csv results/$(PART_SUITE)/table1/fig1_audit.svg

.PHONY: all paper headline table1 figures publish test test-slow report plan freeze bench zoo lint lock clean
.DEFAULT_GOAL := all

# This file is written when the environment is complete.
$(READY): envs/requirements.lock
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11, 5) or sys.exit("Python 3.11.5 or newer is needed, this is " + sys.version.split()[0] + "; name another one with make PYTHON=…")'
	$(PYTHON) -m venv .venv
	@echo "Installing the packages of envs/requirements.lock: 2 GB or more, some minutes without output"
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

paper: $(READY)
	$(BIN)/snakemake --cores 1 results/paper/claims.html

# First what it costs and whether it can run here. Then the measurement, which keeps what it has
# when it is interrupted. At last the page, as text.
headline table1: $(READY)
	@$(BIN)/flatminima plan --part $@ --suite $(PART_SUITE) $(if $(CONFIG),--configfile $(CONFIG))
	@$(BIN)/snakemake --cores $(CORES) results/$(PART_SUITE)/$@.csv $(if $(filter table1,$@),$(TABLE_1)) $(if $(CONFIG),--configfile $(CONFIG))
	@cat results/$(PART_SUITE)/$@.md

# The stored measurements of a suite are a suite of their own, called NAME-published.
figures: $(READY)
ifeq ($(SOURCE),published)
	$(BIN)/snakemake --cores $(CORES) all extended$(if $(CONFIG), --configfile $(CONFIG)) --config suite=$(or $(SUITE),mini)-published
else ifeq ($(SOURCE),)
	$(BIN)/snakemake --cores $(CORES) all $(CONFIGURED)
else
	$(error SOURCE=$(SOURCE) is not known; valid: published, or leave it out)
endif

publish: $(READY)
	@$(BIN)/flatminima publish $(SUITE_OPTIONS)

# Tests of one file share what they build. So all tests of a file run in one worker.
test: $(READY)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder -m 'not slow'

test-slow: $(READY)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder -m slow

report: $(READY)
	$(BIN)/snakemake --report report.html $(CONFIGURED)
	@echo "report.html: all tables and figures that were built, on one page"

plan: $(READY)
	@$(BIN)/flatminima plan $(SUITE_OPTIONS)

freeze: $(READY)
	@$(BIN)/flatminima freeze $(SUITE_OPTIONS)

# The environment of the other tools extends that of the workflow.
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
