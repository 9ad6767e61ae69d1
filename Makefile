# Each target sets up what it needs in .venv: a fresh machine needs python3 (3.11 or later), a C compiler and make.
PYTHON ?= python3
JOBS ?= $(shell nproc)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
CMAKE := $(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja)
CTEST := $(BIN)/ctest --no-tests=error --output-on-failure -j $(JOBS)
C_FILES := $(shell git ls-files '*.c' '*.h')
# Tests of modules without threads, which the thread sanitizer has nothing to say about and slows down most.
PURE := kernels|quant|hash|wire|ring_order
BUILT_FROM := CMakeLists.txt pccl/_version.py $(shell find csrc bindings -type f)

.PHONY: help setup build test test-c test-python check lint format check-address check-thread bench demo clean

help:
	@echo 'make demo    train a small model with three peers, kill one of them, and let another one in'
	@echo 'make test    all tests'
	@echo 'make check   lint, types, and the C tests under sanitizers'
	@echo 'make format  bring the sources into shape'
	@echo 'make bench   measure against torch gloo; as root also over limited links'

# ---- set-up ----

.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) --editable '.[test,dev,demo]'
	touch .venv/ready .venv/built

.venv/built: .venv/ready $(BUILT_FROM)
	$(PIP) --no-build-isolation --no-deps --editable .
	touch .venv/built

setup: .venv/ready
build: .venv/built

# ---- tests ----

test: test-c test-python

test-c: .venv/ready
	$(CMAKE) -S . -B build/test -DPCCL_BUILD_TESTS=ON
	$(BIN)/cmake --build build/test -j $(JOBS)
	$(CTEST) --test-dir build/test

test-python: .venv/built
	$(BIN)/python -m pytest -n $(JOBS) -q tests

# ---- checks ----

check: lint check-address check-thread

lint: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(C_FILES)

format: .venv/ready
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(C_FILES)

check-address: .venv/ready
	$(CMAKE) -S . -B build/address -DPCCL_BUILD_TESTS=ON -DPCCL_BUILD_SHARED=OFF '-DPCCL_SANITIZE=address;undefined'
	$(BIN)/cmake --build build/address -j $(JOBS)
	$(CTEST) --test-dir build/address

check-thread: .venv/ready
	$(CMAKE) -S . -B build/thread -DPCCL_BUILD_TESTS=ON -DPCCL_BUILD_SHARED=OFF -DPCCL_SANITIZE=thread
	$(BIN)/cmake --build build/thread -j $(JOBS)
	$(CTEST) --test-dir build/thread -E '$(PURE)'

# ---- to look at ----

bench: .venv/built
	$(BIN)/python bench/run_all.py

demo: .venv/built
	$(BIN)/pccl demo

clean:
	rm -rf build dist demo-out pccl/*.so
