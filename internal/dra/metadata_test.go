package dra

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	"k8s.io/dynamic-resource-allocation/devicemetadata"

	"github.com/devmgrd/devmgrd/internal/cdi"
	"github.com/devmgrd/devmgrd/internal/device"
)

// Workloads read their devices' metadata with the library of the Kubernetes project: what the ResourceSlices say of them.
func TestServer_Metadata_AreWhatTheLibraryReads(t *testing.T) {
	t.Parallel()
	k := newKubelet(t, time.Minute)
	k.server.Sysfs = t.TempDir()
	root := filepath.Join(k.server.Sysfs, "devices", "pci0000:3a", "0000:3b:00.0")
	for _, err := range []error{os.MkdirAll(root, 0o755), os.MkdirAll(filepath.Join(k.server.Sysfs, "bus", "pci", "devices"), 0o755),
		os.Symlink(root, filepath.Join(k.server.Sysfs, "bus", "pci", "devices", "0000:3b:00.0"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	k.world.list(gpu, "0000:3b:00.0", "2")
	k.world.allocate("direct", "a=a.example/gpu:0000:3b:00.0", "other:b=a.example/gpu:1")
	k.world.allocate("made-x7", "a/big=a.example/gpu:2")
	k.world.mu.Lock()
	k.world.claims["default/made-x7"].Annotations = map[string]string{resourceapi.PodResourceClaimAnnotation: "made"}
	k.world.mu.Unlock()
	for _, name := range []string{"direct", "made-x7"} {
		k.world.reserve(name, "p")
	}
	k.claims.Bind(demand("p", "side", "main direct made-x7"))
	k.devices.serve(device.Container{Pod: "p", Name: "main"})

	read := func(claim string) (cdi.Metadata, metadata.DeviceMetadata) {
		if got := k.prepare(claim); got == "" {
			t.Error(got)
		}
		of := k.files.last(device.ClaimUID("uid-" + claim))
		if len(of.Metadata) != 1 {
			t.Fatalf("%s has metadata of %d requests", claim, len(of.Metadata))
		}
		var got metadata.DeviceMetadata
		if err := devicemetadata.DecodeMetadataFromStream(json.NewDecoder(bytes.NewReader(of.Metadata["a"].Text)), &got); err != nil {
			t.Fatal(err)
		}
		return of.Metadata["a"], got
	}
	const dir = "/var/run/kubernetes.io/dra-device-attributes/"
	one, got := read("direct")
	if one.Path != dir+"resourceclaims/direct/a/devmgrd.io-metadata.json" || got.Namespace != "default" || got.Name != "direct" || got.UID != "uid-direct" || got.PodClaimName != nil {
		t.Errorf("%s has %+v", one.Path, got)
	}
	if len(got.Requests) != 1 || got.Requests[0].Name != "a" || len(got.Requests[0].Devices) != 1 {
		t.Fatalf("requests %+v", got.Requests)
	}
	d := got.Requests[0].Devices[0]
	if d.Driver != "devmgrd.io" || d.Pool != "n1/a.example/gpu/0" || d.Name != Name("0000:3b:00.0") {
		t.Errorf("device %+v", d)
	}
	for name, want := range map[resourceapi.QualifiedName]string{"id": "0000:3b:00.0", "resource": string(gpu), attributePCIBusID: "0000:3b:00.0"} {
		if is := d.Attributes[name].StringValue; is == nil || *is != want {
			t.Errorf("attribute %s is %v, want %s", name, d.Attributes[name], want)
		}
	}
	if !bytes.Contains(one.Text, []byte("v1alpha1")) {
		t.Error("readers of Kubernetes 1.36 do not find their version")
	}
	k.world.allocate("by-scheduler", "a=a.example/gpu:2")
	k.world.mu.Lock()
	k.world.claims["default/by-scheduler"].Annotations = map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"}
	k.world.mu.Unlock()
	k.claims.Bind(demand("p", "side", "main direct made-x7 by-scheduler"))
	if got := k.prepare("by-scheduler"); got != "a=n1/a.example/gpu/0:2" {
		t.Error(got)
	}
	if of := k.files.last("uid-by-scheduler"); len(of.Devices) != 1 || of.Metadata != nil {
		t.Errorf("the scheduler's claim has %d devices, and metadata of %d requests", len(of.Devices), len(of.Metadata))
	}
	one, got = read("made-x7")
	if one.Path != dir+"resourceclaimtemplates/made/a/devmgrd.io-metadata.json" || got.PodClaimName == nil || *got.PodClaimName != "made" || got.Requests[0].Name != "a/big" {
		t.Errorf("%s has %+v", one.Path, got)
	}
}

// The author of a claim may write any text into the annotation that names a template's claim. The path of the metadata and their size do not follow it.
func TestMetadata_AnnotationIsNoName_PathAndSizeAreTheClaims(t *testing.T) {
	t.Parallel()
	w, c := newWorld(t)
	var results []string
	for i := range resourceapi.AllocationResultsMaxSize {
		results = append(results, fmt.Sprintf("%s%02d/%s=%s/gpu:%s%02d", strings.Repeat("r", 61), i, strings.Repeat("s", 63), strings.Repeat("d", 200), strings.Repeat("x", 60), i))
	}
	w.allocate("c", results...)
	for _, text := range []string{"../../../../../../etc/ssl", "..", "a/b", "A", strings.Repeat("\x01", 255<<10), strings.Repeat("x", 64)} {
		w.claims["default/c"].Annotations = map[string]string{resourceapi.PodResourceClaimAnnotation: text}
		of, err := c.read(t.Context(), "default", "c")
		if err != nil {
			t.Fatal(err)
		}
		var devices []metadataDevice
		for _, one := range of.results {
			devices = append(devices, metadataDevice{one, newDescriber(t.TempDir(), t.TempDir()).once(device.DeviceStatus{Resource: gpu, Device: device.Device{ID: device.ID(one.device), NUMA: []int{1}}})})
		}
		files, err := newMetadataWriter().files("default", "c", of, devices)
		if err != nil {
			t.Fatal(err)
		}
		size := 0
		for request, one := range files {
			size += len(one.Path) + len(one.Text)
			if want := metadata.ResourceClaimFilePath(Driver, "c", request); one.Path != want {
				t.Fatalf("%.80q leads to %.200s", text, one.Path)
			}
		}
		if len(files) != resourceapi.AllocationResultsMaxSize || size > 128<<10 {
			t.Errorf("%.80q: %d requests have metadata of %d bytes", text, len(files), size)
		}
		t.Logf("%d bytes", size)
	}
}
