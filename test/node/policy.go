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
	return n.policy(ctx, "fail-closed.yaml", kubernetes.FailClosed, func() bool {
		p, err := n.Admitted(ctx, Pod("a", SampleResource, 1))
		return err == nil && p.Annotations[RequiredPlugins+"/pod"] != ""
	})
}

// PodSize creates what packaging/kubernetes/pod-size.yaml holds, and returns when the API server goes by it.
func (n *Node) PodSize(ctx context.Context) error {
	return n.policy(ctx, "pod-size.yaml", kubernetes.PodSize, func() bool {
		_, err := n.Admitted(ctx, Pod("a", "", 0, strings.Repeat("x", 1_000_000)))
		return err != nil && strings.Contains(err.Error(), "devmgrd-pod-size")
	})
}

// policy creates the admission policies of a file and their bindings, and returns when they are in force.
func (n *Node) policy(ctx context.Context, file, text string, inForce func() bool) error {
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	client := n.Client().AdmissionregistrationV1()
	for document := range strings.SplitSeq(text, "\n---\n") {
		object, _, err := decoder.Decode([]byte(document), nil, nil)
		if err != nil {
			return fmt.Errorf("reading %s: %w", file, err)
		}
		switch o := object.(type) {
		case *admission.MutatingAdmissionPolicy:
			_, err = client.MutatingAdmissionPolicies().Create(ctx, o, metav1.CreateOptions{})
		case *admission.MutatingAdmissionPolicyBinding:
			_, err = client.MutatingAdmissionPolicyBindings().Create(ctx, o, metav1.CreateOptions{})
		case *admission.ValidatingAdmissionPolicy:
			_, err = client.ValidatingAdmissionPolicies().Create(ctx, o, metav1.CreateOptions{})
		case *admission.ValidatingAdmissionPolicyBinding:
			_, err = client.ValidatingAdmissionPolicyBindings().Create(ctx, o, metav1.CreateOptions{})
		default:
			err = fmt.Errorf("there is a %T in %s", object, file)
		}
		if err != nil {
			return err
		}
	}
	if err := poll(ctx, func() (bool, error) { return inForce(), nil }); err != nil {
		return fmt.Errorf("waiting for %s to be in force: %w", file, err)
	}
	return nil
}

// Admitted returns what the API server would make of a pod.
func (n *Node) Admitted(ctx context.Context, p *corev1.Pod) (*corev1.Pod, error) {
	return n.Client().CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}
