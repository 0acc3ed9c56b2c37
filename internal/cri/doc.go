// Package cri reads the setup of the container runtime and the kubelet, for devmgrd check. It changes nothing, and the running
// daemon does not need it.
//
//	runtime.go      the runtime's name, version and settings, through the CRI
//	containerd.go   containerd's configuration files
//	kubelet.go      the kubelet's configuration file
package cri
