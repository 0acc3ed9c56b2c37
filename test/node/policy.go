package node

import (
	"context"
	"fmt"
	"strings"

	admission "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/devmgrd/devmgrd/packaging/kubernetes"
)

// RequiredPlugins begins the keys of the annotations in which pods name the NRI plugins that they cannot do without.
const RequiredPlugins = "required-plugins.noderesource.dev"

// FailClosed creates what packaging/kubernetes/fail-closed.yaml holds, and returns when the API server goes by it.
func (n *Node) FailClosed(ctx context.Context) error {
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	client := n.Client().AdmissionregistrationV1()
	for document := range strings.SplitSeq(kubernetes.FailClosed, "\n---\n") {
		object, _, err := decoder.Decode([]byte(document), nil, nil)
		if err != nil {
			return fmt.Errorf("reading fail-closed.yaml: %w", err)
		}
		switch o := object.(type) {
		case *admission.MutatingAdmissionPolicy:
			_, err = client.MutatingAdmissionPolicies().Create(ctx, o, metav1.CreateOptions{})
		case *admission.MutatingAdmissionPolicyBinding:
			_, err = client.MutatingAdmissionPolicyBindings().Create(ctx, o, metav1.CreateOptions{})
		default:
			err = fmt.Errorf("there is a %T in fail-closed.yaml", object)
		}
		if err != nil {
			return err
		}
	}
	err := poll(ctx, func() (bool, error) {
		p, err := n.Admitted(ctx, Pod("a", SampleResource, 1))
		return err == nil && p.Annotations[RequiredPlugins+"/pod"] != "", nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the policy to be in force: %w", err)
	}
	return nil
}

// Admitted gives what the API server would make of a pod.
func (n *Node) Admitted(ctx context.Context, p *corev1.Pod) (*corev1.Pod, error) {
	return n.Client().CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}
