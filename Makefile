# A fresh clone needs python3 (3.11 or newer) and make; uv is used where there is one (`make UV= ...`: not).
PYTHON ?= python3
UV ?= $(shell command -v uv)
SIZE_MB ?= 300
RUNS ?= 5
VENV := .venv
PY := $(VENV)/bin/python
export DO_NOT_TRACK := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo test lint docs bench bench-large clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.installed ## read the sample traces, compare two of them, write all pages into demo/
	$(VENV)/bin/tracegap demo

test: lint ## all checks that need no network and no accelerator: lint, types, layers, tests
	$(PY) -m pytest -n auto --maxprocesses 4 --dist loadfile

lint: $(VENV)/.installed-dev ## only style, types and layers
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m mypy bench
	$(VENV)/bin/lint-imports

docs: $(VENV)/.installed ## write docs/formulas.md, docs/chips.md and docs/schema.md anew, from the code
	$(PY) -m tracegap.ingest.reference docs
	$(PY) -m tracegap.reports.dictionary docs/schema.md

bench: $(VENV)/.installed-dev ## time and memory beside other tools, into docs/performance.md: SIZE_MB=300 RUNS=5
	$(PY) bench/measure.py --size-mb $(SIZE_MB) --runs $(RUNS) --write docs/performance.md

bench-large: $(VENV)/.installed-dev ## how both grow with the size: up to ten times SIZE_MB
	$(PY) bench/measure.py large --size-mb $(SIZE_MB) --runs $(RUNS) --write docs/performance.md

clean: ## remove the environment and everything that was built
	rm -rf $(VENV) build dist demo src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# The environment is made anew where it is missing, its Python no longer runs, or it was made in another folder (its
# scripts name that folder); it is installed again when the requirements changed. The stamps keep all that in mind.
ifneq ($(shell cat $(VENV)/.made-in 2>/dev/null; $(PY) -c 'print(" runs")' 2>/dev/null),$(CURDIR) runs)
.PHONY: $(VENV)/.made-in
endif

$(VENV)/.made-in:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "tracegap needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) --version 2>&1)."; \
	  echo 'Name another one: make PYTHON=/path/to/python3.12 ...'; exit 1; } >&2
	@if [ ! -e $@ ] && $(PY) -m pip --version >/dev/null 2>&1; then echo 'using the $(VENV) that is here'; \
	else echo 'making $(VENV)'; $(make_venv) || { \
	  echo 'The environment could not be made; on Debian and Ubuntu: apt-get install python3-venv' >&2; exit 1; }; fi
	@printf '%s' '$(CURDIR)' > $@

# uv does not read pip's settings: where it finds no package, pip may.
make_venv = $(if $(UV),$(UV) venv --quiet --clear --python '$(PYTHON)' $(VENV),$(PYTHON) -m venv --clear $(VENV))
by_uv = $(UV) pip install --quiet --python $(PY) -c constraints.txt -e '$(1)'
by_pip = $(PY) -m pip install --quiet -c constraints.txt -e '$(1)'
install = $(if $(UV),$(by_uv) || { $(PY) -m ensurepip && $(by_pip); },$(by_pip))

$(VENV)/.installed: $(VENV)/.made-in pyproject.toml constraints.txt
	$(call install,.)
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.made-in pyproject.toml constraints.txt
	$(call install,.[dev])
	@touch $@ $(VENV)/.installed
