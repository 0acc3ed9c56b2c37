// Package cri reads the setup of the container runtime and the kubelet, so that "devmgrd check" can judge whether devmgrd works with
// them. It changes nothing, and the running daemon does not need it.
//
//	runtime.go      the runtime's description of itself through the CRI
//	sizes.go        the sizes of its containers and sandboxes
//	containerd.go   containerd's configuration files
//	kubelet.go      the kubelet's configuration file
package cri
