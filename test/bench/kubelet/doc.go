// Package kubelet compares PodResources as devmgrd serves it with the kubelet's own server: real code on both sides, real
// sockets, the same content, in one run. It is a module of its own so that the kubelet never reaches the product's go.mod.
//
//	BenchmarkList   one List, at two sizes of node: how long it takes, and what the server allocates for it; and of clients
//	                that ask at one moment, how long each waits, and how many are refused
//	BenchmarkWatch  a thousand changes, from the moment of each to its receipt; it fails if one is lost or out of order
//
// The floor is a gRPC server that has the bytes of its answer ready: what it takes is gRPC's own.
package kubelet
