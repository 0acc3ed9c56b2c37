// Package published measures on a test cluster how long it takes until the API server or a container shows what devmgrd has done.
//
//	BenchmarkHealth   until the Node shows that the health of a device has changed, with the kubelet's device manager and with devmgrd, at
//	                  the same moments
//	BenchmarkStart    until a pod's container runs: with a device that the Node counts, with one of a claim, and without a device
//
//	go test -tags e2e -run '^$' -bench Start -benchtime 30x ./test/bench/published      as root
package published
