// Package bench measures what the design is measured by: the figures that need several rooms at once. Nothing here can
// fail for being slow; `make bench` prints the figures, and ratios to a floor that is measured in the same run.
//
//	BenchmarkBoundToReady   from "a pod is bound" to "its devices may be injected", at several sizes of node
//	BenchmarkResidentMemory the whole daemon, with 1 000 devices and 110 pods
//	BenchmarkClaimsMemory   the heap of 2 048 devices in ResourceSlices, next to that of the same devices as a number of the Node
//
// The folder kubelet compares PodResources with the kubelet's own server. It is a module of its own.
package bench
