# Everything a developer runs. Each target does its own set-up, from PyPI (and, where said, Debian's packages), into
# .venv and build/, and repeats only what changed. Which versions: requirements-dev.txt. What is built: CMakeLists.txt.
#
#   make demo         build the package and run examples/quickstart.py
#   make test         build everything, then lint, types, C++ unit tests, pytest
#   make wheel        one wheel per Python found (3.11 - 3.13) in dist/, each tried in a bare environment
#   make test-torch   the layer, routers and checkpoints against PyTorch and transformers, in .venv-torch
#   make test-matrix  wheels against the oldest and the newest jax
#   make cpp-test     C++ unit tests alone      make asan, make tsan    the same under a sanitizer
#   make aarch64      the same, cross-compiled for aarch64 and run by qemu-user
#   make format       bring all sources into the form that `make test` checks
#   make clean        remove .venv, build/, dist/ and caches
#
# Variables: PYTHON=python3.13 (another interpreter), CXX=clang++ (another compiler), PYTEST_ARGS='-k cpu' (make test, make test-matrix).

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
export CMAKE_BUILD_PARALLEL_LEVEL = $(JOBS)
ifneq ($(origin CXX),default)
export CXX
endif

ifeq ($(shell command -v $(PYTHON)),)
$(error Python: found no '$(PYTHON)'. Install Python 3.11 or newer (Debian, Ubuntu: apt-get install python3 python3-venv), \
or name one: make PYTHON=python3.13 ...)
endif

TAG := $(shell $(PYTHON) -c 'import sys; print(sys.implementation.cache_tag)')
BIN := $(VENV)/bin
TIMES := build/times
SIM := tests/sm100sim
KERNEL_TESTS := tests/sm100kernel
HEADERS = $(abspath $(VENV))/include/jaxlib
CMAKE := $(BIN)/cmake
CTEST := $(BIN)/ctest --output-on-failure --no-tests=error
PART = @tools/timed.sh $(TIMES)

# No .py file but the one with the version: the package is installed in place.
SOURCES := pyproject.toml CMakeLists.txt jax_megamoe/__init__.py $(shell find xla_ffi -type f)
CPP_TESTS := $(shell find tests/cpp -type f 2>/dev/null)
CXX_FILES = $(shell find xla_ffi tests -name '*.cc' -o -name '*.h' -o -name '*.inl' -o -name '*.cu' -o -name '*.cuh')

.PHONY: demo test test-torch setup setup-simulator lint format cpp-test asan tsan aarch64 simulator wheel test-matrix clean help
.DELETE_ON_ERROR:

help:
	@sed -n '/^#   make/s/^# //p' Makefile

demo: setup build/$(TAG)/demo.built
	$(BIN)/python examples/quickstart.py

test:
	@mkdir -p build && rm -f $(TIMES)
	+$(PART) 'set-up' $(MAKE) --no-print-directory setup setup-simulator
	+$(PART) 'build of the package and the C++ unit tests' $(MAKE) --no-print-directory build/$(TAG)/test.built
	+$(PART) 'build of the simulator' $(MAKE) --no-print-directory simulator
	+$(PART) 'lint and types' $(MAKE) --no-print-directory lint
	+$(PART) 'C++ unit tests' $(MAKE) --no-print-directory run-cpp-tests
	$(PART) 'pytest: package' $(BIN)/python -m pytest --ignore=$(SIM) --ignore=$(KERNEL_TESTS) $(PYTEST_ARGS)
ifneq ($(wildcard $(SIM)/CMakeLists.txt),)
	$(PART) 'pytest: simulator' $(BIN)/python -m pytest $(SIM) $(PYTEST_ARGS)
	$(PART) 'pytest: SM100 kernel' $(BIN)/python -m pytest $(KERNEL_TESTS) $(PYTEST_ARGS)
endif
	@tools/timed.sh $(TIMES)

setup:
	@$(PYTHON) tools/setup_venv.py $(VENV) requirements-dev.txt

setup-simulator: setup
	@$(PYTHON) tools/setup_venv.py $(VENV) $(wildcard $(SIM)/requirements.txt)

# ---- the package, installed in place: a changed .py file needs nothing, a changed C++ file one incremental build
INSTALL = $(BIN)/python -m pip install --verbose --no-build-isolation --no-deps --disable-pip-version-check \
  --config-settings=cmake.define.JAXLIB_INCLUDE_DIR=$(HEADERS) --editable .
# The log is long; what matters of it is which parts were built, or, after a failure, its end.
define install
@mkdir -p build/$(TAG)
@echo "building into build/$(TAG)/$(1), log in build/$(TAG)/$(1).log"
@$(INSTALL) --config-settings=build-dir=build/$(TAG)/$(1) $(2) >build/$(TAG)/$(1).log 2>&1 || \
  { grep -v '^ *\[[0-9]*/[0-9]*\]' build/$(TAG)/$(1).log | tail -n 60; exit 1; }
@sed -n 's/^ *-- \(jax_megamoe: \)/\1/p' build/$(TAG)/$(1).log
endef

build/$(TAG)/demo.built: $(SOURCES) $(VENV)/contents
	$(call install,demo,)
	@touch $@

# What the tests need is more than the demo's: whoever has it need not build for the demo.
build/$(TAG)/test.built: $(SOURCES) $(CPP_TESTS) $(VENV)/contents
	$(call install,test,--config-settings=cmake.define.JAX_MEGAMOE_SM100=ON --config-settings=cmake.define.JAX_MEGAMOE_TESTS=ON)
	@touch build/$(TAG)/demo.built $@

$(VENV)/contents:
	@$(MAKE) --no-print-directory setup

# ---- checks
# All of them, also after one has found something.
lint: setup
	@failed=; \
	check() { echo "$$*" | cut -c 1-100; "$$@" || failed="$$failed $$(basename $$1)"; }; \
	check $(BIN)/ruff check .; \
	check $(BIN)/ruff format --check .; \
	check $(BIN)/clang-format --dry-run -Werror $(CXX_FILES); \
	check $(BIN)/mypy; \
	if [ -n "$$failed" ]; then echo "lint: found something:$$failed ('make format' mends the form)"; exit 1; fi

format: setup
	$(BIN)/ruff check --fix --select I .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

# ---- C++ unit tests
.PHONY: run-cpp-tests
ifneq ($(wildcard tests/cpp/CMakeLists.txt),)
run-cpp-tests: build/$(TAG)/test.built
	$(CTEST) --test-dir build/$(TAG)/test
else
run-cpp-tests:
	@echo "C++ unit tests: none in this source tree (no tests/cpp/CMakeLists.txt)"
endif

cpp-test: setup
	+$(MAKE) --no-print-directory run-cpp-tests

# The libraries and their tests without Python, for a sanitizer or another machine: $(1) folder, $(2) CMake options.
define cpp_alone
@$(CMAKE) -S . -B build/$(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DJAX_MEGAMOE_PYTHON=OFF \
  -DJAX_MEGAMOE_TESTS=ON -DJAXLIB_INCLUDE_DIR=$(HEADERS) $(2) >build/$(1).log || { tail -n 40 build/$(1).log; exit 1; }
$(CMAKE) --build build/$(1)
$(CTEST) --test-dir build/$(1)
endef

asan: setup
	@mkdir -p build
	$(call cpp_alone,asan,-DJAX_MEGAMOE_SANITIZE=address)

tsan: setup
	@mkdir -p build
	$(call cpp_alone,tsan,-DJAX_MEGAMOE_SANITIZE=thread)

aarch64: setup
	@command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null || { \
	  echo "aarch64: needs aarch64-linux-gnu-g++ and qemu-aarch64 (Debian: apt-get install g++-aarch64-linux-gnu qemu-user)"; exit 1; }
	@mkdir -p build
	$(call cpp_alone,aarch64,-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
	  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ '-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu')

# ---- the SM100 simulator: for tests only, never in a wheel
simulator: setup-simulator
ifneq ($(wildcard $(SIM)/CMakeLists.txt),)
	@mkdir -p build
	@$(CMAKE) -S $(SIM) -B build/sm100sim -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DCMAKE_BUILD_TYPE=Release \
	  -DPython_EXECUTABLE=$(abspath $(BIN))/python >build/sm100sim.log || { tail -n 40 build/sm100sim.log; exit 1; }
	$(CMAKE) --build build/sm100sim
else
	@echo "simulator: not in this source tree (no $(SIM)/CMakeLists.txt)"
endif

# ---- comparison with PyTorch, in an environment of its own: `make test` is to run without PyTorch
TORCH := .venv-torch
test-torch:
	@$(PYTHON) tools/setup_venv.py $(TORCH) requirements-dev.txt tests/pytorch/requirements.txt
	+@$(MAKE) --no-print-directory VENV=$(TORCH) TAG=$(TAG)-torch build/$(TAG)-torch/demo.built
	$(TORCH)/bin/python -m pytest tests/pytorch $(PYTEST_ARGS)

# ---- wheels
wheel: setup
	$(BIN)/python tests/matrix.py wheel

test-matrix: setup
	$(BIN)/python tests/matrix.py test $(PYTEST_ARGS)

clean:
	rm -rf $(VENV) $(TORCH) build dist .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
