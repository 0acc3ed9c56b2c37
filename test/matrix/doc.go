// Package matrix plays end-to-end tests, and those of the main job without Kubernetes, on one release after another of containerd and Kubernetes.
//
// The cells of the matrix are clusters: each release of containerd for which test/tools has a module with the newest Kubernetes, each
// release of Kubernetes with the newest containerd, and the oldest of both. With TESTCLUSTER_CRIO=DIR there is one more, with the CRI-O
// that a person has built in DIR.
//
// The tests are the rows of Tests: those whose outcome depends on the runtime, the kubelet or the API server. A test of a release that
// lacks a feature (see [cluster.Feature]) expects devmgrd's refusal instead, and says so in a line "LACKS ...", which becomes a note of
// the table. Everything else counts as a failure.
//
// The command cmd/matrix writes the outcomes to results.yaml. docs/compatibility.md and a sentence of README.md are made of that file,
// and test/rules compares them.
//
//	make matrix                                # all cells
//	make matrix CELLS='containerd 2.1'         # those whose names match it
package matrix
