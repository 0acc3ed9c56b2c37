# devmgrd: what a person types. Each target works on a fresh Debian machine with Go, gcc, git and make; what else it
# needs it builds from Go modules or installs as Debian packages, and says so.

GO      ?= go
# What the targets run calls go, too.
export PATH := $(shell $(GO) env GOROOT)/bin:$(PATH)
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
BIN     ?= bin/devmgrd
LDFLAGS ?= -X github.com/devmgrd/devmgrd/internal/version.version=$(VERSION)

# A part of a run, whose time the run prints at its end.
timed = scripts/stages stage

.PHONY: help build check proto test e2e cluster package chaos upstream demo page machine matrix arm64 scale bench fuzz install deb rpm image clean

help: ## Show the targets.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## Build bin/devmgrd: static, so that it runs wherever it is copied to.
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "$(LDFLAGS)" -o $(BIN) ./cmd/devmgrd

check: ## Static checks: format, generated code, vet, staticcheck, rules of the repository, and what ships with the binary.
	@scripts/stages run $(MAKE) --no-print-directory check-stages

# vet compiles most of what the later stages need too: their modules have the versions of this one (test/tools/README.md), and
# nothing here is built for the race detector. The tag e2e leaves out no file (test/rules).
.PHONY: check-stages
check-stages:
	@$(timed) format $(MAKE) --no-print-directory format
	@$(timed) "generated code" $(MAKE) --no-print-directory generated
	@$(timed) vet $(MAKE) --no-print-directory vet
	$(timed) "vet, browser" $(GO) -C test/browser vet .
	@$(timed) staticcheck $(MAKE) --no-print-directory staticcheck
	$(timed) rules $(GO) test ./test/rules
	$(timed) packaging $(GO) test -count 1 ./packaging/...
	$(timed) "container image" $(GO) -C packaging/image test .
	$(timed) "manual pages" $(GO) -C packaging/man test .
	@$(timed) "Helm chart" $(MAKE) --no-print-directory chart
	@$(timed) policies $(MAKE) --no-print-directory policies
	@$(timed) alerts $(MAKE) --no-print-directory alerts

# Compiles what the tests of a tool module import, or vet and staticcheck read, and reports the progress.
compile = @$(gobuild) -title "$(1)" -dependencies
# The go command, the compiler and staticcheck take a fifth less time with more memory: 1.2 GB at most.
check-stages generated vet staticcheck alerts chart policies proto: export GOGC := $(or $(GOGC),400)

.PHONY: format generated vet staticcheck
format:
	@unformatted=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	if [ -n "$$unformatted" ]; then echo "gofmt would change:"; echo "$$unformatted"; exit 1; fi
generated:
	$(call compile,the compiler of .proto files) -C test/tools/proto .
	GO=$(GO) scripts/proto check
	$(GO) -C test/tools/proto test .
vet:
	$(call compile,what all packages import) -flags -tags=e2e ./...
	$(GO) vet -tags e2e ./...
staticcheck:
	@$(gobuild) -title staticcheck -C test/tools/lint -o ../../../bin/staticcheck honnef.co/go/tools/cmd/staticcheck
	bin/staticcheck -tags e2e ./...

# The tests read files of this module, which Go's cache of results does not see: -count 1. The tag leaves out 240 of 1350
# packages, those that find targets in clouds.
.PHONY: alerts
alerts: ## Check the alerts and the dashboard, and play the alerts' tests, with Prometheus's own tool and parser.
	@$(gobuild) -title promtool -C test/tools/prometheus -flags -tags=remove_all_sd -o ../../../bin/promtool github.com/prometheus/prometheus/cmd/promtool
	bin/promtool check rules --lint=all --lint-fatal packaging/prometheus/alerts.yaml
	bin/promtool test rules packaging/prometheus/alerts_test.yaml
	$(GO) -C test/tools/prometheus test -tags remove_all_sd -count 1 .
	$(GO) test ./packaging/prometheus ./packaging/grafana

# The tests read the shipped manifests, which are not in their module: -count 1.
.PHONY: chart
chart: ## Lint and render the Helm chart, and hold it against the Kustomize base.
	$(call compile,Helm) -C packaging/helm .
	$(GO) -C packaging/helm test -count 1 .

.PHONY: policies
policies: ## Test the admission policies of the service account with Kubernetes' own validator.
	$(call compile,the API server's validator) -C test/tools/k8s .
	$(GO) -C test/tools/k8s test -count 1 .

.PHONY: vulnerabilities
vulnerabilities: ## Look for known vulnerabilities in what is linked into the binary; it needs vuln.go.dev.
	scripts/vulnerabilities

proto: ## Check the .proto files in api, and write their Go code next to them.
	GO=$(GO) scripts/proto write

# Builds, and reports the progress. What tests need is built by it before them, so that no time limit of a test counts it.
gobuild = $(GO) run ./test/gobuild/cmd/gobuild
# The tests bin/$(2).test, run in their directory, with a name and a limit that begins when all that they run is built.
testlog = scripts/testlog "$(1)" bin/logs/$(2).log env -C $(3) $(CURDIR)/bin/$(2).test -test.v -test.timeout $(4)
# The unit tests: all packages but the rules of the repository and what ships with the binary, which make check tests.
UNIT = ./api/... ./client/... ./cmd/... ./config/... ./internal/... ./test/...

test: ## Does it work here? Unit tests with the race detector, a little fuzzing, and the main job on a real containerd and runc (root).
	@scripts/stages run $(MAKE) --no-print-directory test-stages

.PHONY: test-stages test-build unit mainjob
test-stages:
	@$(timed) "build for the tests" $(MAKE) --no-print-directory test-build
	@$(MAKE) --no-print-directory --keep-going --jobs=2 mainjob unit
	@$(timed) fuzz $(MAKE) --no-print-directory fuzz FUZZTIME=1000x # by time it fails at times at the end of the time (go.dev/issue/75804)
test-build: export GOGC := $(or $(GOGC),400)
test-build:
	@$(gobuild) -title "the tests of the main job" -test -flags "-race -tags=e2e" -o bin/mainjob.test ./test/mainjob
	@cd test/mainjob && ../../bin/mainjob.test -test.list '^$$' # it builds what the tests run
	@$(gobuild) -title "what the unit tests import" -dependencies -flags -race $(UNIT)
mainjob: # most of its time it waits, so it runs next to the unit tests
	@$(timed) "main job, on containerd" $(call testlog,main job,mainjob,test/mainjob,15m)
unit:
	@GO=$(GO) $(timed) "unit tests" scripts/unit $(filter-out %/test/rules,$(shell $(GO) list $(UNIT)))

e2e: ## Behaviour on Kubernetes: tests on real one-node clusters, the chart, the page in Chromium, the demo (root). TESTS='TestDRA_' some of them.
	@scripts/stages run $(MAKE) --no-print-directory e2e-stages

.PHONY: e2e-stages e2e-build
e2e-stages:
	@$(timed) "build for end to end" $(MAKE) --no-print-directory e2e-build
ifdef TESTS
	@$(timed) "end to end, $(TESTS)" scripts/e2e-lane 1 1 '$(TESTS)'
else
	@$(MAKE) --no-print-directory --keep-going --jobs=$$(($(LANES) + 1)) $(lanes)
endif
e2e-build: export GOGC := $(or $(GOGC),400)
e2e-build:
	@$(gobuild) -title "the end-to-end tests" -test -flags "-race -tags=e2e" -o bin/e2e.test ./test/e2e
	@cd test/e2e && ../../bin/e2e.test -test.list '^$$' # it builds what the tests run
ifndef TESTS
	@$(gobuild) -title "the tests of the chart" -test -flags "-race -tags=e2e" -o bin/chart.test ./test/chart
	@cd test/chart && ../../bin/chart.test -test.list '^$$' # Helm and the container image
	@$(gobuild) -title "the demo" -o bin/demo ./test/demo
	@$(gobuild) -title "the page's tests" -C test/browser -test -flags -race -o ../../bin/page.test .
	@cd test/browser && ../../bin/page.test -test.list '^$$' # devmgrd, and Chromium is installed
endif

# Parts of e2e that run side by side, each on a cluster of its own: more lanes than there are processors, since much of their time they wait.
# The parts that are not lanes run one after the other next to these. The time limits end what hangs, also on a machine that is a fifth as fast.
LANES ?= 6
numbered = $(addprefix e2e-,$(shell seq $(LANES)))
lanes = $(numbered) e2e-chart e2e-demo e2e-page
.PHONY: $(lanes)
$(numbered): e2e-%:
	@$(timed) "end to end, lane $*" scripts/e2e-lane $* $(LANES)
e2e-chart:
	@$(timed) "the Helm chart" $(call testlog,chart,chart,test/chart,40m)
e2e-page:
	@$(timed) "the page in Chromium" $(call testlog,page,page,test/browser,40m)
e2e-demo:
	@$(timed) demo bin/demo

cluster: ## Test the cluster that the end-to-end tests run on, and its command (root).
	@$(gobuild) -title "the tests of the test cluster" -test -flags "-race -tags=e2e" -o bin/cluster.test ./test/cluster
	@$(gobuild) -title "the tests of its command" -test -flags "-race -tags=e2e" -o bin/cluster-command.test ./test/cluster/cmd/cluster
	@cd test/cluster && ../../bin/cluster.test -test.list '^$$' # it builds what the tests run
	@$(call testlog,test cluster,cluster,test/cluster,40m); status=$$?; \
	$(call testlog,its command,cluster-command,test/cluster/cmd/cluster,40m) && exit $$status

.PHONY: seconds
seconds: ## Write the times of tests and packages in the last make test and make e2e to test/seconds.txt.
	@scripts/seconds

package: ## Test the Debian package on a Debian that boots, from the installation to the purge (root); and hold the RPM package against it.
	@rm -rf bin/packages
	$(MAKE) --no-print-directory deb rpm DIST=bin/packages
	PACKAGES=$(CURDIR)/bin/packages $(GO) -C test/tools/nfpm test -count 1 .
	$(package-test)

define package-test
@$(gobuild) -title "the tests of the package" -test -flags "-race -tags=e2e" -o bin/package.test ./test/package
@$(call testlog,package,package,test/package,25m)
endef

# Each part goes on when an earlier one has failed. ONLY='machine matrix' runs some.
PARTS = check test e2e cluster package chaos machine arm64 upstream matrix scale
.PHONY: everything everything-parts
everything: ## All of it, in a useful order, going on after a failure. ONLY='machine matrix' some parts.
	@scripts/stages run $(MAKE) --no-print-directory everything-parts
everything-parts:
	@failed=; for part in $(or $(ONLY),$(PARTS)); do \
	scripts/stages stage "make $$part" $(MAKE) --no-print-directory $$part || failed="$$failed $$part"; done; \
	[ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

chaos: ## Random faults (root): N=20 sequences, SEED=17 one again, KUBELET=1 against the kubelet's device manager, ATTACKER=1 with a hostile plugin pod, tenant and local user, CLAIMS=1 through DRA alone and without a policy, KUBERNETES=1.36 on that release.
	@$(gobuild) -title chaos -o bin/chaos ./test/chaos
	$(if $(KUBERNETES),TESTCLUSTER_KUBERNETES=$(KUBERNETES)) bin/chaos -n $(or $(N),$(if $(SEED),1,20)) $(if $(SEED),-seed $(SEED)) $(if $(KUBELET),-kubelet) $(if $(ATTACKER),-attacker) $(if $(CLAIMS),-claims)

upstream: ## Run Kubernetes' own node suite with the kubelet and with devmgrd (root): SIDE=devmgrd one side, FOCUS=... some specs.
	@$(gobuild) -title "the suite's test" -test -flags "-race -tags=e2e" -o bin/upstream.test ./test/upstream
	@$(call testlog,upstream,upstream,test/upstream,150m) -test.run '^TestUpstream$$' $(if $(SIDE),-side '$(SIDE)') $(if $(FOCUS),-focus '$(FOCUS)')

demo: ## The main job, as a story in two acts (root): on containerd alone, then on Kubernetes. ACT=1 the first; KEEP=1 leaves it running.
	@$(gobuild) -title "the demo" -o bin/demo ./test/demo
	@bin/demo $(if $(ACT),--act=$(ACT)) $(if $(KEEP),--keep)

page: ## Test the status page in Chromium, which root gets as a Debian package. UPDATE=1 writes docs/images again.
	@$(gobuild) -title "the page's tests" -C test/browser -test -flags -race -o ../../bin/page.test .
	@$(call testlog,page,page,test/browser,40m) $(if $(UPDATE),-update)

machine: ## Run the package on a node that boots, with systemd and cgroup v2 (root): reboots, 20 power cuts (CUTS=3 SEED=7), a full disk; SELINUX=1 with SELinux.
	@$(gobuild) -title "the tests of the machine" -test -flags "-race -tags=e2e" -o bin/boot.test ./test/boot
	@$(call testlog,machine,boot,test/boot,120m) $(if $(CUTS),-cuts $(CUTS)) $(if $(SEED),-seed $(SEED)) $(if $(SELINUX),-selinux)

matrix: ## Play the tests that matter on each release of containerd and Kubernetes (root), and write test/matrix/results.yaml. CELLS='containerd 2.1' some of them.
	$(GO) run ./test/matrix/cmd/matrix $(if $(CELLS),-cells '$(CELLS)')

# Packages whose tests start no programs: QEMU would have to emulate these too, which takes binfmt_misc of the whole machine.
ARM64 = ./api/... ./client/... ./config/... $(addprefix ./internal/,admin allocator/... cli/internal/preflight device history loops \
	kube nodestatus nri pods registry/pluginrules socket/shareddir statuspage store visible)
arm64: ## Run the unit tests that start no programs as arm64 binaries, which QEMU emulates.
	@command -v qemu-aarch64-static >/dev/null || { echo "installing qemu-user-static"; apt-get update -qq && apt-get install -qqy qemu-user-static; }
	GOARCH=arm64 CGO_ENABLED=0 $(GO) test -timeout 30m -exec qemu-aarch64-static $(ARM64)

scale: ## Measure what devmgrd costs the API server of 2000 nodes (root), and write docs/scale.md. NODES=100 for a look.
	@$(gobuild) -title "the measurement" -o bin/scale ./test/scale
	bin/scale -nodes $(or $(NODES),2000) $(if $(NODES),,-o docs/scale.md)

bench: ## Print the figures that the design is measured by (root, for the start of pods on a cluster).
	$(GO) test -run '^$$' -bench . -benchmem ./internal/... ./test/bench/...
	$(GO) test -tags e2e -timeout 60m -run '^$$' -bench '^BenchmarkStart$$' -benchtime 30x ./test/bench/published
	$(GO) -C test/bench/kubelet test -run '^$$' -bench . -benchtime 3s . # it builds half a kubelet first: some minutes, once

.PHONY: performance
performance: ## Compare devmgrd with the kubelet's device manager (root), and write docs/performance.md and its plots.
	{ $(GO) -C test/bench/kubelet test -timeout 60m -run '^$$' -bench '^BenchmarkAllocate$$' -benchtime 200x . && $(NUMA) && \
	$(GO) test -tags e2e -timeout 60m -run '^$$' -bench '^BenchmarkHealth$$' -benchtime 1x ./test/bench/published; } | $(GO) run ./test/bench/report

NUMA = $(GO) -C test/bench/kubelet test -timeout 60m -run '^$$' -bench '^BenchmarkNUMA$$' -benchtime 1x .

.PHONY: performance-numa
performance-numa: ## Count the pods whose CPUs are near their devices (docs/numa.md), and write that part of docs/performance.md; two minutes.
	$(NUMA) | $(GO) run ./test/bench/report

FUZZTIME ?= 30s
fuzz: ## Fuzz what reads other people's bytes, FUZZTIME each.
	GO=$(GO) scripts/fuzz $(FUZZTIME)

# The binary itself writes its completions. One for another machine cannot run here.
HERE   = $(if $(filter $(shell $(GO) env GOARCH),$(shell $(GO) env GOHOSTARCH)),$(abspath $(BIN)),GOARCH= $(GO) run -ldflags "$(LDFLAGS)" ./cmd/devmgrd)
SHARE  = $(DESTDIR)/usr/share
SHIPPED = containerd/devmgrd.toml crio/devmgrd.conf systemd/host-plugin.conf systemd/other-users.conf apparmor/devmgrd selinux/devmgrd.te \
	selinux/devmgrd.fc selinux/devmgrd.if $(patsubst packaging/%,%,$(wildcard \
	packaging/kubernetes/*.yaml packaging/prometheus/alerts.yaml packaging/grafana/*.json))

install: build ## Install the binary, the systemd units and what ships with them below DESTDIR.
	install -D -m 0755 $(BIN) $(DESTDIR)/usr/bin/devmgrd
	install -D -m 0644 packaging/systemd/devmgrd.service $(DESTDIR)/usr/lib/systemd/system/devmgrd.service
	install -D -m 0644 packaging/systemd/devmgrd.socket $(DESTDIR)/usr/lib/systemd/system/devmgrd.socket
	install -D -m 0644 packaging/systemd/devmgrd-openers.service $(DESTDIR)/usr/lib/systemd/system/devmgrd-openers.service
	install -D -m 0644 packaging/systemd/devmgrd-openers.socket $(DESTDIR)/usr/lib/systemd/system/devmgrd-openers.socket
	@set -e; for file in $(SHIPPED); do install -D -m 0644 packaging/$$file $(SHARE)/devmgrd/$$file; done
	@set -e; pages=$$(mktemp -d); trap 'rm -rf "$$pages"' EXIT; \
	SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) GOARCH= $(GO) -C packaging/man run -ldflags "$(LDFLAGS)" . $$pages; gzip -9n $$pages/*; \
	for page in $$pages/*; do section=$${page%.gz}; install -D -m 0644 -t $(SHARE)/man/man$${section##*.} $$page; done; \
	for shell in bash zsh fish; do $(HERE) completion $$shell > $$pages/$$shell; done; \
	install -D -m 0644 $$pages/bash $(SHARE)/bash-completion/completions/devmgrd; \
	install -D -m 0644 $$pages/zsh $(SHARE)/zsh/site-functions/_devmgrd; \
	install -D -m 0644 $$pages/fish $(SHARE)/fish/vendor_completions.d/devmgrd.fish
	[ -e $(DESTDIR)/etc/devmgrd/config.yaml ] || install -D -m 0644 config/devmgrd.yaml $(DESTDIR)/etc/devmgrd/config.yaml

# Packages. A tag v1.2.3 is version 1.2.3, and v1.3.0-rc1 is 1.3.0~rc1, which sorts before 1.3.0. What comes after a tag is
# 1.2.3+git5.abc1234, which sorts after it. The same source gives the same bytes: their time is the commit's.
DIST ?= dist
STAGE = $(DIST)/stage
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || date +%s)
PACKAGE_VERSION   ?= $(shell echo '$(VERSION)' | sed -E -e 's/^v//' -e 's/-([0-9]+)-g([0-9a-f]+)/+git\1.\2/' -e 's/-dirty$$/+dirty/' \
	-e 's/-/~/g' -e '/^[0-9]+\.[0-9]/!s/^/0.1.0~git$(shell date -u -d @$(SOURCE_DATE_EPOCH) +%Y%m%d)./')

deb: stage ## Make a Debian package, dist/devmgrd_VERSION_ARCH.deb; VERSION=v1.2.3 for another than git's.
	$(call package,deb)

rpm: stage ## Make an RPM package, dist/devmgrd-VERSION-1.ARCH.rpm.
	$(call package,rpm)

# The name of the image, with a tag; and the architectures in it.
IMAGE      ?= ghcr.io/devmgrd/devmgrd:$(subst +,-,$(VERSION))
IMAGE_ARCH ?= amd64 arm64

image: ## Make the container image, dist/devmgrd.image.tar: an OCI archive; IMAGE=NAME:TAG IMAGE_ARCH=amd64. It needs no daemon.
	@set -e; for arch in $(IMAGE_ARCH); do \
	GOARCH=$$arch $(MAKE) --no-print-directory build BIN=$(DIST)/image/$$arch LDFLAGS='-s -w $(LDFLAGS)'; done
	GOARCH= SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) $(GO) -C packaging/image run . -name $(IMAGE) -o $(abspath $(DIST))/devmgrd.image.tar \
	$(foreach arch,$(IMAGE_ARCH),$(arch)=$(abspath $(DIST))/image/$(arch))

.PHONY: release
release: ## Make packages, binaries, images, checksums and notes of the tag TAG=v1.2.3 in dist/release, and test them (root); publishes nothing.
	scripts/release $(TAG)
	$(MAKE) --no-print-directory test-release

# The chart on each Kubernetes, the RPM package next to the Debian one, and make package with what was released as its first version.
.PHONY: test-release
test-release: export RELEASE = $(CURDIR)/dist/release
test-release: ## Test what make release has made in dist/release (root).
	CHART=$$(echo $(RELEASE)/devmgrd-*.tgz) $(GO) -C packaging/helm test -count 1 .
	PACKAGES=$(RELEASE) $(GO) -C test/tools/nfpm test -count 1 .
	$(package-test)

.PHONY: hooks
hooks: ## Have Git check each commit's message.
	ln -sf ../../scripts/commit-msg "$$(git rev-parse --git-path hooks)/commit-msg"

.PHONY: package-version
package-version:
	@echo '$(PACKAGE_VERSION)'

define package
	SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) STAGE=$(STAGE) PACKAGE_VERSION=$(PACKAGE_VERSION) ARCH=$(shell $(GO) env GOARCH) \
	bin/nfpm package --config packaging/nfpm.yaml --packager $(1) --target $(DIST)/
endef

.PHONY: stage
stage:
	GOARCH= $(GO) -C test/tools/nfpm build -o ../../../bin/nfpm github.com/goreleaser/nfpm/v2/cmd/nfpm
	GO=$(GO) VERSION='$(VERSION)' PACKAGE_VERSION='$(PACKAGE_VERSION)' SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) scripts/package-root $(DIST)

clean: ## Remove what was built here. The tools' cache is elsewhere and stays.
	rm -rf bin dist
