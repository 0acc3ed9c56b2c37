package node

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DescribePods returns all pods with their events, and the logs of those in kube-system, for a test that has failed.
func (n *Node) DescribePods(ctx context.Context) string {
	pods, err := n.Client().CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, p := range pods.Items {
		fmt.Fprintf(&b, "pod %s/%s: %s, to be deleted at %v, containers %+v\n", p.Namespace, p.Name, p.Status.Phase, p.DeletionTimestamp, p.Status.ContainerStatuses)
		if events, err := n.Client().CoreV1().Events(p.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + p.Name}); err == nil {
			for _, e := range events.Items {
				fmt.Fprintf(&b, "%s %s: %s\n", e.Type, e.Reason, e.Message)
			}
		}
		if p.Namespace == metav1.NamespaceSystem {
			log, err := n.PodLogs(ctx, p.Namespace, p.Name, p.Spec.Containers[0].Name)
			fmt.Fprintf(&b, "its log: %v\n%s\n", err, log)
		}
	}
	return b.String()
}
