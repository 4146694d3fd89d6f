# lockkeeper's commands. `make help` explains them.
#
# Each target installs or builds what it needs in addition to Go and make:
# dbus-daemon by apt-get where it is missing, the control plane from Go
# modules (about 6 minutes the first time, then from a cache).

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
GO      ?= go
LDFLAGS := -s -w -X main.version=$(VERSION)
# Without what writes man pages from the commands, which nothing here uses: packaging/render writes them.
TAGS    := urfave_cli_no_docs
TOOL    := $(GO) tool -modfile=$(CURDIR)/tools.mod

# The seed of the sampled campaigns: SEED=… runs the same again.
SEED ?=
# Campaigns of faults and drained fleets in `make soak`, and how many of the campaigns run at once.
ROUNDS ?= 500
# Faults of the virtual fleet in `make soak`.
FAULTS ?= 1000000
JOBS ?= 4
# How long `make fuzz` runs each target.
FUZZTIME ?= 1m
# The bugs that `make bugs` plants: BUG='first page' or BUG=lock.txt.
BUG ?=
# What `make bench` measures: PARTS=drain, PARTS=size,idle, PARTS=all. It keeps the ratios in testbed/cmd/bench/history.jsonl.
PARTS ?=
# A planted offender for `make demo`: OFFENDER=budget.
OFFENDER ?=

# The tests, the checks, the tools and the product share what is compiled, also in another clone. Only the race detector needs cgo, and
# has its own. GOFLAGS in the environment would hide those of `go env -w`, so they are read by `go env`.
export GOFLAGS := $(strip $(filter-out -trimpath,$(shell $(GO) env GOFLAGS)) -trimpath)
export CGO_ENABLED := 0

.PHONY: help
help: ## Explain the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/lockkeeper, one static binary
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -trimpath -tags $(TAGS) -ldflags '$(LDFLAGS)' -o bin/lockkeeper .

.PHONY: demo
demo: deps ## Roll an update through three hosts of a real control plane (OFFENDER=budget: see the referee object)
	@echo "demo: compiling, which takes some minutes the first time"
	@cd testbed && exec $(GO) run ./cmd/demo $(if $(OFFENDER),-offender $(OFFENDER))

.PHONY: control-plane
control-plane: ## Build the real control plane that tests and the demo run on, unless it is in the cache
	@cd testbed && exec $(GO) run ./cmd/controlplane -build-only

# The same, and what real hosts are made of, where they can be had.
.PHONY: test-parts
test-parts: host-deps
	@cd testbed && exec $(GO) run ./cmd/controlplane -build-only -real-hosts

# `make lint` runs go vet. Without what debuggers need, the tests' binaries link faster.
TEST = $(GO) test -vet=off -ldflags '-s -w'
RACE = CGO_ENABLED=1 $(TEST) -race

# With many timers in a synctest bubble, two threads use the race detector's state of these timers at once, and the process crashes now
# and then in ThreadSanitizer (go.dev/issue/78156, seen with Go 1.26). With one thread it does not, and still finds unordered accesses.
RACE_BUBBLE = -race -cpu 1

# Real hosts take the longest, and mostly wait for boots, so they run next to everything else. The others begin after the quick checks.
.PHONY: test
test: test-deps ## Run every test: lint, units with -race, the test bed on a real control plane, real hosts
	@$(MAKE) --no-print-directory -j 4 FIRST='lint test-unit' test-hosts test-clusters test-packages test-explore

.PHONY: lint
lint: ## Check the form: gofmt, go vet, staticcheck, go fix
	@echo "lint: gofmt, go vet, staticcheck, go fix"
	@test -z "$$(gofmt -l .)" || { echo "not gofmt-ed:"; gofmt -l .; exit 1; }
	@$(GO) vet ./...
	@$(TOOL) staticcheck ./...
	@fixes=$$($(GO) fix -diff ./... 2>&1) || true; test -z "$$fixes" || { echo "$$fixes"; exit 1; }
	@cd testbed && $(GO) vet ./... && $(GO) vet -tags host ./cmd/bench/peer
	@cd testbed && $(TOOL) staticcheck ./... && $(TOOL) staticcheck -tags host ./cmd/bench/peer

# The packages that share memory between goroutines; TestConcurrent checks the list. In the others the race detector would find
# nothing, and their tests would take several times as long.
CONCURRENT = cli cli/agent cli/agent/metrics cli/agent/webserver cli/cluster coordinator coordinator/gate coordinator/notify drain kube \
	kube/dirwatch node node/effect node/fleetlock node/publish node/source node/timing node/watched systemd updateengine

.PHONY: test-unit
test-unit: deps ## Run the product's own tests, with -race where there are goroutines
	$(RACE) -timeout 15m $(CONCURRENT:%=./%)
	$(TEST) -timeout 15m $$($(GO) list ./... | grep -v $(patsubst %,-e '/%$$',$(CONCURRENT)))

.PHONY: test-deps
test-deps: deps package-test-deps example-test-deps gate-test-deps test-parts

# Most of these tests wait, for boots, for Leases to expire and for the API server, so more packages run at once than there are cores.
# explore and virtual only compute, and take the CPU time that is left.
.PHONY: test-testbed
test-testbed: test-deps ## Run the tests on a real control plane and on real hosts, with samples of the long campaigns
	@$(MAKE) --no-print-directory -j 4 test-clusters test-packages test-hosts test-explore

# The targets that have to be done before these begin.
FIRST ?=
test-clusters test-packages test-explore: $(FIRST)

# Packages that run lockkeeper in processes of its own. In faults these have the race detector; the tests do not need it.
PROCESSES = rollout faults turns install hosts realhost controlplane

# The longest ones first: otherwise the last one would run alone at the end.
.PHONY: test-clusters
test-clusters:
	cd testbed && LOCKKEEPER_SEED='$(SEED)' $(TEST) -timeout 30m -p 2 $(PROCESSES:%=./%)

# The packages of the test bed that share memory between goroutines. client does too, but the loops that it runs also run in the virtual
# fleet, which is cheaper under the race detector.
SHARING = apiserver faultproxy membus memhost referee simhost

.PHONY: test-packages
test-packages:
	cd testbed && LOCKKEEPER_SEED='$(SEED)' $(TEST) -timeout 30m -p 1 ./identity ./client \
		$$($(GO) list ./... | grep -v $(patsubst %,-e '/%$$',$(PROCESSES) $(SHARING) identity client e2e explore virtual))
	cd testbed && LOCKKEEPER_SEED='$(SEED)' $(RACE) -timeout 30m -p 1 $(SHARING:%=./%)

.PHONY: test-explore
test-explore:
	cd testbed && LOCKKEEPER_SEED='$(SEED)' nice -n 19 $(TEST) -timeout 30m ./virtual ./explore
	cd testbed && LOCKKEEPER_SEED='$(SEED)' LOCKKEEPER_RUNS=1 CGO_ENABLED=1 nice -n 19 $(TEST) $(RACE_BUBBLE) -timeout 30m -run 'TestSeeds$$' ./virtual

.PHONY: e2e
e2e: deps test-parts package-test-deps ## Install the packages on real hosts and roll them through updates and faults (root; prints LEFT OUT where it cannot)
	@$(MAKE) --no-print-directory test-hosts

.PHONY: test-hosts
test-hosts:
	cd testbed && LOCKKEEPER_SEED='$(SEED)' $(TEST) -timeout 1h -count 1 -v ./e2e

.PHONY: soak
soak: deps test-parts package-test-deps ## Run the full campaigns (SEED=…, ROUNDS=…, FAULTS=…, JOBS=…); their last lines print the seed
	LOCKKEEPER_SOAK=1 $(GO) test -timeout 2h -count 1 -run 'Invariants|RandomObservations|MinuteByMinute' ./coordinator/rollout ./node/step ./policy
	cd testbed && LOCKKEEPER_SOAK=$(ROUNDS) $(GO) test -timeout 6h -count 1 -v -run 'Explore' ./explore
	cd testbed && LOCKKEEPER_SOAK=$(FAULTS) LOCKKEEPER_SEED='$(SEED)' $(GO) test -timeout 24h -count 1 -v -run 'Seeds|Hostile|Clock' ./virtual
	cd testbed && LOCKKEEPER_RUNS=20 CGO_ENABLED=1 $(GO) test $(RACE_BUBBLE) -timeout 2h -count 1 -v -run 'Seeds|Hostile' ./virtual
	cd testbed && LOCKKEEPER_NODES=50000 $(GO) test -timeout 2h -count 1 -v ./large
	cd testbed && LOCKKEEPER_SOAK=$(ROUNDS) LOCKKEEPER_SEED='$(SEED)' $(GO) test -timeout 12h -count 1 -v -run 'EveryClass|EveryWrite' ./faults
	cd testbed && LOCKKEEPER_SOAK=$(ROUNDS) LOCKKEEPER_SEED='$(SEED)' LOCKKEEPER_JOBS=$(JOBS) $(GO) test -timeout 12h -count 1 -v -run Campaigns ./faults
	cd testbed && LOCKKEEPER_SOAK=100 LOCKKEEPER_SEED='$(SEED)' $(GO) test -timeout 12h -count 1 -v -run 'Rounds|Aims|Mutants' ./faults
	cd testbed && LOCKKEEPER_SOAK=$(ROUNDS) LOCKKEEPER_SEED='$(SEED)' CGO_ENABLED=1 $(GO) test -race -timeout 12h -count 1 -v ./client
	cd testbed && LOCKKEEPER_SOAK=1 $(GO) test -timeout 2h -count 1 -v ./turns ./rollout
	cd testbed && LOCKKEEPER_SOAK=1 $(GO) test -timeout 1h -count 1 -v -run FullNodes ./identity
	cd testbed && LOCKKEEPER_SOAK=1 $(GO) test -timeout 1h -count 1 -v -run ReproducibleInFull ./install
	cd testbed && LOCKKEEPER_SOAK=1 LOCKKEEPER_SEED='$(SEED)' $(GO) test -timeout 3h -count 1 -v ./e2e
	cd testbed && LOCKKEEPER_RELEASE=trixie LOCKKEEPER_SOAK=1 LOCKKEEPER_SEED='$(SEED)' $(GO) test -timeout 3h -p 1 -count 1 -v ./realhost ./hosts ./e2e

# The minors of Kubernetes that `make compat` runs on; older ones are directories of testbed/controlplane/binaries.
MINORS ?= newest 1.36 1.35

.PHONY: compat
compat: test-deps ## Run the demo, the installation, the identities and a rollout of real hosts on three minors of Kubernetes (an hour; MINORS=…)
	@cd testbed && exec $(GO) run ./cmd/compat $(MINORS)

.PHONY: fuzz
fuzz: ## Fuzz everything that others may write, FUZZTIME each: records, acks, the host's file, D-Bus bodies, the cores
	@grep -rHo --include=*_test.go '^func Fuzz[A-Za-z]*' api node coordinator updateengine | while IFS=: read -r file target; do \
		echo "fuzz: $${target#func } in $${file%/*}, $(FUZZTIME)"; \
		$(GO) test -run '^$$' -fuzz "^$${target#func }$$" -fuzztime $(FUZZTIME) ./$${file%/*} </dev/null; \
	done

# PACKAGES="node/step coordinator/rollout/grant.go" mutates only these.
PACKAGES ?=

.PHONY: mutants
mutants: ## Break the pure packages in one place at a time, and list what their unit tests do not notice (hours; PACKAGES=…)
	@cd testbed && $(GO) build -o ../bin/mutants ./cmd/mutants
	@exec nice -n 19 bin/mutants -gremlins "$$($(TOOL) -n gremlins)" -packages '$(PACKAGES)'

.PHONY: bugs
bugs: deps ## Check that the tests find each bug of testbed/bugs (BUG=… selects by name)
	cd testbed && LOCKKEEPER_BUGS='$(BUG)' $(GO) test -timeout 6h -count 1 -v -run 'TestBugs$$' ./bugs

.PHONY: bench
bench: deps control-plane build ## Measure size, start, memory, requests and decisions next to peers (5 minutes; PARTS=all: 100 hosts, 5,000 Nodes and drains as well, half an hour; BASE=COMMIT: this commit and that one in turn, twice)
	@cd testbed && exec $(GO) run ./cmd/bench -binary $(CURDIR)/bin/lockkeeper -history cmd/bench/history.jsonl -commit $(VERSION) $(if $(PARTS),-only $(PARTS)) $(if $(BASE),-base $(BASE))

# Not by a test, as the documents are: with stale deep copies none compiles.
.PHONY: generate
generate: ## Generate the deep copies and packaging/manifests/crds.yaml from the types in api/v1alpha1
	@$(TOOL) controller-gen object paths=./api/v1alpha1
	@crds=$$($(TOOL) controller-gen crd paths=./api/v1alpha1 output:stdout | sed 1d); \
	{ cat packaging/manifests/crds.head; printf '%s\n' "$$crds"; } >packaging/manifests/crds.yaml

.PHONY: docs
docs: ## Rewrite the documents that are rendered from code
	$(GO) test ./packaging/render . -run 'Docs|UpToDate' -count 1 -args -update
	cd testbed && $(GO) test ./explore -run Page -count 1 -args -update

# The database of known vulnerabilities; file:///DIR is one on this machine.
VULNDB ?= https://vuln.go.dev
GOVULNCHECK := $(TOOL) govulncheck -db '$(VULNDB)'

# govulncheck exits with 3 when it has found something. After any other failure the check counts as skipped if the database
# cannot be reached, and as failed if it can. -mode=query asks the database without reading our code.
.PHONY: vulncheck
vulncheck: ## Look for known vulnerabilities in what both modules call; says SKIPPED where the database cannot be reached
	@skipped() { \
		why=$$($(GOVULNCHECK) -mode=query -json stdlib@go1.26.0 2>&1 >/dev/null) && return 1; \
		echo "vulncheck: SKIPPED: $$1 was not checked, because $(VULNDB) cannot be reached: $$why"; \
	}; \
	failed=; \
	for dir in . testbed; do \
		module=$$(cd $$dir && $(GO) list -m); \
		if skipped $$module; then continue; fi; \
		status=0; (cd $$dir && $(GOVULNCHECK) -test ./...) || status=$$?; \
		case $$status in \
		0) echo "vulncheck: $$module was checked: it calls nothing with a known vulnerability" ;; \
		3) echo "vulncheck: FAILED: $$module calls what is vulnerable, see above"; failed=yes ;; \
		*) skipped $$module || { echo "vulncheck: FAILED: $$module could not be checked: govulncheck ended with status $$status"; failed=yes; } ;; \
		esac; \
	done; \
	[ -z "$$failed" ]

# Where the files will be published; some of them name it. A release has no default.
URL ?=
# The secret key of gpg that signs a release: its fingerprint. Without it, the release is not signed.
KEY ?=

.PHONY: packages
packages: package-deps ## Make deb, rpm, sysext image, Ignition file, SBOM and checksums in dist/ (URL=…: where the images will be)
	$(GO) run ./packaging/build -version '$(VERSION)' -url '$(URL)' -out dist

.PHONY: release
release: release-deps ## Make all files of a release in dist/, a directory to publish as it is, one for each minor version (VERSION=1.2.3 URL=https://…/1.2 KEY=FINGERPRINT)
	$(GO) run ./packaging/build -release -version '$(VERSION)' -url '$(URL)' -key '$(KEY)' -out dist

# The tools that make and sign the indexes of repositories.
.PHONY: release-deps
release-deps: package-deps
	@$(call need,apt-ftparchive:apt-utils createrepo_c:createrepo-c gpg:gnupg)

.PHONY: package-deps
package-deps:
	@$(call need,mksquashfs:squashfs-tools)

# What the tests of packages call too: linters, package managers, shells.
.PHONY: package-test-deps
package-test-deps: release-deps
	@$(call need,dnf:dnf gpgv:gpgv lintian:lintian rpm:rpm rpmlint:rpmlint shellcheck:shellcheck mandoc:mandoc man:man-db fish:fish zsh:zsh systemd-analyze:systemd mmdebstrap:mmdebstrap)

# What the examples of hooks call.
.PHONY: example-test-deps
example-test-deps:
	@$(call need,curl:curl)

# What the tests of gates start, and stop. Debian's package would also start one of its own, where systemd runs.
.PHONY: gate-test-deps
gate-test-deps:
	@$(call need,prometheus:prometheus)

# need installs the Debian packages of programs that are missing: PROGRAM:PACKAGE…
need = missing=; for p in $(1); do command -v "$${p%%:*}" >/dev/null || missing="$$missing $${p\#*:}"; done; \
	[ -z "$$missing" ] || { echo "$@: installing$$missing"; \
	[ "$$(id -u)" = 0 ] || { echo "$@: missing; as root: apt-get install$$missing"; exit 1; }; \
	apt-get update -q && apt-get install -q -y --no-install-recommends $$missing; }

.PHONY: deps
deps:
	@command -v dbus-daemon >/dev/null || { \
		echo "deps: installing dbus-daemon"; \
		[ "$$(id -u)" = 0 ] || { echo "deps: dbus-daemon is missing; as root: apt-get install dbus"; exit 1; }; \
		apt-get update -q && apt-get install -q -y --no-install-recommends dbus; }

# What real hosts need. Where it cannot be had, the tests with them say what they leave out.
# Each of them, with its systemd and kubelet, takes some 15 inotify instances, each control plane 10, out of the 128 that Linux gives a user.
INOTIFY := 1024

.PHONY: host-deps
host-deps:
	@missing=; for p in systemd-nspawn mmdebstrap ip bridge unshare; do command -v $$p >/dev/null || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "host-deps: installing what has$$missing"; \
		apt-get update -q && apt-get install -q -y --no-install-recommends systemd-container mmdebstrap iproute2 util-linux || true; fi
	@limit=/proc/sys/fs/inotify/max_user_instances; now=$$(cat $$limit 2>/dev/null || echo $(INOTIFY)); \
	if [ "$$(id -u)" = 0 ] && [ "$$now" -lt $(INOTIFY) ]; then \
		echo "host-deps: fs.inotify.max_user_instances was $$now and is $(INOTIFY) until the machine's next boot: hosts in containers share it"; \
		echo $(INOTIFY) >$$limit || echo "host-deps: it stays $$now, and hosts may fail to boot"; fi
	@[ "$$(id -u)" != 0 ] || $(MAKE) --no-print-directory package-deps

.PHONY: clean
clean: ## Remove what was built here (the control plane's cache stays)
	rm -rf bin dist
