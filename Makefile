# Everything runs in .venv, which these targets create. No GPU, compiler or model download is needed.

PYTHON   ?= python3
VENV     := .venv
BIN      := $(VENV)/bin
PACKAGES := plugins/dare-llada plugins/dare-llada2 plugins/dare-dream plugins/dare-sdar plugins/dare-diffusion-gemma plugins/dare-algos-grpo plugins/dare-algos-elbo plugins/dare-eval plugins/dare-eval-opencompass plugins/dare-fastdllm
INSTALL  := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
TOOLS    := pytest pytest-xdist hypothesis jsonschema ruff mypy import-linter types-PyYAML build
WORKERS  ?= 2

CORE     := build/core

.PHONY: quickstart test test-core lint bench docs opencompass clean

quickstart: $(VENV)/.packages
	$(BIN)/python examples/quickstart/quickstart.py

test: $(VENV)/.tools
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

# dare-core alone, from its wheel, in an environment of its own without torch
test-core:
	rm -rf $(CORE) && $(PYTHON) -m venv $(CORE)/env
	$(CORE)/env/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(CORE) ./dare-core
	$(CORE)/env/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt $(CORE)/*.whl pytest hypothesis jsonschema
	! $(CORE)/env/bin/python -c 'import torch' 2> /dev/null
	$(CORE)/env/bin/python -m pytest tests/control

test-gpu: $(VENV)/.tools
	$(BIN)/python -m pytest -m gpu $(ARGS)

lint: $(VENV)/.tools
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.packages
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

docs: $(VENV)/.packages
	$(BIN)/python docs/generate.py

# OpenCompass's own environment, about 2 GB; PIP="torch==2.13.0" or the like goes to pip. Its tests are skipped without it.
opencompass: $(VENV)/.packages
	$(BIN)/dare eval setup-opencompass $(PIP)

clean:
	rm -rf $(VENV) build runs

$(VENV)/.packages: constraints.txt dare-core/pyproject.toml $(PACKAGES:=/pyproject.toml)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable 'dare-core[train,data]' $(addprefix --editable ,$(PACKAGES))
	touch $@

$(VENV)/.tools: $(VENV)/.packages
	$(INSTALL) $(TOOLS)
	touch $@
