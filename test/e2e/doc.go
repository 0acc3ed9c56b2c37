// Package e2e tests devmgrd as its users meet it: the built binary on a real one-node Kubernetes, with a real kubelet,
// containerd and plugins, and a kill -9 in between. It needs root and the build tag e2e:
//
//	make e2e TESTS='TestRestart'
//	go test -tags e2e -race -timeout 0 -run TestRestart ./test/e2e
//
// The test program runs in namespaces of its own, with one cluster at a time. Each test has devmgrd without state, and a cluster
// without pods and devices: that of the test before if that has left it as good as new, which is checked; else a new node on the same
// control plane; else a new cluster. After each test the promises are checked on what really runs: no device in two hands, no pod failed
// for want of a device.
package e2e
