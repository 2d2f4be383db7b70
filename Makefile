PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Numba, where a test partitions by clusters, otherwise gives OpenMP one thread a core for the rest of the process: PyTorch
# then trains small networks up to 25 times more slowly than in one thread.
ONE_THREAD := OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1
# Tests start hundreds of processes: each would compile the package anew where the environment forbids to keep bytecode.
TESTING := $(ONE_THREAD) PYTHONDONTWRITEBYTECODE=
DEMO := $(VENV)/.demo
DOCS := $(VENV)/.docs
BENCH := $(VENV)/.bench

.PHONY: help setup size demo quick fences docs html test matrix test-slow test-deployment chaos postgres spark r browser check bench published published-quick format clean

help:
	@echo "make demo       set up, and run the main job on a real data set (a few minutes the first time)"
	@echo "make quick      lint, types and the tests that matter most while editing (under a minute)"
	@echo "make fences     the quick tests on copies without networks, benchmarks, or servers and deployment"
	@echo "make docs       the documentation as a site, docs/_build/html; every code cell runs, warnings are errors; then"
	@echo "                Chromium opens every page, as on a desk and on a phone, and axe's rules are errors (minutes)"
	@echo "make html       the same without the browser, while writing"
	@echo "make test       set up, and run the tests"
	@echo "make matrix     the tests of data frames with pandas 2.2 and 3, each in an environment of its own"
	@echo "make test-slow  the tests that take minutes"
	@echo "make test-deployment  a Flower SuperLink, a server and four sites as real processes"
	@echo "make chaos      deployed runs under faults: each at every process, and many at random (an hour)"
	@echo "make postgres   a PostgreSQL server for the tests of database sources (Debian, as root)"
	@echo "make spark      counts by Spark on this machine, in an environment of its own (a JRE: Debian, as root)"
	@echo "make r          R for the test of the script that reads a pack (Debian, as root)"
	@echo "make browser    Chromium and axe for the tests of the pages and for make docs (Debian, as root)"
	@echo "make check      ruff, mypy, import-linter"
	@echo "make size       lines of code, without imports, blanks, comments and docstrings"
	@echo "make published  what is missing of the results of papers' tables (TABLES=\"NAME ...\", JOBS=N, SEEDS=N); it goes on anywhere"
	@echo "make published-quick  one seed of their cheap cells again, compared with the results (3 CPU hours at most)"
	@echo "make bench      every other grid of results and every measurement of speed anew (days; it goes on where it was stopped)"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(DEMO): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo]'
	touch $@

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@ $(DEMO) $(DOCS)

setup: $(STAMP)

$(DOCS): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

demo: $(DEMO)
	$(BIN)/fedsynth demo --out demo-run --force

# What most edits break: schemas, files, privacy, the core in one process, one fit of every method, the command line's texts.
QUICK := tests/schema/test_schema.py tests/test_files.py tests/test_docs.py tests/privacy \
  tests/data/test_source.py tests/data/test_draft.py \
  $(addprefix tests/federation/test_,federation.py names.py site.py wire.py) tests/secure/test_masking.py \
  tests/methods/test_methods.py tests/models/test_junction_tree.py tests/cli/test_help.py

quick: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(TESTING) $(BIN)/pytest -n 2 --dist worksteal -m "not slow and not deployment" $(QUICK)

# The core does without its features: a copy that lacks some of them, and their tests, passes the quick tests.
FENCED := deep bench servers,deploy
COMMA := ,

fences: $(STAMP) $(addprefix fence-,$(FENCED))

fence-%:
	rm -rf $(VENV)/$@ && mkdir -p $(VENV)/$@
	git ls-files -z | xargs -0 tar cf - | tar xf - -C $(VENV)/$@
	cd $(VENV)/$@ && rm -rf $(foreach gone,$(subst $(COMMA), ,$*),src/fedsynth/$(gone) tests/$(gone))
	cd $(VENV)/$@ && PYTHONPATH=$(CURDIR)/$(VENV)/$@/src $(TESTING) $(CURDIR)/$(BIN)/pytest -n 2 --dist worksteal \
	  -m "not slow and not deployment" $(QUICK)
	rm -rf $(VENV)/$@

# One more process than two cores: many tests wait for processes of their own.
test: $(STAMP)
	$(TESTING) $(BIN)/pytest -n 3 --dist worksteal -m "not slow and not deployment"

# Links between pages are checked by the build itself; links to other hosts are not, so that it needs no network.
html: $(DOCS)
	$(BIN)/sphinx-build -b html -q -W --keep-going docs docs/_build/html
	@echo "docs/_build/html/index.html"

CHROMIUM ?= $(shell command -v chromium || command -v google-chrome)

docs: html
	@if [ -n "$(CHROMIUM)" ] && command -v node > /dev/null && [ -d tests/browser/node_modules ]; then \
	  node tests/browser/site.mjs docs/_build/html "$(CHROMIUM)"; \
	else \
	  echo "NOT looked at in a browser: Chromium, Node or tests/browser/node_modules is missing; make browser installs them"; \
	fi

# The oldest and the newest pandas that pyproject.toml admits, and what reads, writes or hands out data frames.
PANDAS := 2.2 3
MATRIX := tests/schema/test_schema.py tests/data $(addprefix tests/models/test_,synthesizer.py conditions.py) \
  $(addprefix tests/evaluation/test_,frames.py evaluate.py) $(addprefix tests/cli/test_,cli.py nasty_files.py) \
  tests/methods/test_methods.py

$(VENV)/pandas-%/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(@D)
	sed '/^pandas==/d' constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/pip install --quiet --disable-pip-version-check -c $(@D)/constraints.txt 'pandas==$*.*' -e '.[demo,sql,test]'
	touch $@

matrix: $(PANDAS:%=$(VENV)/pandas-%/.installed)
	for pandas in $(PANDAS); do \
	  echo "pandas $$pandas"; \
	  $(TESTING) $(VENV)/pandas-$$pandas/bin/pytest -n 2 --dist worksteal -m "not slow and not deployment" $(MATRIX) || exit 1; \
	done

test-slow: $(STAMP)
	$(TESTING) $(BIN)/pytest -n 2 --dist worksteal -m slow --record test-slow

test-deployment: $(STAMP)
	$(TESTING) $(BIN)/pytest -v -n 2 --dist loadfile -m "deployment and not chaos"

chaos: $(STAMP)
	$(TESTING) $(BIN)/pytest -v -n 4 --dist worksteal -m chaos --record chaos

postgres:
	ls /usr/lib/postgresql/*/bin/postgres 2>/dev/null || command -v postgres || (apt-get update -qq && apt-get install -y -qq postgresql)

# Spark 4.0 needs pandas 2.2; ibis knows no later Spark.
$(VENV)/spark/.installed: pyproject.toml constraints.txt
	command -v java || (apt-get update -qq && apt-get install -y -qq default-jre-headless)
	$(PYTHON) -m venv $(@D)
	sed '/^pandas==/d' constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/pip install --quiet --disable-pip-version-check -c $(@D)/constraints.txt 'pandas==2.2.*' \
	  'ibis-framework[pyspark]>=12,<13' -e '.[sql,test]'
	touch $@

spark: $(VENV)/spark/.installed
	$(TESTING) $(VENV)/spark/bin/pytest -m spark tests/data/test_spark.py

r:
	command -v Rscript || (apt-get update -qq && apt-get install -y -qq --no-install-recommends r-base-core r-cran-jsonlite)

browser:
	command -v chromium || (apt-get update -qq && apt-get install -y -qq chromium)
	command -v npm || apt-get install -y -qq npm
	cd tests/browser && npm ci --no-audit --no-fund

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff check --preview --select PLW1514 src benchmarks
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(BENCH): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench,deep]'
	touch $@

# PYTHONPATH: an editable environment may be another checkout's.
PUBLISHED := PYTHONPATH=$(CURDIR)/src $(ONE_THREAD) $(BIN)/python -m benchmarks.published

published: $(STAMP) $(BENCH)
	$(PUBLISHED) $(TABLES) --jobs $(or $(JOBS),1) $(if $(SEEDS),--seeds $(SEEDS))

published-quick: $(STAMP) $(BENCH)
	$(PUBLISHED) $(TABLES) --quick --jobs $(or $(JOBS),1)

bench: $(STAMP) $(BENCH)
	for table in $(notdir $(basename $(wildcard benchmarks/*.toml))); do \
	  $(BIN)/fedsynth bench benchmarks/$$table.toml --data-dir "$${FEDSYNTH_DATA:-../shared/data}" \
	    --out bench-results/$$table --jobs 2 || exit 1; \
	  cp bench-results/$$table/results.jsonl benchmarks/results/$$table.jsonl; \
	done
	$(ONE_THREAD) $(BIN)/python -m benchmarks.bayes_speed
	$(ONE_THREAD) $(BIN)/python -m benchmarks.core
	$(ONE_THREAD) $(BIN)/python -m benchmarks.deep
	$(ONE_THREAD) $(BIN)/python -m benchmarks.growth
	$(ONE_THREAD) $(BIN)/python -m benchmarks.secure_sum
	$(ONE_THREAD) $(BIN)/python -m benchmarks.sites
	$(ONE_THREAD) $(BIN)/python -m benchmarks.flower
	$(ONE_THREAD) $(BIN)/python -m benchmarks.flower_sites
	$(ONE_THREAD) $(BIN)/python -m benchmarks.three_servers
	$(ONE_THREAD) $(BIN)/python -m benchmarks.rows
	$(ONE_THREAD) $(BIN)/python -m benchmarks.noise
	$(ONE_THREAD) $(BIN)/python -m benchmarks.mrf --mbi

size:
	@$(PYTHON) -m benchmarks.size

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) docs/_build docs/reference/api docs/reference/commands docs/proofs/generated docs/results demo-run bench-results .pytest_cache .mypy_cache .ruff_cache build
