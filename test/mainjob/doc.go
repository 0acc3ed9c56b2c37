// Package mainjob tests devmgrd's main job on a real containerd and runc, without Kubernetes (kubernetes.mode: none): device plugins
// register, containers get their devices, or are refused and start later, and nothing is lost when a component is killed. Pods are made
// by CRI, the runtime's own API, and request devices by an annotation. devmgrd is built with the race detector.
//
// make test runs these tests, and make matrix some of them on each release. What depends on Kubernetes is in test/e2e.
package mainjob
