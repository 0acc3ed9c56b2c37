// Package kubernetes holds the manifests that devmgrd comes with, so that tests and tools have the files that are shipped.
// There is no code in it.
package kubernetes

import _ "embed" // for what follows

// FailClosed is fail-closed.yaml: an admission policy and its binding.
//
//go:embed fail-closed.yaml
var FailClosed string

// PodSize is pod-size.yaml: an admission policy and its binding.
//
//go:embed pod-size.yaml
var PodSize string

// RBAC is rbac.yaml: a service account, what it may do, and the binding of the two.
//
//go:embed rbac.yaml
var RBAC string

// RBACEviction is rbac-eviction.yaml: the right to evict pods, which only some settings and commands need.
//
//go:embed rbac-eviction.yaml
var RBACEviction string

// RBACDRA is rbac-dra.yaml: the rights for dra.resources, an admission policy, and its binding.
//
//go:embed rbac-dra.yaml
var RBACDRA string

// DaemonSet is daemonset.yaml.
//
//go:embed daemonset.yaml
var DaemonSet string

// DaemonSetDRA is daemonset-dra.yaml: a patch of the DaemonSet for dra.resources.
//
//go:embed daemonset-dra.yaml
var DaemonSetDRA string
