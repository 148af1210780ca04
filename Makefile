# MiniPIC. Every target first brings .venv up to date with requirements/, which takes no time when it is.
PYTHON ?= $(or $(shell command -v python3.11),python3)
BIN := .venv/bin
ARGS ?=

.PHONY: help setup test demo lint format bench-cpu clean

help:
	@echo "make setup      build .venv from the pinned requirements"
	@echo "make demo       serve the bundled model, warm documents, ask in changing orders"
	@echo "make test       the whole test suite"
	@echo "make lint       ruff and pyright; make format repairs what ruff can"
	@echo "make bench-cpu  measure against stock vLLM, into benchmarks/results/cpu.json"
	@echo "make clean      remove .venv and caches"
	@echo "ARGS='...' is passed on: make test ARGS='-k purity'"

setup:
	@$(PYTHON) scripts/setup_env.py

test: setup
	$(BIN)/pytest $(ARGS)

demo: setup
	@$(BIN)/minipic demo $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench-cpu: setup
	$(BIN)/minipic bench cpu --json $(ARGS)

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
