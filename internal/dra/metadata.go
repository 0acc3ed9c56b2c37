package dra

import (
	"bytes"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	"k8s.io/dynamic-resource-allocation/api/metadata/install"
	"k8s.io/dynamic-resource-allocation/api/metadata/v1alpha1"
	"k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"

	"github.com/devmgrd/devmgrd/internal/cdi"
)

// A metadataWriter writes what workloads read of their devices (KEP-5304): a file for each request of a claim, in each container that uses the request.
type metadataWriter struct {
	scheme *runtime.Scheme
	json   runtime.Serializer
}

func newMetadataWriter() metadataWriter {
	scheme := install.NewScheme()
	return metadataWriter{scheme, json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{})}
}

// A metadataDevice is a device in the order of its claim, and what the ResourceSlices say of it.
type metadataDevice struct {
	result
	attributes attributes
}

// files returns the metadata of a claim's requests by their names. A claim that kube-scheduler has made has none: its name is random, so that no container finds
// them, and a pod that names no claim is as it is without Dynamic Resource Allocation.
func (w metadataWriter) files(namespace, name string, of claim, devices []metadataDevice) (map[string]cdi.Metadata, error) {
	if of.implicit {
		return nil, nil
	}
	requests := map[string]*metadata.DeviceMetadataRequest{}
	for _, d := range devices {
		r := requests[d.base()]
		if r == nil {
			r = &metadata.DeviceMetadataRequest{Name: d.request}
			requests[d.base()] = r
		}
		r.Devices = append(r.Devices, metadata.Device{Driver: Driver, Pool: d.pool, Name: d.device, Attributes: d.attributes})
	}
	all := map[string]cdi.Metadata{}
	for request, r := range requests {
		one := metadata.DeviceMetadata{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(of.uid), Generation: 1},
			Requests:   []metadata.DeviceMetadataRequest{*r},
		}
		path := metadata.ResourceClaimFilePath(Driver, name, request)
		if of.podClaim != "" {
			one.PodClaimName = &of.podClaim
			path = metadata.ResourceClaimTemplateFilePath(Driver, of.podClaim, request)
		}
		text, err := w.encode(&one)
		if err != nil {
			return nil, fmt.Errorf("metadata of ResourceClaim %s/%s: %w", namespace, name, err)
		}
		all[request] = cdi.Metadata{Path: path, Text: text}
	}
	return all, nil
}

// encode returns the object in each version of the format, the newest first: readers take the first that they know.
func (w metadataWriter) encode(one *metadata.DeviceMetadata) ([]byte, error) {
	var text bytes.Buffer
	for _, version := range []runtime.GroupVersioner{v1beta1.SchemeGroupVersion, v1alpha1.SchemeGroupVersion} {
		as, err := w.scheme.ConvertToVersion(one, version)
		if err != nil {
			return nil, err
		}
		if err := w.json.Encode(as, &text); err != nil {
			return nil, err
		}
	}
	return text.Bytes(), nil
}
