// Package e2enode requires the version of Kubernetes' node end-to-end suite that test/upstream runs.
package e2enode

import _ "k8s.io/kubernetes/test/e2e_node"
