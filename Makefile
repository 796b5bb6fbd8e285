# Everything is built with one set of flags, so that the build cache is
# shared by all targets and by the e2e module.
export GOFLAGS := -trimpath -buildvcs=false $(filter-out -trimpath -buildvcs=%,$(GOFLAGS))

# NVML's header marks what newer drivers replace; its warnings say nothing of this project.
export CGO_CFLAGS ?= -g -O2 -Wno-deprecated-declarations

GO ?= go

VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
BRANCH   ?= $(shell git rev-parse --abbrev-ref HEAD 2>/dev/null || echo unknown)
# The commit's date, not the clock's: the same commit gives the same binary.
DATE     ?= $(shell git log -1 --format=%cI 2>/dev/null || echo unknown)

version_pkg := github.com/prometheus/common/version
# NVML's symbols are known only once its library is opened: the linker must not
# have them bound when the program starts, whatever a distribution's flags say.
LDFLAGS := -s -w -extldflags=-Wl,-z,lazy \
	-X $(version_pkg).Version=$(VERSION) \
	-X $(version_pkg).Revision=$(REVISION) \
	-X $(version_pkg).Branch=$(BRANCH) \
	-X $(version_pkg).BuildUser=make \
	-X $(version_pkg).BuildDate=$(DATE)

# More flags for `go test`; .ci/run passes -v.
TESTFLAGS ?=

BINARY := bin/headroom_exporter

.PHONY: all build demo test unit e2e e2e-deploy e2e-knee e2e-vllm bench bench-client bench-knee bench-headroom bench-alerts generate format lint vet packages clean help

all: build

help: ## This list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## bin/headroom_exporter
	$(GO) build -ldflags '$(LDFLAGS)' -o $(BINARY) .

demo: build ## A simulated replica with its headroom; Ctrl-C ends it
	$(BINARY) demo

test: format vet unit e2e e2e-deploy ## Everything that must hold before a commit

unit: packages ## Tests of the main module, with the race detector, and of what generates the dashboards
	$(GO) test -race $(TESTFLAGS) ./...
	cd dashboards/generate && $(GO) test $(TESTFLAGS) ./...

# The tests mostly wait, so more of them run at once than there are cores.
e2e: packages e2e/bin/promtool e2e/bin/prometheus e2e/bin/alertmanager e2e/dashboards/dist/index.html ## The product as processes, beside promtool, a browser and an OpenAI client
	cd e2e && $(GO) test -count=1 -timeout=15m -parallel=8 $(TESTFLAGS) ./...

e2e-deploy: packages e2e/bin/promtool ## The image built, and the examples in deploy/ read by what reads them
	cd e2e/deploy && $(GO) test -count=1 -timeout=10m $(TESTFLAGS) .

# On a machine that is quiet for ten minutes: the client voids what it was late for itself.
e2e-knee: packages ## A search of the knee to its end, as a process
	cd e2e && $(GO) test -count=1 -timeout=40m -v -run '^TestKnee' . -args -knee

# E2E_VLLM_DIR is a folder that holds a vLLM; E2E_VLLM_SERVE is the command that
# serves it, see CONTRIBUTING.md. Without them the test says so and is skipped.
e2e-vllm: ## Scenarios against a real vLLM (E2E_VLLM_DIR, E2E_VLLM_SERVE)
	cd e2e && $(GO) test -count=1 -timeout=45m -v -run '^TestVLLM' . -args -vllm.report='$(abspath bin/vllm-report.md)'

bench: e2e/bin/prometheus ## Go benchmarks, then the cost of the process, alone and beside a Prometheus server
	$(GO) test -run='^$$' -bench=. -benchmem ./...
	cd e2e && $(GO) run ./bench

bench-client: build ## What the probe's client can do on one core, beside vLLM's where that is installed
	cd e2e && $(GO) run ./bench-client

# In virtual time on all cores: what docs/accuracy.md says of the knee search.
KNEE_SEEDS ?= 40
bench-knee: ## How far off the probe's knees are, beside two other ways to find them
	$(GO) test -count=1 -timeout=2h -run='^TestAccuracy$$' ./probe/knee -args -accuracy-seeds $(KNEE_SEEDS)

# What docs/alerts.md says; make e2e runs the same with fewer seeds and without the steep ramp.
ALERT_SEEDS ?= 20
bench-alerts: e2e/bin/prometheus e2e/bin/alertmanager ## All alert scenarios, and ordinary traffic of many seeds that must page nobody
	cd e2e && $(GO) test -count=1 -timeout=30m -v -run '^TestAlerts$$' . -args -alerts.all -alerts.seeds=$(ALERT_SEEDS)

bench-headroom: ## How far the live load ratio is off, at the true knees of simulated mixes
	$(GO) test -count=1 -timeout=60m -v -run '^TestAccuracy' ./capacity/curve -accuracy.full

generate: ## Files that are made from code
	$(GO) generate ./...

format:
	@files=$$(find . -name node_modules -prune -o -name '*.go' -print | xargs gofmt -l); \
	if [ -n "$$files" ]; then echo "gofmt would change:"; echo "$$files"; exit 1; fi

vet:
	$(GO) vet ./...
	cd dashboards/generate && $(GO) vet ./...
	cd e2e && $(GO) vet ./...
	cd e2e/deploy && $(GO) vet .

lint: format vet e2e/bin/staticcheck ## gofmt, go vet and staticcheck
	e2e/bin/staticcheck ./...
	cd e2e && bin/staticcheck ./...
	cd e2e/deploy && ../bin/staticcheck .

# What the tests need besides Go. Installed where it is absent and can be.
packages:
	@.ci/packages

e2e/bin/promtool: e2e/tools/promtool/go.mod e2e/tools/promtool/go.sum
	cd e2e/tools/promtool && $(GO) build -tags remove_all_sd -ldflags '-s -w' -o ../../bin/promtool github.com/prometheus/prometheus/cmd/promtool
	@touch $@

# What dashboards and fleet rules are asked of, and what the product is measured beside.
e2e/bin/prometheus: e2e/tools/prometheus/go.mod e2e/tools/prometheus/go.sum
	cd e2e/tools/prometheus && $(GO) build -tags remove_all_sd,netgo -ldflags '-s -w' -o ../../bin/prometheus github.com/prometheus/prometheus/cmd/prometheus
	@touch $@

# What tells people of the fleet's alerts. Later versions embed a web page that
# their modules do not hold, so they cannot be built from them.
e2e/bin/alertmanager: e2e/tools/alertmanager/go.mod e2e/tools/alertmanager/go.sum
	cd e2e/tools/alertmanager && $(GO) build -tags netgo -ldflags '-s -w' -o ../../bin/alertmanager github.com/prometheus/alertmanager/cmd/alertmanager
	@touch $@

# What draws the dashboards, in the versions of the lock file; npm ci would refuse
# it where a registry lacks a package for another system. Where it cannot be had,
# the test that looks at the pictures is skipped, and says so.
e2e/dashboards/dist/index.html: $(wildcard e2e/dashboards/*.js* e2e/dashboards/index.html e2e/dashboards/src/*) | packages
	cd e2e/dashboards && npm install --no-save --no-fund --no-audit --loglevel=error && npm run --silent build \
		|| echo "the dashboards will not be drawn: npm or its packages cannot be had"

e2e/bin/staticcheck: e2e/tools/staticcheck/go.mod e2e/tools/staticcheck/go.sum
	cd e2e/tools/staticcheck && $(GO) build -ldflags '-s -w' -o ../../bin/staticcheck honnef.co/go/tools/cmd/staticcheck
	@touch $@

clean: ## Removes what the targets above made
	rm -rf bin e2e/bin e2e/openai/node_modules e2e/dashboards/node_modules e2e/dashboards/dist
