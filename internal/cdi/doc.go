// Package cdi keeps the CDI specifications of claims: files with which the container runtime adds the devices of a
// ResourceClaim to a container, whether devmgrd is there or not.
//
//	names.go  the CDI devices of a request of a claim: pure
//	spec.go   the file of a request: what a container gets, or a guard: pure
//	files.go  which files there are: written before the kubelet is answered, removed when neither the kubelet nor a pod needs them
//	write.go  one file: a draft that the library reads, and its place
//	readable.go  whether the container runtime reads the files
//	keep.go   puts files back that others have removed or changed
//
// The kubelet asks a DRA driver to prepare a claim. The answer names a CDI device for each device of a request, and the kubelet has
// the runtime give these to each container that uses the request. So the kubelet's own mapping decides, as for every DRA driver.
//
// There is one file for each request. It has one of two contents:
//
//   - What the device plugin has granted: environment, mounts, device nodes. That is all that a container of the request needs, and it starts
//     also while devmgrd is away.
//   - A guard: a mount whose source does not exist, and a /dev/null that is there only while the hook sees containers. The runtime cannot
//     start a container with them. devmgrd's NRI hook removes the mount and injects what the container gets. A request has a guard where
//     a file cannot say what each of its containers gets:
//     package nri decides that (Grants).
//
// Next to it is a file with the metadata of the request's devices, which each of its containers reads (KEP-5304).
//
// A file becomes a guard once at most: where containers that use it later get something else, or a plugin has
// granted something else. So a container has either what the file says now, or a guard, or is refused by the hook.
//
// The files are in a directory that the runtime reads, on a file system in memory: they are gone after a reboot, and the kubelet has
// claims prepared again then. It does so after each restart of its own, too. Files of a former boot are removed.
package cdi
