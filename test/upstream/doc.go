// Package upstream runs Kubernetes' own node end-to-end suite, k8s.io/kubernetes/test/e2e_node, against the plain kubelet and
// against devmgrd, and compares each spec's outcome with the expected one.
//
// The suite is unmodified. test/tools/e2e_node says which version is compiled; the specs are those of the files that
// expected.yaml lists: device plugins, the device manager, the PodResources API and the topology manager. expected.yaml has the
// outcome of each spec on each side, and the reason where an outcome is not "pass". The test fails on each change: a listed
// spec has another outcome, fails with another message, does not exist or is skipped, or a spec that is not listed runs. The tables of docs/conformance.md
// are made of the same file, and test/rules compares them.
//
// Each side has a machine of its own (test/nspawn), and both run at the same time:
//
//  1. A one-node Kubernetes starts. On devmgrd's side its Debian package is installed and podResources.takeover is set, since
//     the suite reads the PodResources API at the kubelet's path.
//  2. The kubelet starts again as kubelet-e2e.service, with its configuration in the suite's working directory: there upstream's
//     code looks for both when it restarts the kubelet.
//  3. The suite runs as e2e-node.service. On devmgrd's side it has the drop-in host-plugin.conf, which devmgrd ships for device
//     plugins on the host: some specs are such plugins.
//
// A spec has up to three attempts on the kubelet's side, where specs race with the kubelet's restart, and one on devmgrd's.
//
// The suite's images are the project's own sample device plugin, and Debian's busybox under the name of upstream's image.
//
//	make upstream                           # both sides
//	make upstream SIDE=devmgrd FOCUS='Device Plugin Failures'
//
// Reports and logs of the last run stay in ~/.cache/devmgrd/upstream/SIDE: report.json, suite.log, logs. The flag -last compares
// those reports with expected.yaml again and runs nothing. Without the tag e2e only the tests of the comparison itself run.
package upstream
