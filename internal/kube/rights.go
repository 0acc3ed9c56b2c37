package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// A Right is a request that devmgrd makes of the API server. Err is nil if the API server allows it.
type Right struct {
	What string // such as "watch pods"
	Err  error
}

// An Access is the result of trying all rights.
type Access struct {
	Rights []Right
	Node   bool         // the Node exists
	Pods   []corev1.Pod // those bound to it
	Policy string       // version of the API of mutating admission policies, or NoPolicy; empty: not known
}

// NoPolicy is the Policy of an API server without mutating admission policies: before Kubernetes 1.34, or with the beta switched off.
const NoPolicy = "none"

// PatchPodStatus is the Right that only kubernetes.podConditions needs.
const PatchPodStatus = "patch pods/status"

// probeName is the name of objects that do not exist.
const probeName = "devmgrd-check"

// Rights makes the requests that devmgrd makes for a node, but for those of claims and slices (claims.go): reads as they are, and writes as dry runs, so that refusals of admission
// plugins show too. It fails with the first error other than a refusal.
func Rights(ctx context.Context, c Client, node string) (Access, error) {
	dry := metav1.DryRunAll
	own := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", node).String()}
	bound := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()}
	var nodes corev1.NodeList
	var pods corev1.PodList
	rights, err := try([]step{
		{"list nodes", func() error { return params(c.Get().Resource("nodes"), own).Do(ctx).Into(&nodes) }},
		{"watch nodes", func() error { return tryWatch(ctx, c, "nodes", own) }},
		{"list pods", func() error { return params(c.Get().Resource("pods"), bound).Do(ctx).Into(&pods) }},
		{"watch pods", func() error { return tryWatch(ctx, c, "pods", bound) }},
		{"get pods", func() error {
			if len(pods.Items) == 0 {
				return nil // a node's credentials are valid for its own pods only, and it has none
			}
			return ignoreMissing(c.Get().Namespace(pods.Items[0].Namespace).Resource("pods").Name(pods.Items[0].Name).Do(ctx).Error())
		}},
		{"patch nodes/status", func() error {
			if len(nodes.Items) == 0 {
				return nil
			}
			return c.Patch(types.MergePatchType).Resource("nodes").Name(node).SubResource("status").Param("dryRun", dry).Body([]byte("{}")).Do(ctx).Error()
		}},
		{PatchPodStatus, func() error {
			if len(pods.Items) == 0 {
				return nil // as above
			}
			return ignoreMissing(c.Patch(types.MergePatchType).Namespace(pods.Items[0].Namespace).Resource("pods").Name(pods.Items[0].Name).SubResource("status").
				Param("dryRun", dry).Body([]byte("{}")).Do(ctx).Error())
		}},
		{"create events", func() error {
			return c.Post().Namespace(metav1.NamespaceDefault).Resource("events").Param("dryRun", dry).Body(&corev1.Event{
				ObjectMeta:     metav1.ObjectMeta{Name: probeName, Namespace: metav1.NamespaceDefault},
				InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: node}, Source: corev1.EventSource{Component: "devmgrd", Host: node},
			}).Do(ctx).Error()
		}},
		{"patch events", func() error {
			return ignoreMissing(c.Patch(types.StrategicMergePatchType).Namespace(metav1.NamespaceDefault).Resource("events").Name(probeName).
				Param("dryRun", dry).Body([]byte("{}")).Do(ctx).Error())
		}},
		{"create pods/eviction", func() error {
			return ignoreMissing(c.Post().Namespace(metav1.NamespaceDefault).Resource("pods").Name(probeName).SubResource("eviction").
				Param("dryRun", dry).SetHeader("Content-Type", "application/json").
				Body([]byte(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"` + probeName + `","namespace":"default"}}`)).Do(ctx).Error())
		}},
	})
	if err != nil {
		return Access{}, err
	}
	a := Access{Rights: rights, Node: len(nodes.Items) > 0, Pods: pods.Items}
	a.Policy, _ = policy(ctx, c)
	return a, nil
}

// A step makes one request for which devmgrd needs a right.
type step struct {
	what string
	do   func() error
}

// try makes all requests. It fails with the first error other than a refusal.
func try(steps []step) (all []Right, err error) {
	for _, s := range steps {
		err := s.do()
		if err != nil && !apierrors.IsForbidden(err) {
			return nil, fmt.Errorf("%s: %w", s.what, err)
		}
		all = append(all, Right{s.what, err})
	}
	return all, nil
}

// tryWatch watches for a moment.
func tryWatch(ctx context.Context, c Client, resource string, o metav1.ListOptions) error {
	second := int64(1)
	o.Watch, o.TimeoutSeconds = true, &second
	body, err := params(c.Get().Resource(resource), o).Stream(ctx) // returns when the server has agreed
	if err == nil {
		err = body.Close()
	}
	return err
}

// policy returns the newest version of the API of mutating admission policies, or NoPolicy.
func policy(ctx context.Context, c Client) (string, error) {
	for _, version := range []string{"v1", "v1beta1"} {
		var served metav1.APIResourceList
		err := getJSON(ctx, c, "/apis/admissionregistration.k8s.io/"+version, &served)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return "", err
		case slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == "mutatingadmissionpolicies" }):
			return version, nil
		}
	}
	return NoPolicy, nil
}

// getJSON asks for what is no object of Kubernetes' API. The client prefers Protobuf, which only objects can be decoded from.
func getJSON(ctx context.Context, c Client, path string, into any) error {
	text, err := c.Get().AbsPath(path).SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx).Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// ignoreMissing treats a missing object as a success: the API server checks rights first.
func ignoreMissing(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
