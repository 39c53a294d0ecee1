# `make quickstart`: measure this machine, then predict and measure a training step. `make check`: what CI runs.
# Each sets itself up in a virtual environment of its own; nothing has to be installed by hand beside Python >= 3.11.

PYTHON ?= python3
SHELL := /bin/bash
PIP_INSTALL = -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: quickstart check format clean

quickstart: .venv/ready
	.venv/bin/stepgauge doctor
	.venv/bin/stepgauge calibrate --quick
	.venv/bin/stepgauge validate resnet50:8 alexnet:32

check: .venv-check/ready
	.venv-check/bin/ruff format --check .
	.venv-check/bin/ruff check .
	.venv-check/bin/mypy
	.venv-check/bin/lint-imports
	.venv-check/bin/pytest -q -n 2

format: .venv-check/ready
	.venv-check/bin/ruff format .
	.venv-check/bin/ruff check --fix .

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("stepgauge needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	.venv/bin/python $(PIP_INSTALL) -e '.[measure]'
	touch $@

.venv-check/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("stepgauge needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv-check
	.venv-check/bin/python $(PIP_INSTALL) -e '.[measure,dev]'
	touch $@

clean:
	rm -rf .venv .venv-check dist build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
