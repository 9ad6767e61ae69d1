# Each target sets up what it needs in .venv; tools/preflight.sh says first what a fresh machine lacks.
PYTHON ?= python3
JOBS ?= $(shell nproc)
# The tests with processes wait half of their time, for heartbeat limits and the like.
TEST_JOBS ?= $(shell expr $(JOBS) + 1)
MINUTES ?= 10
STRESS_SEEDS ?= 1 2
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
CMAKE := $(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja)
CTEST := $(BIN)/ctest --no-tests=error --output-on-failure -j $(JOBS)
C_FOLDERS := bench bindings csrc cuda examples sim tests tools
C_FILES = $(or $(shell git ls-files '*.c' '*.h' '*.cu' 2>/dev/null),$(shell find $(C_FOLDERS) -name '*.[ch]' -o -name '*.cu')) # no git in a release
# Tests without threads, which the thread sanitizer has nothing to say about and slows down most, and one that races on purpose.
PURE := changed_inputs|kernels|quant|hash|wire|socket|seek|ring_order|sim|judge|plan|arrival|election|member|delta|outline|shares|core_|sparse|pairs|weights|block|cod(ec|ing)|secrets
# Tests whose threads are those of others: one that counts how often threads wake, and some that take a minute each there.
REPEATED := handovers|refused|engine_cuda|lane_cuda|reduce_on_host
# The builds for tests and checks fail on warnings; `make test WERROR=OFF` for a compiler that has new ones. What users install does not.
WERROR ?= ON
WARNINGS = -DPCCL_WERROR=$(WERROR)
SAY_WHAT_LACKS = @$(BIN)/python -c 'from pccl.cli.info import lz4_missing as lz4; lz4() and print("LZ4:", lz4())'
BUILT_FROM := CMakeLists.txt cmake/cuda_kernels.cmake pccl/_version.py $(shell find csrc cuda bindings -type f) $(wildcard sim/*.[ch])

# One build has the C tests and the fuzz targets. If clang is missing, tests/fuzz/driver.c takes the place of libFuzzer.
ADDRESS_CC ?= $(shell command -v clang || command -v cc)
ADDRESS_BUILD := build/address-$(notdir $(ADDRESS_CC))
# With clang, tests and fuzz targets share a build. The fuzz targets of other compilers need a core that only they can link.
FUZZ_BUILD := $(if $(findstring clang,$(ADDRESS_CC)),$(ADDRESS_BUILD),build/fuzz)
FUZZ_SECONDS ?= 600

.PHONY: help setup build quick wheels wheels-free-threaded try-wheels test test-frameworks mutants test-c test-compat test-python check lint format check-symbols check-address check-thread check-fuzz check-model check-sim sim address-build fuzz-build thread-build fuzz bench demo stress soak jitter jitter-small far test-keys test-keys-small test-fakes test-fakes-small gpu-test gpu-bench site release clean

help:
	@echo 'make demo    train a small model with three peers, kill one of them, and let another one in'
	@echo 'make test    all tests; make test-compat: the C tests that are programs written for PCCL; make mutants: all deliberate bugs'
	@echo 'make test-frameworks  accelerate, transformers, Lightning, DeepSpeed, Ray Train and torchft on pccl; downloads them'
	@echo 'make quick   the tests that start no process, within a minute'
	@echo 'make check   lint, types, the C tests under sanitizers, a short run of the fuzzers, the model where spin is there, and 100,000 seeds of the simulator'
	@echo 'make fuzz    fuzz every target for FUZZ_SECONDS=600; FUZZ_TARGETS="fuzz_member" for some'
	@echo 'make stress  harm a run of real processes for half a minute; make soak: for MINUTES=10, for each of STRESS_SEEDS="1 2", once'
	@echo '             with a standby master, and then MASTER_LOSS_TRIALS=1000 scripts, in each of which the master is killed one to three times'
	@echo 'make jitter  the tests with processes, whose threads are held up at random: finds what only a busy machine shows;'
	@echo '             make jitter-small: a choice of them, in about a minute; JITTER_TESTS=tests/chaos/test_kills.py for others'
	@echo 'make far     the tests with processes, to which the kernel tells of each link that it leads far away; FAR_TESTS=tests/chaos/test_kills.py'
	@echo 'make test-keys  tests/integration, tests/chaos and the suite of torch with keys: all connections are encrypted (docs/security.md);'
	@echo '             make test-keys-small: a choice of them, in about a minute; KEY_TESTS=tests/chaos/test_kills.py for others'
	@echo 'make test-fakes  what has sockets, on a transport that cuts, delays and changes all bytes, and tests/integration on a'
	@echo '             device that takes its time, too (tests/fakes);'
	@echo '             make test-fakes-small: a choice of them, in a minute or two; FAKE_SEED=1'
	@echo 'make gpu-test, make gpu-bench  on a machine with a GPU and torch: results in gpu-out; skipped where there is none'
	@echo 'make sim     SEEDS=100000 seeds of the simulator, from SEED=1'
	@echo 'make wheels  wheels in dist/ for old and new systems (docs/installing.md); WHEELS="manylinux_2_28_x86_64" for some'
	@echo 'make try-wheels  as root: an all-reduce with these wheels on systems that they are for; SYSTEMS="debian-12-amd64" for some'
	@echo 'make site    the documentation as a site, in build/site; checks its simulator where Playwright and Chromium are there'
	@echo 'make release  source archive, wheels, checksums and a bill of materials, in dist'
	@echo 'make format  bring the sources into shape'
	@echo 'make bench   measure all figures of docs/benchmarks.md within an hour, and write its tables; ONLY="sync far" for some;'
	@echo '             as root also over limited links'

# ---- set-up ----

.venv/ready: pyproject.toml constraints.txt
	@tools/preflight.sh $(PYTHON)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) --upgrade 'pip>=25.1' # the scripts of an older one import `re`, which is half of what `pccl master` takes
	$(PIP) --editable '.[test,dev,demo,stress]'
	$(BIN)/python -m compileall -q pccl pccl_command
	touch .venv/ready .venv/built
	$(SAY_WHAT_LACKS)

# What made .venv/ready has built it as well.
.venv/built: .venv/ready $(BUILT_FROM)
	@test -e $@ && test -z "$$(find $(BUILT_FROM) -newer $@ -print -quit)" || \
	  { echo 'pip install --editable .'; $(PIP) --no-build-isolation --no-deps --editable . && touch $@; }
	$(SAY_WHAT_LACKS)

setup: .venv/ready
build: .venv/built

# Wheels for old and new systems, with kernels for GPUs, for which nvcc comes from the Python index where it is not installed.
WHEELS ?=
wheels: .venv/ready
	$(PIP) ziglang auditwheel abi3audit wheel
	command -v nvcc >/dev/null || $(PIP) nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm nvidia-cuda-runtime
	$(BIN)/python tools/wheels.py --jobs $(JOBS) $(WHEELS)

# Likewise for a free-threaded Python, which has no limited API, so for its version alone: PYTHON=python3.14t. The wheel for
# this machine reduces with keys.
FREE_THREADED = build/wheels/free-threaded/bin
wheels-free-threaded:
	test -x $(FREE_THREADED)/python || $(PYTHON) -m venv build/wheels/free-threaded
	$(FREE_THREADED)/python -m pip install --quiet ziglang auditwheel wheel 'cffi>=2.1' 'scikit-build-core>=0.11' cmake ninja numpy click rich
	command -v nvcc >/dev/null || $(FREE_THREADED)/python -m pip install --quiet nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm nvidia-cuda-runtime
	$(FREE_THREADED)/python tools/wheels.py --jobs $(JOBS) $(WHEELS)
	$(FREE_THREADED)/python -m pip install --quiet --no-index --no-deps --force-reinstall --find-links dist pccl
	cd build/wheels && free-threaded/bin/python $(CURDIR)/tools/wheel_program.py

# Systems that the wheels are for, unpacked from Debian's packages; as root.
SYSTEMS ?=
try-wheels: .venv/ready
	$(BIN)/python tools/try_wheels.py --jobs $(JOBS) $(SYSTEMS)

# ---- tests ----

test: test-c test-python

test-c: .venv/ready
	$(CMAKE) -S . -B build/test -DPCCL_BUILD_TESTS=ON $(WARNINGS)
	$(BIN)/cmake --build build/test -j $(JOBS)
	$(CTEST) --test-dir build/test

# Programs written for PCCL alone, with what they need. Those in C++ are left out where there is no compiler for it.
COMPAT ?= ^compat_
test-compat: .venv/ready
	$(CMAKE) -S . -B build/test -DPCCL_BUILD_TESTS=ON $(WARNINGS)
	$(BIN)/cmake --build build/test -j $(JOBS) --target compat
	$(CTEST) --test-dir build/test -R '$(COMPAT)'

test-python: .venv/built
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal -q --durations=25 tests

# What has neither processes nor sockets, within a minute of a build: between two edits.
quick: .venv/built
	$(CMAKE) -S . -B build/test -DPCCL_BUILD_TESTS=ON $(WARNINGS) > build/quick.log && \
	  $(BIN)/cmake --build build/test -j $(JOBS) >> build/quick.log || { cat build/quick.log; exit 1; }
	$(CTEST) --test-dir build/test --quiet -L '^(compute|topology|ops|base|bindings)$$'
	$(BIN)/python -m pytest --quick -n $(JOBS) --dist worksteal -q -r fE tests/python

# All deliberate bugs; `make test` takes a third.
mutants: .venv/ready
	TEST_MUTANTS=all $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -q tests/sim/test_mutants.py

# Training frameworks against gloo, with kills and newcomers, in an environment of their own; FRAMEWORKS='-k lightning' for some.
FRAMEWORKS_VENV ?= .venv-frameworks
$(FRAMEWORKS_VENV)/ready: tests/frameworks/requirements.txt
	@tools/preflight.sh $(PYTHON)
	test -x $(FRAMEWORKS_VENV)/bin/python || $(PYTHON) -m venv $(FRAMEWORKS_VENV)
	DS_BUILD_OPS=0 $(FRAMEWORKS_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --requirement tests/frameworks/requirements.txt
	touch $@

test-frameworks: $(FRAMEWORKS_VENV)/ready
	$(FRAMEWORKS_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --no-build-isolation --config-settings=build-dir=build/frameworks .
	FRAMEWORKS_TABLE=$(abspath build/frameworks.md) $(FRAMEWORKS_VENV)/bin/python -m pytest -q --durations=0 tests/frameworks $(FRAMEWORKS)

# ---- checks ----

check: lint check-symbols check-address check-thread check-fuzz check-model check-sim

lint: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	$(BIN)/clang-format --dry-run -Werror $(C_FILES)
	$(BIN)/python tools/check_layout.py
	$(BIN)/python tools/check_symbols.py
	$(BIN)/python tools/check_hardening.py
	$(BIN)/python tools/check_subjects.py
	$(BIN)/python tools/check_imports.py
	$(BIN)/python tools/check_tables.py
	$(BIN)/python tools/tuning.py --check
	$(BIN)/python bench/run_all.py --check
	$(BIN)/python tools/check_docstrings.py

# `make lint` checks the symbols and the hardening of a build that is up to date, if there is one.
check-symbols: .venv/built
	$(BIN)/python tools/check_symbols.py --require
	$(BIN)/python tools/check_hardening.py --require

format: .venv/ready
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(C_FILES)

SANITIZED_BY_ADDRESS = $(CMAKE) -S . $(WARNINGS) -DPCCL_BUILD_SHARED=OFF '-DPCCL_SANITIZE=address;undefined' -DCMAKE_C_COMPILER=$(ADDRESS_CC)
address-build: .venv/ready
	$(SANITIZED_BY_ADDRESS) -B $(ADDRESS_BUILD) -DPCCL_BUILD_TESTS=ON -DPCCL_BUILD_FUZZ=$(if $(findstring clang,$(ADDRESS_CC)),ON,OFF)
	$(BIN)/cmake --build $(ADDRESS_BUILD) -j $(JOBS)

fuzz-build: $(if $(findstring clang,$(ADDRESS_CC)),address-build,.venv/ready)
ifeq ($(findstring clang,$(ADDRESS_CC)),)
	$(SANITIZED_BY_ADDRESS) -B $(FUZZ_BUILD) -DPCCL_BUILD_FUZZ=ON
	$(BIN)/cmake --build $(FUZZ_BUILD) -j $(JOBS)
endif

thread-build: .venv/ready
	$(CMAKE) -S . -B build/thread -DPCCL_BUILD_TESTS=ON $(WARNINGS) -DPCCL_BUILD_SHARED=OFF -DPCCL_SANITIZE=thread
	$(BIN)/cmake --build build/thread -j $(JOBS)

check-address: address-build
	$(CTEST) --test-dir $(ADDRESS_BUILD)

check-thread: thread-build
	$(CTEST) --test-dir build/thread -E '$(PURE)|$(REPEATED)'

check-fuzz: fuzz-build
	tests/fuzz/run.sh $(FUZZ_BUILD) 4 $(JOBS)

fuzz: fuzz-build
	tests/fuzz/run.sh $(FUZZ_BUILD) $(FUZZ_SECONDS) $(JOBS) $(FUZZ_TARGETS)

check-model:
	@if command -v spin >/dev/null; then tests/model/run.sh build/model; else echo 'model: not checked, for want of spin'; fi

# ---- the simulator ----

SEED ?= 1
sim check-sim: SEEDS := 100000
sim check-sim: .venv/built
	$(BIN)/pccl sim --seed $(SEED) --seeds $(SEEDS) --jobs $(JOBS)

# ---- to look at ----

bench: .venv/built
	$(BIN)/python bench/run_all.py $(if $(ONLY),--only $(ONLY))

demo: .venv/built
	$(BIN)/pccl demo

# Each run has a folder of its own.
STRESS_OUT := stress-out/$(shell date +%Y%m%d-%H%M%S)
stress: .venv/built
	$(BIN)/pccl stress --out $(STRESS_OUT)

MASTER_LOSS_TRIALS ?= 1000
soak: .venv/built
	for seed in $(STRESS_SEEDS); do $(BIN)/pccl stress --minutes $(MINUTES) --seed $$seed --out $(STRESS_OUT)/soak-$$seed || exit 1; done
	$(BIN)/pccl stress --minutes $(MINUTES) --peers 4 --standbys 1 --out $(STRESS_OUT)/soak-standby
	for work in diloco async streaming; do $(BIN)/pccl stress --minutes $(MINUTES) --workload $$work --out $(STRESS_OUT)/soak-$$work || exit 1; done
	cat $(STRESS_OUT)/soak-*/summary.md
	PCCL_TEST_PATIENCE=120 MASTER_LOSS_TRIALS=$(MASTER_LOSS_TRIALS) $(BIN)/python -m pytest -n $(JOBS) -q tests/chaos/test_master_loss.py -k test_kills

# A test that fails here has a cause, in the library or in itself; JITTER_THREAD=pccl:master and the like narrow it down (tests/jitter/jitter.c).
JITTER_TESTS ?= tests/chaos tests/integration tests/python
jitter-small: JITTER_TESTS := $(addprefix tests/integration/,test_membership.py test_contract.py test_sync.py test_closing.py) tests/chaos/test_kills.py
jitter jitter-small: .venv/built
	mkdir -p build
	$(CC) -std=c11 -O2 -Wall -Wextra -shared -fPIC -o build/jitter.so tests/jitter/jitter.c -ldl
	PCCL_TEST_PATIENCE=120 LD_PRELOAD=$(abspath build/jitter.so) $(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal --timeout 600 -q $(JITTER_TESTS)

# Long links between processes of one host (tests/far/far.c).
FAR_TESTS ?= tests/chaos tests/integration tests/python/diloco
far: .venv/built
	mkdir -p build
	$(CC) -std=c11 -O2 -Wall -Wextra -shared -fPIC -o build/far.so tests/far/far.c -ldl
	PCCL_TEST_PATIENCE=120 PCCL_SAME_HOST_MEMORY=0 LD_PRELOAD=$(abspath build/far.so) $(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal --timeout 600 -q -m 'not near' $(FAR_TESTS)

# Tests that cannot have keys carry the marker `plain`. KEY_SUITE=true leaves torch's own suite out.
KEY_TESTS ?= tests/integration tests/chaos
KEY_SUITE ?= $(BIN)/python tests/compat/torch_suite.py --keys
test-keys-small: KEY_SUITE := true
test-keys-small: KEY_TESTS := $(addprefix tests/integration/,test_membership.py test_sync.py test_closing.py distributed/test_tags.py) tests/chaos/test_resets.py
test-keys test-keys-small: .venv/built
	TEST_KEYS=1 $(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal -q $(KEY_TESTS)
	$(KEY_SUITE)

# test_refused is left out: it refuses each request for memory in turn, and a fake stream takes as many turns more.
FAKE_SEED ?= 1
FAKE_C := conn|transport|endpoint|wireup|master|communicator|engine|engine_links|engine_memory|broadcast|unexpected|failure_detector|sync
FAKE_PYTHON := tests/integration
test-fakes-small: FAKE_C := conn|transport|endpoint|wireup|engine_links|engine_memory|unexpected|sync
test-fakes-small: FAKE_PYTHON := $(addprefix tests/integration/,test_membership.py test_sync.py test_closing.py)
test-fakes test-fakes-small: .venv/ready
	tests/fakes/run.sh .venv $(FAKE_SEED) $(JOBS) 'test_($(FAKE_C))$$' -n $(TEST_JOBS) --timeout 600 $(FAKE_PYTHON)

# The scripts need the package and torch alone, so on a machine without network any Python that has both can run them.
gpu-test: .venv/built
	$(BIN)/python tests/gpu/run.py --out gpu-out/test

gpu-bench: .venv/built
	$(BIN)/python bench/gpu.py --out gpu-out/bench

site: .venv/built
	$(PIP) 'sphinx>=8' 'furo>=2025.7' 'myst-parser>=4' 'sphinx-click>=6' ziglang
	$(BIN)/python tools/site/build.py build/site
	@if $(BIN)/python -c 'import playwright' 2> /dev/null; then \
	  TEST_SIMULATOR_PAGE=build/site/simulator.html $(BIN)/python -m pytest -q -rs tests/sim/test_simulator_page.py; \
	else echo 'The simulator of the site is not checked: Playwright is missing (pip install playwright)'; fi

release: .venv/built
	$(PIP) ziglang auditwheel abi3audit wheel build
	$(BIN)/python tools/release.py

clean:
	rm -rf build dist gpu-out demo-out stress-out pccl/*.so sim/*.so pccl/spawned_master
