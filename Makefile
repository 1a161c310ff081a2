# Start with `make run` or `make test`. Both install what they need.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CACHE ?= $(or $(DRYDOCK_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/drydock)
# Builds are kept outside the repository, so that a fresh clone reuses them.
export CARGO_TARGET_DIR ?= $(CACHE)/target
KUBERNETES_VERSION ?= $(or $(DRYDOCK_KUBERNETES_VERSION),1.37.2)
CARGO := env ROCKSDB_LIB_DIR="$$(storage/rocksdb/build.sh)" ROCKSDB_STATIC=1 cargo

.PHONY: help
help: ## Lists the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

.PHONY: tools
tools: ## Installs the Debian packages that a build needs
	@.ci/tools.sh

.PHONY: build
build: tools ## Builds drydock-apiserver, drydock-controller and kubectl-drydock into bin/
	@$(CARGO) build --locked --profile dist -p drydock-server -p drydock-controller -p drydock-cli
	@mkdir -p bin && cp "$(CARGO_TARGET_DIR)"/dist/{drydock-apiserver,drydock-controller,kubectl-drydock} cli/kubectl_complete-drydock bin/

.PHONY: run
run: build ## Runs server and controller without a cluster, with demo objects; Ctrl-C stops it
	@deploy/demo/run.sh run

.PHONY: demo
demo: build ## Runs a drain from start to end in that setup and checks the outcome
	@deploy/demo/run.sh demo

.PHONY: cluster-binaries
cluster-binaries: ## Builds etcd, Kubernetes and kwok from Go modules, once per machine
	@tests/cluster/build.sh $(KUBERNETES_VERSION) >/dev/null

# The release of kubectl that the suite for the eviction bridge uses beside that of the control plane.
OTHER_KUBECTL := $(if $(filter 1.34.4,$(KUBERNETES_VERSION)),1.37.2,1.34.4)

.PHONY: neighbour-binaries
neighbour-binaries: ## Builds programs that evict pods, for the tests, once per machine
	@tests/cluster/build.sh descheduler >/dev/null
	@tests/cluster/build.sh prometheus >/dev/null
	@tests/cluster/build.sh kubectl $(OTHER_KUBECTL) >/dev/null

.PHONY: peer-binaries
peer-binaries: ## Builds the aggregated server in Go for the benchmarks, once per machine
	@tests/cluster/build.sh sample-apiserver >/dev/null

.PHONY: cluster
cluster: tools cluster-binaries ## Starts a real control plane on loopback with Drydock; ETCD=1: three servers over its etcd
	@$(CARGO) build --locked -p drydock-server -p drydock-controller -p drydock-cli -p drydock-tests
	@DRYDOCK_BIN_DIR="$(CARGO_TARGET_DIR)/debug" "$(CARGO_TARGET_DIR)"/debug/drydock-cluster up --kubernetes-version $(KUBERNETES_VERSION) $(if $(ETCD),--etcd-servers 3)

.PHONY: cluster-down
cluster-down: ## Stops the control plane of make cluster
	@"$(CARGO_TARGET_DIR)"/debug/drydock-cluster down

.PHONY: lint
lint: tools ## Checks formatting, clippy with warnings as errors, and licences, sources and bans of dependencies
	@cargo fmt --check
	@$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	@.ci/cargo-deny.sh

.PHONY: test
test: tools ## Runs all tests: unit, property, crash, standalone and real-cluster suites
	@if [ "$${DRYDOCK_TEST_CLUSTER:-}" != skip ]; then $(MAKE) --no-print-directory cluster-binaries neighbour-binaries; tests/clients/gitops/build.sh >/dev/null; fi
	@$(CARGO) build --locked --workspace --lib --bins --tests
	@DRYDOCK_BIN_DIR="$(CARGO_TARGET_DIR)/debug" DRYDOCK_KUBERNETES_VERSION=$(KUBERNETES_VERSION) \
		$(CARGO) test --locked --workspace

.PHONY: crash
crash: tools ## Runs 1000 rounds of kill -9 against the storage engine
	@DRYDOCK_CRASH_ROUNDS=1000 $(CARGO) test --locked --release -p drydock-tests --test crash -- --nocapture

.PHONY: soak
soak: build ## Runs 8 h of load with every event checked; options in tests/src/bin/drydock-soak.rs
	@$(CARGO) build --locked --release -p drydock-tests --bin drydock-soak
	@DRYDOCK_BIN_DIR="$(CURDIR)/bin" "$(CARGO_TARGET_DIR)"/release/drydock-soak

.PHONY: histories
histories: export DRYDOCK_HISTORY_OPERATIONS ?= 1000000
histories: tools ## Runs a million concurrent operations with engine failures and checks every result
	@$(CARGO) test --locked --release -p drydock-storage --test histories -- --nocapture

.PHONY: faults
faults: export DRYDOCK_FAULT_ROUNDS ?= 100
faults: export DRYDOCK_FAULT_SEED ?= $(shell date +%s)
faults: export DRYDOCK_FAULT_STRICT ?= 1
faults: build ## Runs 100 rounds of faults of three servers and three members of etcd under a load that is judged
	@DRYDOCK_BIN_DIR="$(CURDIR)/bin" $(CARGO) test --locked --release -p drydock-tests --test standalone -- \
		etcd::faults --nocapture

.PHONY: drains
drains: export DRYDOCK_DRAIN_ROUNDS ?= 20
drains: tools cluster-binaries ## Runs 20 drains while their parts are killed and stopped, and cancels 5000 requests in one
	@$(CARGO) build --locked --workspace --lib --bins --tests
	@DRYDOCK_BIN_DIR="$(CARGO_TARGET_DIR)/debug" DRYDOCK_KUBERNETES_VERSION=$(KUBERNETES_VERSION) \
		$(CARGO) test --locked -p drydock-tests --test cluster -- faults --nocapture

.PHONY: moving
moving: export DRYDOCK_MOVED_OBJECTS ?= 150000
moving: tools ## Moves 150,000 objects from RocksDB to etcd and back, within two minutes each
	@$(CARGO) test --locked --release -p drydock-storage --test etcd -- many_objects_move --nocapture

.PHONY: abuse
abuse: build ## Runs 10 min of abuse by 20 users beside an honest client; options in tests/src/bin/drydock-abuse.rs
	@$(CARGO) build --locked --release -p drydock-tests --bin drydock-abuse
	@DRYDOCK_BIN_DIR="$(CURDIR)/bin" "$(CARGO_TARGET_DIR)"/release/drydock-abuse

.PHONY: oracle
oracle: export DRYDOCK_ORACLE_STEPS ?= 10000
oracle: export DRYDOCK_ORACLE_SEED ?= $(shell date +%s)
oracle: tools cluster-binaries ## Compares 10,000 random writes with those of a custom resource of the same schema
	@$(CARGO) build --locked --workspace --lib --bins --tests
	@DRYDOCK_BIN_DIR="$(CARGO_TARGET_DIR)/debug" DRYDOCK_KUBERNETES_VERSION=$(KUBERNETES_VERSION) \
		$(CARGO) test --locked -p drydock-tests --test cluster -- oracle::sequences --nocapture

.PHONY: refusals
refusals: export DRYDOCK_REFUSALS ?= 100000
refusals: tools cluster-binaries ## Sends 100,000 requests that are refused beside another user's watch
	@$(CARGO) build --locked --workspace --lib --bins --tests
	@DRYDOCK_BIN_DIR="$(CARGO_TARGET_DIR)/debug" DRYDOCK_KUBERNETES_VERSION=$(KUBERNETES_VERSION) \
		$(CARGO) test --locked -p drydock-tests --test cluster -- abuse::refusals --nocapture

NIGHTLY := crash histories moving faults drains oracle refusals soak abuse fuzz

.PHONY: nightly
nightly: export DRYDOCK_SOAK_SECONDS ?= 600
nightly: export DRYDOCK_SOAK_ABUSERS ?= 20
nightly: ## Runs crash, histories, moving, faults, drains, oracle, refusals, 10 min of soak, abuse and fuzz; continues after a failure
	@failed=; for job in $(NIGHTLY); do \
		echo "nightly: $$job" >&2; $(MAKE) --no-print-directory "$$job" || failed+=" $$job"; \
	done; [ -z "$$failed" ] || { echo "nightly: failed:$$failed" >&2; exit 1; }

FUZZ_SECONDS ?= 60
FUZZ_TARGETS := $(notdir $(wildcard tests/fuzz/corpus/*))
HOST := $(shell rustc -vV | sed -n 's/^host: //p')

.PHONY: fuzz
fuzz: export CARGO_TARGET_DIR := $(CACHE)/fuzz
fuzz: export RUSTFLAGS := -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
fuzz: tools ## Fuzzes every parser of untrusted input for FUZZ_SECONDS each
	@$(CARGO) build --locked --manifest-path tests/fuzz/Cargo.toml --features server --target $(HOST) --bins
	@for target in $(FUZZ_TARGETS); do \
		mkdir -p "$(CACHE)/fuzz/corpus/$$target"; \
		"$(CACHE)/fuzz/$(HOST)/debug/$$target" -max_total_time=$(FUZZ_SECONDS) -max_len=4096 \
			-artifact_prefix=tests/fuzz/ "$(CACHE)/fuzz/corpus/$$target" "tests/fuzz/corpus/$$target"; \
	done

.PHONY: bench
bench: build cluster-binaries peer-binaries ## Runs the benchmarks; options in tests/benches/{http,drain}/main.rs
	@DRYDOCK_BIN_DIR="$(CURDIR)/bin" $(CARGO) bench --locked -p drydock-tests --bench commit_path --bench http --bench drain
