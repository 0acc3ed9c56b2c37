package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/version"
	serverversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
)

// extended is the first release whose API server and scheduler make claims for pods that request extended resources, and keep the taints
// of devices, unless their gates are off. An API server does not show its gates.
var extended = version.MajorMinor(1, 36)

// A ClaimAccess is the result of trying what devmgrd needs to offer resources through claims.
type ClaimAccess struct {
	Served  bool   // the API server has resource.k8s.io/v1; without it the rights are not tried
	Release string // of the API server, such as v1.36.3
	Older   bool   // than the release in which pods need no feature gate to request extended resources as before
	Rights  []Right
	// Classes are the names of the DeviceClasses by the extended resource that they name; ClassesErr is why they are not known.
	Classes    map[string]string
	ClassesErr error
}

// ClaimRights makes all requests that devmgrd makes as a DRA driver on a node with these pods: reads as they are, and writes as dry runs.
// c is a client of resource.k8s.io/v1. It fails with the first error other than a refusal.
func ClaimRights(ctx context.Context, c Client, node, driver string, pods []corev1.Pod) (ClaimAccess, error) {
	var a ClaimAccess
	var release serverversion.Info
	if err := getJSON(ctx, c, "/version", &release); err != nil && !apierrors.IsForbidden(err) {
		return ClaimAccess{}, fmt.Errorf("asking for the release: %w", err)
	}
	a.Release = release.GitVersion
	if is, err := version.ParseGeneric(release.GitVersion); err == nil {
		a.Older = is.LessThan(extended)
	}
	var group metav1.APIResourceList
	err := getJSON(ctx, c, "/apis/"+resourceapi.SchemeGroupVersion.String(), &group)
	switch {
	case apierrors.IsNotFound(err):
		return a, nil
	case err != nil && !apierrors.IsForbidden(err):
		return ClaimAccess{}, fmt.Errorf("asking for %s: %w", resourceapi.SchemeGroupVersion, err)
	}
	a.Served = true
	a.Rights, err = claimRights(ctx, c, node, driver, pods)
	if err != nil {
		return ClaimAccess{}, err
	}
	a.Classes, a.ClassesErr = classes(ctx, c)
	return a, nil
}

func claimRights(ctx context.Context, c Client, node, driver string, pods []corev1.Pod) ([]Right, error) {
	dry := metav1.DryRunAll
	own := metav1.ListOptions{FieldSelector: fields.SelectorFromSet(fields.Set{
		resourceapi.ResourceSliceSelectorNodeName: node, resourceapi.ResourceSliceSelectorDriver: driver,
	}).String()}
	var slices resourceapi.ResourceSliceList
	return try([]step{
		{"list resourceslices", func() error { return params(c.Get().Resource("resourceslices"), own).Do(ctx).Into(&slices) }},
		{"watch resourceslices", func() error { return tryWatch(ctx, c, "resourceslices", own) }},
		{"create resourceslices", func() error { return TryResourceSlice(ctx, c, node, driver) }},
		{"update resourceslices", func() error {
			if len(slices.Items) == 0 {
				return nil // a node's credentials are valid for its own slices only, and it has none
			}
			one := &slices.Items[0]
			return ignoreChange(c.Put().Resource("resourceslices").Name(one.Name).Param("dryRun", dry).Body(one).Do(ctx).Error())
		}},
		{"delete resourceslices", func() error {
			if len(slices.Items) == 0 {
				return nil
			}
			return ignoreChange(c.Delete().Resource("resourceslices").Name(slices.Items[0].Name).Param("dryRun", dry).Do(ctx).Error())
		}},
		{"get resourceclaims", func() error {
			namespace, name := claimOf(pods)
			if name == "" {
				return nil // a node's credentials are valid for the claims of its own pods only, and they have none
			}
			return ignoreMissing(c.Get().Namespace(namespace).Resource("resourceclaims").Name(name).Do(ctx).Error())
		}},
	})
}

// TryResourceSlice creates a ResourceSlice of the node and the driver in a dry run. c is a client of resource.k8s.io/v1.
func TryResourceSlice(ctx context.Context, c rest.Interface, node, driver string) error {
	return c.Post().Resource("resourceslices").Param("dryRun", metav1.DryRunAll).Body(&resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{GenerateName: probeName + "-"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node + "/" + probeName, Generation: 1, ResourceSliceCount: 1},
		},
	}).Do(ctx).Error()
}

// claimOf returns the first claim of these pods, or nothing.
func claimOf(pods []corev1.Pod) (namespace, name string) {
	for _, p := range pods {
		if s := p.Status.ExtendedResourceClaimStatus; s != nil && s.ResourceClaimName != "" {
			return p.Namespace, s.ResourceClaimName
		}
		for _, s := range p.Status.ResourceClaimStatuses {
			if s.ResourceClaimName != nil {
				return p.Namespace, *s.ResourceClaimName
			}
		}
		for _, c := range p.Spec.ResourceClaims {
			if c.ResourceClaimName != nil {
				return p.Namespace, *c.ResourceClaimName
			}
		}
	}
	return "", ""
}

// classes returns the names of the DeviceClasses by the extended resource that they name.
func classes(ctx context.Context, c Client) (map[string]string, error) {
	var list resourceapi.DeviceClassList
	if err := c.Get().Resource("deviceclasses").Do(ctx).Into(&list); err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, class := range list.Items {
		if r := class.Spec.ExtendedResourceName; r != nil {
			all[*r] = class.Name
		}
	}
	return all, nil
}

// ignoreChange treats a change by another client in the meantime as a success: the API server checks rights first.
func ignoreChange(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return ignoreMissing(err)
}
