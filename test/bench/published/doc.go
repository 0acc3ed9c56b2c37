// Package published measures how long it takes until the Node shows that the health of a device has changed, with the kubelet's
// device manager and with devmgrd, at the same moments on the same node of a test cluster.
//
//	go test -tags e2e -run '^$' -bench . -benchtime 1x ./test/bench/published      as root
package published
