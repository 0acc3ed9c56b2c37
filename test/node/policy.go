package node

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/devmgrd/devmgrd/packaging/kubernetes"
	"github.com/devmgrd/devmgrd/test/cluster"
)

// RequiredPlugins begins the keys of the annotations in which pods name the NRI plugins that they cannot do without.
const RequiredPlugins = "required-plugins.noderesource.dev"

// FailClosed creates what packaging/kubernetes/fail-closed.yaml holds, and returns when the API server goes by it.
func (n *Node) FailClosed(ctx context.Context) error {
	return n.policy(ctx, "fail-closed.yaml", kubernetes.FailClosed, create, func() bool { return n.requires(ctx) })
}

// FailOpen deletes what FailClosed creates, and returns when the API server does not go by it any longer.
func (n *Node) FailOpen(ctx context.Context) error {
	remove := func(ctx context.Context, c dynamic.ResourceInterface, o *unstructured.Unstructured) error {
		return c.Delete(ctx, o.GetName(), metav1.DeleteOptions{})
	}
	return n.policy(ctx, "fail-closed.yaml", kubernetes.FailClosed, remove, func() bool { return !n.requires(ctx) })
}

// requires reports whether the API server has pods with devices require devmgrd.
func (n *Node) requires(ctx context.Context) bool {
	p, err := n.Admitted(ctx, Pod("a", SampleResource, 1))
	return err == nil && p.Annotations[RequiredPlugins+"/pod"] != ""
}

// create creates one object of a file.
func create(ctx context.Context, c dynamic.ResourceInterface, o *unstructured.Unstructured) error {
	_, err := c.Create(ctx, o, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	return err
}

// SetIgnored changes the list of resources that are not devmgrd's, a CEL expression in the policy of FailClosed.
func (n *Node) SetIgnored(ctx context.Context, expression string) error {
	policies, err := n.mutating("mutatingadmissionpolicies")
	if err != nil {
		return err
	}
	policy, err := policies.Get(ctx, "devmgrd-fail-closed", metav1.GetOptions{})
	if err != nil {
		return err
	}
	variables, _, err := unstructured.NestedSlice(policy.Object, "spec", "variables")
	if err != nil {
		return err
	}
	for _, v := range variables {
		if v := v.(map[string]any); v["name"] == "ignored" {
			v["expression"] = expression
		}
	}
	if err := unstructured.SetNestedSlice(policy.Object, variables, "spec", "variables"); err != nil {
		return err
	}
	_, err = policies.Update(ctx, policy, metav1.UpdateOptions{})
	return err
}

// mutating is a client for a resource of mutating admission, in the version that the cluster has.
func (n *Node) mutating(resource string) (dynamic.ResourceInterface, error) {
	client, err := dynamic.NewForConfig(n.RESTConfig())
	if err != nil {
		return nil, err
	}
	return client.Resource(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: cluster.PolicyVersion(), Resource: resource}), nil
}

// PodSize creates what packaging/kubernetes/pod-size.yaml holds, and returns when the API server goes by it.
func (n *Node) PodSize(ctx context.Context) error {
	return n.policy(ctx, "pod-size.yaml", kubernetes.PodSize, create, func() bool {
		_, err := n.Admitted(ctx, Pod("a", "", 0, strings.Repeat("x", 1_000_000)))
		return err != nil && strings.Contains(err.Error(), "devmgrd-pod-size")
	})
}

// policy does something with the admission policies of a file and their bindings, and returns when that is in force.
func (n *Node) policy(ctx context.Context, file, text string, do func(context.Context, dynamic.ResourceInterface, *unstructured.Unstructured) error, inForce func() bool) error {
	client, err := dynamic.NewForConfig(n.RESTConfig())
	if err != nil {
		return err
	}
	for document := range strings.SplitSeq(text, "\n---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
			return fmt.Errorf("reading %s: %w", file, err)
		}
		kind := object.GroupVersionKind()
		if strings.HasPrefix(kind.Kind, "MutatingAdmissionPolicy") {
			kind.Version = cluster.PolicyVersion()
			object.SetGroupVersionKind(kind)
		}
		resources, _ := meta.UnsafeGuessKindToResource(kind)
		if err := do(ctx, client.Resource(resources), object); err != nil {
			return fmt.Errorf("the %s of %s: %w", kind.Kind, file, err)
		}
	}
	if err := poll(ctx, func() (bool, error) { return inForce(), nil }); err != nil {
		return fmt.Errorf("waiting for %s to be in force: %w", file, err)
	}
	return nil
}

// policies returns the number of admission policies in the cluster.
func (n *Node) policies(ctx context.Context) (count int, err error) {
	validating, err := n.Client().AdmissionregistrationV1().ValidatingAdmissionPolicies().List(ctx, metav1.ListOptions{})
	if err != nil || !cluster.Has(cluster.Policies) {
		return len(validating.Items), err
	}
	client, err := n.mutating("mutatingadmissionpolicies")
	if err != nil {
		return 0, err
	}
	mutating, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	return len(validating.Items) + len(mutating.Items), nil
}

// removePolicies deletes all admission policies and their bindings.
func (n *Node) removePolicies(ctx context.Context) error {
	client, err := dynamic.NewForConfig(n.RESTConfig())
	if err != nil {
		return err
	}
	kinds := map[string]string{"validatingadmissionpolicybindings": "v1", "validatingadmissionpolicies": "v1"}
	if cluster.Has(cluster.Policies) {
		kinds["mutatingadmissionpolicybindings"], kinds["mutatingadmissionpolicies"] = cluster.PolicyVersion(), cluster.PolicyVersion()
	}
	for resource, version := range kinds {
		of := schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: version, Resource: resource}
		if err := client.Resource(of).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// Admitted returns what the API server would make of a pod.
func (n *Node) Admitted(ctx context.Context, p *corev1.Pod) (admitted *corev1.Pod, err error) {
	err = whileBusy(func(error) bool { return false }, func() error {
		admitted, err = n.Client().CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	})
	return admitted, err
}
