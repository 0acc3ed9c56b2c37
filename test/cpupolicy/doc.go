// Package cpupolicy pins containers to whole CPUs near their devices, as CPU policies on NRI do that follow PodResources: the topology-aware
// policy of containers/nri-plugins, for instance. Devices come first, and CPUs follow.
//
//	policy.go   which CPUs: the machine may be a made-up one
//	plugin.go   the policy as an NRI plugin
//
// End-to-end tests run it next to devmgrd, and test/bench/kubelet counts how many containers it can serve.
package cpupolicy
