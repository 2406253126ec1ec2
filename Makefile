# The two commands of the README are `make demo` and `make test`; each sets up .venv from nothing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
# A suite starts many processes: let them find what the first one compiled, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test slow check integrations dist docs format bench clean

demo: $(VENV)/.installed
	$(BIN)/leakscope demo

test: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow"

slow: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m slow

integrations: .venv-integrations/.installed
	LEAKSCOPE_EXTRAS=required OMP_NUM_THREADS=1 .venv-integrations/bin/python -m pytest tests/integrations/test_flower.py tests/integrations/test_flower_text.py tests/integrations/test_nvflare.py tests/integrations/test_opacus.py tests/integrations/test_dp_example.py tests/integrations/test_optuna.py tests/integrations/test_transformers.py

# Wheel and sdist, their files, and the wheel in a clean environment outside the tree; the files must be committed.
dist: .venv-dist/.installed
	rm -rf dist
	.venv-dist/bin/python -m build
	.venv-dist/bin/twine check --strict dist/*
	.venv-dist/bin/python tools/check_dist.py dist

docs: .venv-docs/.installed
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/architecture
	$(BIN)/leakscope paper render --check
	$(BIN)/python tools/papers.py --check
	$(BIN)/python tools/catalogue.py --check
	$(BIN)/python tools/reference.py --check

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed
	$(BIN)/leakscope bench

clean:
	rm -rf $(VENV) .venv-integrations .venv-dist .venv-docs site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/bin/python pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@

# The site needs its generator alone, not the package: the extra's requirements, without torch.
.venv-docs/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'], sep='\n')" > .venv-docs/requirements.txt
	.venv-docs/bin/pip install --quiet --disable-pip-version-check --requirement .venv-docs/requirements.txt
	touch $@

.venv-integrations/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-integrations
	.venv-integrations/bin/pip install --quiet --disable-pip-version-check --editable ".[dev,flower,nvflare,dp,search,transformers]"
	touch $@

.venv-dist/.installed:
	$(PYTHON) -m venv .venv-dist
	.venv-dist/bin/pip install --quiet --disable-pip-version-check build twine
	touch $@
