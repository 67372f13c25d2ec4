# Everyday commands; `make` alone lists them.

CARGO ?= cargo
NIGHTLY ?= +nightly
PYTHON ?= python3
# Seconds that `make fuzz-smoke` gives each target.
FUZZ_SECONDS ?= 60
# What `make demo` asks.
PROMPT ?= Explain in one sentence what a compiler does.

CACHE := $(if $(OXIDIZE_TEST_CACHE),$(OXIDIZE_TEST_CACHE),$(HOME)/.cache/oxidize)
DEMO_MODEL := $(CACHE)/models/SmolLM2-135M-Instruct.Q4_1.gguf
# The crates that must also compile for machines without files or threads.
PORTABLE := -p oxidize-kernels -p oxidize-core
# In WebAssembly the host supplies random numbers: https://docs.rs/getrandom/0.3
HOSTED := CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS='--cfg getrandom_backend="custom"'
# A tool, installed the first time it is needed; $(2) may give its version.
ensure = @command -v $(1) >/dev/null || $(CARGO) install $(1) $(if $(2),--version $(2)) --locked
MDBOOK_VERSION := 0.5.4
LLVM_COV_VERSION := 0.9.1
# Each version reads the rustdoc JSON of a few versions of Rust; this one that of 1.95.
PUBLIC_API_VERSION := 0.52.0
SEMVER_VERSION := 0.49.0
# The tag or commit that `make semver` compares with.
BASELINE ?= $(shell git describe --tags --abbrev=0 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-models golden check-goldens test-python test-python-clients wheel ffi ffi-header test-ffi bench-python soak bench bench-check bench-peers bench-serve dashboard lint check-docs check-words \
	docs book public-api semver coverage fuzz-smoke fuzz-replay deny miri check-targets check-neon check-wasm check-convert \
	check-imatrix publish-check package web web-package web-demo web-test bench-web clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## fetch tools, Python packages and test models (300 MB, once)
	@scripts/setup

# The profile demo builds in a third of the time of a release.
demo: ## fetch a small model, build, and ask it PROMPT
	@scripts/setup --demo
	$(CARGO) build --profile demo -p oxidize-cli
	$(CARGO) run --profile demo --quiet -p oxidize-cli -- run "$(DEMO_MODEL)" "$(PROMPT)"

# The second time without the feature `unstable`, which the other crates of the workspace enable.
# Each part lists the tests that it skipped.
test: setup ## run all tests
	CARGO="$(CARGO)" scripts/run_tests --workspace
	CARGO="$(CARGO)" scripts/run_tests -p oxidize

test-models: ## run all tests, those on larger models too (another 2.1 GB)
	@scripts/setup --models
	CARGO="$(CARGO)" scripts/run_tests --workspace -- --include-ignored

# Needs 6 GB for PyTorch, once. scripts/golden/README.md has the variables.
GOLDEN_PYTHON := $(CACHE)/golden-venv/bin/python
golden: $(CACHE)/golden-venv/requirements.txt ## compute the outputs of golden models with PyTorch and compare
	$(GOLDEN_PYTHON) scripts/golden/golden.py $(if $(FROM),--from $(FROM)) $(if $(WRITE),--write) $(FLAGS) $(NAME)

$(CACHE)/golden-venv/requirements.txt: scripts/golden/requirements.txt
	$(PYTHON) -m venv $(CACHE)/golden-venv
	$(GOLDEN_PYTHON) -m pip install --quiet -r $<
	cp $< $@

# In a copy of the checkout, target/broken, whose build output is kept.
check-goldens: ## break descriptors of architectures, and see the golden models fail
	CARGO="$(CARGO)" $(PYTHON) scripts/break_descriptors.py

# The module without debug information: `make wheel` optimizes it, which takes several times as long.
test-python: setup ## build the Python package, test it, and check its types
	@scripts/test_python

test-python-clients: setup ## run LangChain, DSPy, txtai and others on the Python package (6 GB of packages)
	@scripts/test_python --clients

# WHEEL_FLAGS goes to maturin: `--zig` for an older C library.
wheel: ## build the Python wheel, target/wheels
	@scripts/test_python --wheel $(WHEEL_FLAGS)

# PEER is an interpreter with llama-cpp-python, for a comparison.
bench-python: ## measure the Python wheel in target/wheels
	@scripts/test_python --bench $(if $(PEER),--peer $(PEER)) $(BENCH_FLAGS)

# DESTDIR is put in front of PREFIX, for packages.
PREFIX ?= /usr/local
ffi: ## install the C API (header, libraries, pkg-config) below PREFIX
	CARGO="$(CARGO)" scripts/ffi --prefix "$(PREFIX)"

ffi-header: ## write oxidize.h, the header of the C API
	OXIDIZE_WRITE_HEADER=1 $(CARGO) test -p oxidize-ffi --test c_api -- header_is_current

test-ffi: setup ## test the C API with C, Go, valgrind and AddressSanitizer
	CARGO="$(CARGO)" scripts/test_ffi

# The short form, a minute: make soak REQUESTS=1000 CONNECTIONS=200 KILLS=10
REQUESTS ?= 20000
CONNECTIONS ?= 1000
KILLS ?= 200
soak: ## put a server under the load that breaks servers
	$(CARGO) build --release -p oxidize-cli
	$(PYTHON) scripts/soak.py --oxidize target/release/oxidize --requests $(REQUESTS) --connections $(CONNECTIONS)
	OXIDIZE_KILLS=$(KILLS) $(CARGO) test -p oxidize-cli --test server -- disk::a_killed_server --nocapture

bench: setup ## run the benchmarks
	$(CARGO) bench --workspace

bench-check: ## compare the instruction counts of the kernels with those kept (needs valgrind)
	$(CARGO) build --profile quick -p oxidize-kernels --example instructions
	$(PYTHON) scripts/bench_check.py target/quick/examples/instructions

# Peers are found by LLAMA_BENCH and IK_LLAMA_BENCH, on PATH, or as Python packages; PEER_FLAGS goes to the script.
bench-peers: ## measure speed, memory and start-up beside other engines
	$(CARGO) build --release -p oxidize-cli
	$(PYTHON) scripts/bench_peers.py --contention $(PEER_FLAGS)

# The peer is found by LLAMA_SERVER or on PATH; SERVE_FLAGS goes to the script.
bench-serve: ## measure the server beside llama-server
	$(CARGO) build --release -p oxidize-cli
	$(PYTHON) scripts/bench_serve.py $(SERVE_FLAGS)

dashboard: ## write the page of measurements by commit, target/dashboard/index.html
	$(PYTHON) scripts/dashboard.py

web-package: ## build the npm package, web/package/dist
	@scripts/setup --web
	@CARGO="$(CARGO)" scripts/build_web package

web: ## build the npm package and the demo application, web/app/dist
	@scripts/setup --web
	@CARGO="$(CARGO)" scripts/build_web app

WEB_PORT ?= 8080
web-demo: web ## serve the demo application with a small model, http://localhost:8080
	@scripts/setup --demo
	node web/server.mjs --port $(WEB_PORT) /=web/app/dist /models/=$(CACHE)/models

web-test: setup web-package ## test the npm package in Chromium, Firefox, Node and Vite
	OXIDIZE_REQUIRE_WEB=1 $(CARGO) test --workspace --test browser

# In the same page and run as wllama; WEB_FLAGS goes to the script.
bench-web: setup web-package ## measure the speed in a browser, beside wllama and a native engine
	$(CARGO) build --release -p oxidize-cli
	npm install --silent --no-save --prefix "$(CACHE)/wllama" @wllama/wllama@3.8.1
	node web/bench.mjs --model "$(DEMO_MODEL)" --wllama "$(CACHE)/wllama/node_modules/@wllama/wllama/esm" \
		--oxidize target/release/oxidize $(WEB_FLAGS)

check-convert: ## convert the golden models and compare with a built llama.cpp checkout, LLAMA=directory
	$(CARGO) build --release -p oxidize-cli
	$(PYTHON) scripts/check-convert-peers.py --oxidize target/release/oxidize --llama $(LLAMA)

check-imatrix: ## collect importance matrices and compare with a built llama.cpp checkout, LLAMA=directory
	$(CARGO) build --release -p oxidize-cli
	$(PYTHON) scripts/check-imatrix-peers.py --oxidize target/release/oxidize --llama $(LLAMA)

lint: ## check formatting, clippy without warnings, the modules of core, and that no test skips in silence
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(PYTHON) scripts/check_modules.py --self-test
	$(PYTHON) scripts/check_modules.py
	$(PYTHON) scripts/check_tests.py --self-test
	$(PYTHON) scripts/check_tests.py

check-docs: ## check the pages, their links, the history of the dashboard, and the table of coverage
	$(PYTHON) scripts/check_docs.py --self-test
	$(PYTHON) scripts/check_docs.py
	$(PYTHON) scripts/dashboard.py --self-test
	$(PYTHON) scripts/dashboard.py
	$(PYTHON) scripts/coverage.py --self-test

check-words: ## check for words of the old vocabulary, listed in scripts/banned_words.txt
	$(PYTHON) scripts/check_words.py --self-test
	$(PYTHON) scripts/check_words.py

# The second time without the feature `unstable`: what users of the library see.
docs: ## build the API documentation without warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc -p oxidize -p oxidize-core --no-deps

book: docs ## build the documentation as a book, target/book/index.html, with the API in api/
	$(call ensure,mdbook,$(MDBOOK_VERSION))
	$(PYTHON) scripts/book.py

public-api: ## list the public items of the library in docs/public-api
	$(call ensure,cargo-public-api,$(PUBLIC_API_VERSION))
	scripts/public_api

semver: ## check that the library's interface is compatible with that of BASELINE
	$(call ensure,cargo-semver-checks,$(SEMVER_VERSION))
	$(CARGO) semver-checks -p oxidize -p oxidize-core --baseline-rev $(or $(BASELINE),$(error BASELINE is not given and there is no tag))

coverage: setup ## measure test coverage; report in target/llvm-cov/html
	$(call ensure,cargo-llvm-cov,$(LLVM_COV_VERSION))
	@! command -v rustup >/dev/null || rustup component add llvm-tools
	$(CARGO) llvm-cov --workspace --html
	$(CARGO) llvm-cov report --json --summary-only --output-path target/llvm-cov/summary.json
	$(PYTHON) scripts/coverage.py target/llvm-cov/summary.json
	@$(PYTHON) scripts/coverage.py target/llvm-cov/summary.json --check >/dev/null

fuzz-smoke: ## fuzz each target for FUZZ_SECONDS
	$(call ensure,cargo-fuzz)
	scripts/fuzz $(FUZZ_SECONDS)

fuzz-replay: ## run each fuzz target over its stored corpus
	$(call ensure,cargo-fuzz)
	scripts/fuzz 0

deny: ## check licenses, advisories and sources of dependencies
	$(call ensure,cargo-deny)
	$(CARGO) deny check

# The formats in quant/ have no unsafe code of their own, and their tests would take Miri hours.
miri: ## run the scalar operations' tests under Miri
	@$(CARGO) $(NIGHTLY) miri --version >/dev/null 2>&1 || \
		rustup component add --toolchain nightly miri rust-src
	OXIDIZE_ISA=scalar $(CARGO) $(NIGHTLY) miri test -p oxidize-kernels --lib -- ops:: out::

check-targets: ## compile kernels and core for aarch64 and for WebAssembly
	$(CARGO) check $(PORTABLE) --target aarch64-unknown-linux-gnu
	$(HOSTED) $(CARGO) check $(PORTABLE) -p oxidize-wasm-test -p oxidize-wasm --target wasm32-unknown-unknown

check-neon: ## run the kernels' tests and every op for aarch64, emulated by qemu
	scripts/check-isa neon

check-wasm: ## run the kernels' tests and an engine in WebAssembly, in Node
	scripts/check-isa wasm

publish-check: ## pack every crate as for the registry, without uploading
	$(CARGO) publish --workspace --dry-run --no-verify --allow-dirty --quiet

package: ## build the archive of a release for this machine, in target/package
	scripts/package

clean: ## delete build output (the cache of models stays)
	$(CARGO) clean
	rm -rf fuzz/target fuzz/artifacts fuzz/coverage
