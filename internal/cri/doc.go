// Package cri looks at the container runtime and the kubelet as they are set up, for those who want to know whether devmgrd can
// work with them. It changes nothing, and the running daemon does not need it.
//
//	runtime.go      what the runtime says of itself through the CRI
//	containerd.go   what stands in containerd's configuration files
//	kubelet.go      what stands in the kubelet's
package cri
