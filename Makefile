# Two commands matter, and either one works first: `make soak` and `make test`.
# scripts/bootstrap.py makes .venv ready before each target and does nothing when it is.

PYTHON := .venv/bin/python
PYTEST := $(PYTHON) -m pytest
LINTED := campaigns ledger producer receipts templates benchmarks scripts tests

.DEFAULT_GOAL := help
.PHONY: help soak test test-fast lint bench clean-venv venv

help:
	@echo 'make soak        set up, then the sample campaign: 12 handoffs, a verdict,'
	@echo '                 a report, and a forged copy that is found out'
	@echo 'make test        set up, then the whole test suite'
	@echo 'make test-fast   the tests that need no vLLM and no patience'
	@echo 'make lint        format, lint, types, imports'
	@echo 'make bench       every figure against its bound, the machine named'
	@echo 'make clean-venv  remove .venv; evidence and lanes are never removed'

venv:
	@python3 scripts/bootstrap.py

soak: venv
	@$(PYTHON) scripts/soak.py

test: venv
	@$(PYTEST)

test-fast: venv
	@$(PYTEST) -m "not vllm and not slow and not browser" -n auto --dist worksteal

lint: venv
	$(PYTHON) -m ruff format --check $(LINTED)
	$(PYTHON) -m ruff check $(LINTED)
	$(PYTHON) -m mypy
	.venv/bin/lint-imports

bench: venv
	@$(PYTHON) -m benchmarks

clean-venv:
	rm -rf .venv
