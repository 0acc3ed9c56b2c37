// Package node is a node of the test cluster with devmgrd on it, for end-to-end tests and the demo: it builds devmgrd,
// runs it on its default paths next to a real kubelet and containerd, and knows Kubernetes' sample device plugin with its
// own manifest.
//
//	func main() { cluster.Main(run, cluster.Needs(cluster.Kubernetes), node.Build) }
//	...
//	n, err := node.Start(ctx, node.Options{Cluster: cluster.Options{Log: os.Stderr}})
//	defer n.Stop()
package node
