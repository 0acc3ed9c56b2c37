package dra

import (
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Class returns the DeviceClass of a resource as YAML, with which pods can request the resource as before.
func Class(r device.ResourceName) ([]byte, error) {
	name := string(r)
	selector := fmt.Sprintf("device.driver == %q && device.attributes[%q].resource == %q", Driver, Driver, value(name))
	text, err := yaml.Marshal(resourceapi.DeviceClass{
		TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "DeviceClass"},
		ObjectMeta: metav1.ObjectMeta{Name: className(r)},
		Spec: resourceapi.DeviceClassSpec{
			ExtendedResourceName: &name,
			Selectors:            []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: selector}}},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("writing the DeviceClass of %s: %w", r, err)
	}
	return []byte("# Devices of " + name + ", for pods that request it and for ResourceClaims.\n" + strings.Replace(string(text), "  creationTimestamp: null\n", "", 1)), nil
}

// className returns the name of the DeviceClass of a resource: the resource with a hyphen for its slash, where that is a name.
func className(r device.ResourceName) string {
	name := strings.Replace(string(r), "/", "-", 1)
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return derived(name, string(r), validation.DNS1123SubdomainMaxLength, true)
	}
	return name
}
