# MiniPIC: `make setup` builds .venv; the other targets build it themselves when it is missing or out of date.
PYTHON ?= python3.11
BIN := .venv/bin
ARGS ?=

.PHONY: setup test demo lint format bench-cpu clean help

help:
	@echo "make setup | test | demo | lint | format | bench-cpu | clean   (ARGS=... is passed on)"

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
