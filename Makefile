# devmgrd: what a person types. Each target works on a fresh Debian machine with Go, gcc, git and make; what else it
# needs it builds from Go modules or installs as Debian packages, and says so.

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)

.PHONY: help build check proto test e2e chaos demo bench fuzz install clean

help: ## Show the targets.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## Build bin/devmgrd.
	$(GO) build -trimpath -ldflags "-X main.version=$(VERSION)" -o bin/devmgrd ./cmd/devmgrd

check: ## Format, vet, lint and unit tests with the race detector: all that a reviewer would ask for.
	@unformatted=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	if [ -n "$$unformatted" ]; then echo "gofmt would change:"; echo "$$unformatted"; exit 1; fi
	$(call generate,diff -rq --exclude staging api "$$work" || { echo "the Go code in api is not what its .proto files say: run make proto"; exit 1; })
	$(GO) vet ./...
	$(GO) vet -tags e2e ./test/...
	$(GO) -C test/tools/lint build -o ../../../bin/staticcheck honnef.co/go/tools/cmd/staticcheck
	bin/staticcheck -tags e2e ./...
	$(GO) test -race ./...

proto: ## Lint the .proto files in api, and write their Go code beside them.
	$(call generate,find api -name '*.pb.go' -delete; cd "$$work"; find . -name '*.pb.go' -exec cp --parents {} "$(CURDIR)/api" \;)

# Lint and generate in a copy of api, $$work, then do $(1). Nothing is fetched but Go modules. One of them has the file that
# ours import: it stands where that module's own Go code says, which is its name among all that is linked together.
KUBELET_API = k8s.io/kubelet/pkg/apis/podresources/v1alpha1
define generate
	$(GO) -C test/tools/proto build -o ../../../bin/ tool
	@set -e; work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; \
	cp -R api/. "$$work"; find "$$work" -name '*.pb.go' -delete; \
	install -D -m 0644 "$$($(GO) list -f '{{.Dir}}' $(KUBELET_API))/api.proto" "$$work/staging/src/$(KUBELET_API)/api.proto"; \
	(cd "$$work"; PATH="$(CURDIR)/bin:$$PATH"; buf lint; buf generate); \
	$(1)
endef

e2e: ## End-to-end tests on a real one-node Kubernetes, some random faults, and the demo (root).
	$(GO) run ./test/cluster/cmd/cluster build
	$(GO) run ./test/demo
	$(MAKE) --no-print-directory --output-sync=target --jobs=2 e2e-1 e2e-2 e2e-cluster e2e-chaos

# Parts of e2e that run side by side, each on a cluster of its own. Most of their time they wait.
.PHONY: e2e-1 e2e-2 e2e-cluster e2e-chaos
e2e-1:
	$(GO) test -tags e2e -race -count 1 -timeout 25m -run '^Test[A-L]' ./test/e2e
e2e-2:
	$(GO) test -tags e2e -race -count 1 -timeout 25m -run '^Test[M-Z]' ./test/e2e
e2e-cluster:
	$(GO) test -tags e2e -race -count 1 -timeout 25m ./test/cluster/...
e2e-chaos:
	$(GO) run ./test/chaos -n 4 -seed 1

test: ## All tests: unit, integration, a little fuzzing, and end to end (root).
	$(MAKE) check
	$(MAKE) fuzz FUZZTIME=1000x # by time it fails at times at the end of the time (go.dev/issue/75804)
	$(MAKE) e2e

chaos: ## Random faults (root): N=20 sequences, SEED=17 one again, KUBELET=1 against the kubelet's device manager.
	$(GO) run ./test/chaos -n $(or $(N),$(if $(SEED),1,20)) $(if $(SEED),-seed $(SEED)) $(if $(KUBELET),-kubelet)

demo: ## The main job, as a story to follow (root). KEEP=1 leaves it running.
	$(GO) run ./test/demo $(if $(KEEP),--keep)

bench: ## Print the figures that the design is measured by.
	$(GO) test -run '^$$' -bench . -benchmem ./internal/... ./test/bench/...
	$(GO) -C test/bench/kubelet test -run '^$$' -bench . -benchtime 3s . # it builds half a kubelet first: some minutes, once

FUZZTIME ?= 30s
fuzz: ## Fuzz what reads other people's bytes, FUZZTIME each.
	@for package in $$(grep -rl --include='*_test.go' '^func Fuzz' internal config | xargs -n1 dirname | sort -u); do \
		for target in $$(grep -ho '^func Fuzz[A-Za-z0-9]*' $$package/*_test.go | sed 's/func //'); do \
			$(GO) test -run '^$$' -fuzz "^$$target$$" -fuzzminimizetime 100x -fuzztime $(FUZZTIME) ./$$package || exit 1; \
		done; \
	done

install: build ## Install the binary, the systemd unit and what ships with them below DESTDIR.
	install -D -m 0755 bin/devmgrd $(DESTDIR)/usr/bin/devmgrd
	install -D -m 0644 packaging/systemd/devmgrd.service $(DESTDIR)/usr/lib/systemd/system/devmgrd.service
	install -D -m 0644 packaging/systemd/devmgrd.socket $(DESTDIR)/usr/lib/systemd/system/devmgrd.socket
	install -D -m 0644 packaging/containerd/devmgrd.toml $(DESTDIR)/usr/share/devmgrd/containerd/devmgrd.toml
	install -D -m 0644 packaging/kubernetes/fail-closed.yaml $(DESTDIR)/usr/share/devmgrd/kubernetes/fail-closed.yaml
	[ -e $(DESTDIR)/etc/devmgrd/config.yaml ] || install -D -m 0644 config/devmgrd.yaml $(DESTDIR)/etc/devmgrd/config.yaml

clean: ## Remove what was built here. The tools' cache is elsewhere and stays.
	rm -rf bin
