package checkpoint_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/device"
)

// real is a file that the kubelet of Kubernetes 1.36.3 has written: two plugins, a pod whose init container has handed its
// device on, a device that is near two NUMA nodes.
func real(t testing.TB) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/kubelet-1.36.3")
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func decode(t testing.TB, data []byte) checkpoint.File {
	t.Helper()
	f, err := checkpoint.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func encode(t testing.TB, f checkpoint.File) []byte {
	t.Helper()
	data, err := f.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestARealFile(t *testing.T) {
	t.Parallel()
	f := decode(t, real(t))
	if want := map[device.ResourceName][]device.ID{
		"example.com/resource": {"Dev-1", "Dev-2"}, "vendor.example/gpu": {"gpu-0", "gpu-1", "gpu-2", "gpu-3"},
	}; !reflect.DeepEqual(f.Healthy, want) {
		t.Errorf("healthy: %v, want %v", f.Healthy, want)
	}
	if len(f.Entries) != 5 {
		t.Fatalf("%d entries, want 5", len(f.Entries))
	}
	for i, want := range []struct {
		uid, name, resource string
		device              device.Device
		grant               device.Grant
	}{
		{
			"2ad45e34-4a14-4d9c-a842-5d3b644a5bc0", "main", "vendor.example/gpu",
			device.Device{ID: "gpu-2"}, device.Grant{Env: map[string]string{"DEVICES": "gpu-2"}},
		},
		{
			"31d7475d-832e-4e7c-97ad-73b0c2fca48a", "first", "vendor.example/gpu",
			device.Device{ID: "gpu-1", NUMA: []int{0, 1}}, device.Grant{Env: map[string]string{"DEVICES": "gpu-1"}},
		},
		{
			"31d7475d-832e-4e7c-97ad-73b0c2fca48a", "main", "vendor.example/gpu",
			device.Device{ID: "gpu-1", NUMA: []int{0, 1}}, device.Grant{Env: map[string]string{"DEVICES": "gpu-1"}},
		},
		{
			"981d52da-7c18-4bf3-893e-2726c86dd5f8", "main", "vendor.example/gpu",
			device.Device{ID: "gpu-3"}, device.Grant{Env: map[string]string{"DEVICES": "gpu-3"}},
		},
		{
			"f9331878-464e-44f0-8a43-fbfcd81c7d18", "main", "example.com/resource",
			device.Device{ID: "Dev-2"}, device.Grant{Mounts: []device.Mount{{ContainerPath: "/tmp/Dev-2", HostPath: "/tmp/Dev-2"}}},
		},
	} {
		e := f.Entries[i]
		if string(e.Container.Pod) != want.uid || e.Container.Name != want.name || string(e.Resource) != want.resource ||
			!reflect.DeepEqual(e.Devices, []device.Device{want.device}) {
			t.Errorf("entry %d is %+v", i, e)
		}
		if g, err := e.Grant(); err != nil || !reflect.DeepEqual(g, want.grant) {
			t.Errorf("entry %d grants %+v (%v), want %+v", i, g, err, want.grant)
		}
	}
}

// A file that says anything else than its kubelet has written is not believed, whatever it was that changed.
func TestACorruptFile(t *testing.T) {
	t.Parallel()
	good := string(real(t))
	for name, bad := range map[string]string{
		"another device":       strings.Replace(good, `{"-1":["gpu-3"]}`, `{"-1":["gpu-0"]}`, 1),
		"another NUMA node":    strings.Replace(good, `{"-1":["gpu-3"]}`, `{"0":["gpu-3"]}`, 1),
		"another answer":       strings.Replace(good, "ChAKB0RFVklDRVMSBWdwdS0z", "ChAKB0RFVklDRVMSBWdwdS0y", 1),
		"another pod":          strings.Replace(good, "981d52da", "981d52db", 1),
		"another container":    strings.Replace(good, `"first"`, `"last"`, 1),
		"one device less":      strings.Replace(good, `"gpu-2",`, ``, 1),
		"another checksum":     strings.Replace(good, "4008102838", "4008102839", 1),
		"no checksum":          strings.Replace(good, `,"Checksum":4008102838`, ``, 1),
		"cut short":            good[:len(good)/2],
		"empty":                "",
		"of another program":   "{}",
		"JSON of another sort": `[1]`,
	} {
		if _, err := checkpoint.Decode([]byte(bad)); bad == good || !errors.As(err, new(*checkpoint.CorruptError)) || !strings.Contains(err.Error(), "corrupt") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What is written again says the same, and as a kubelet would believe it.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	f := decode(t, real(t))
	data := encode(t, f)
	if again := decode(t, data); !reflect.DeepEqual(again, f) {
		t.Errorf("%+v became %+v", f, again)
	}
	if !bytes.Equal(data, encode(t, decode(t, data))) {
		t.Error("equal files are different bytes")
	}
	if f := (checkpoint.File{Healthy: map[device.ResourceName][]device.ID{}}); !reflect.DeepEqual(decode(t, encode(t, f)), f) || !f.Empty() {
		t.Error("an empty file is not empty")
	}
}

func TestSelectAndJoin(t *testing.T) {
	t.Parallel()
	f := decode(t, real(t))
	gpus := f.Select(func(r device.ResourceName) bool { return r == "vendor.example/gpu" })
	rest := f.Select(func(r device.ResourceName) bool { return r != "vendor.example/gpu" })
	if len(gpus.Entries) != 4 || len(gpus.Healthy) != 1 || len(rest.Entries) != 1 || !reflect.DeepEqual(rest.Resources(), []device.ResourceName{"example.com/resource"}) {
		t.Errorf("the parts are %+v and %+v", gpus, rest)
	}
	if !reflect.DeepEqual(rest.Join(gpus), f) {
		t.Error("the parts are not the whole")
	}
}

func TestWrite(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), checkpoint.Name)
	for _, text := range []string{"old", "new"} {
		if err := checkpoint.Write(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("%q is written as %q (%v)", text, got, err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v (%v)", info.Mode(), err)
	}
	if err := os.Mkdir(path+"-dir", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := checkpoint.Write(path+"-dir", nil); err == nil {
		t.Error("a directory was replaced")
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 2 {
		t.Errorf("drafts are left: %v (%v)", left, err)
	}
}

// Whatever stands in a file, with whatever checksum, it is read or refused; and what is read can be written and read again.
func FuzzDecode(f *testing.F) {
	f.Add(real(f))
	f.Add([]byte(`{"Data":{"PodDeviceEntries":null,"RegisteredDevices":null},"Checksum":0}`))
	f.Add([]byte(`{"Data":{"PodDeviceEntries":[{"DeviceIDs":{"-7":["a","a",""],"-1":["a"],"9":["a"]}}],"RegisteredDevices":{"a.b/c":["x","x"],"":null}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := checkpoint.Decode(data); err != nil {
			data = checkpoint.Believable(data)
		}
		if data == nil {
			return
		}
		file := decode(t, data)
		for _, e := range file.Entries {
			_, _ = e.Grant()
		}
		_ = checkpoint.Adopt(file, checkpoint.AdoptInput{})
		once := encode(t, file)
		if again := encode(t, decode(t, once)); !bytes.Equal(again, once) {
			t.Errorf("%s became %s", once, again)
		}
	})
}

// A plugin may write the kubelet's file: what is larger than a kubelet's is refused before it costs anything.
func TestReadWatched_FileIsLong_IsRefused(t *testing.T) {
	t.Parallel()
	const head, tail = `{"Data":{"PodDeviceEntries":[{}`, `],"RegisteredDevices":{}},"Checksum":1}`
	path := filepath.Join(t.TempDir(), checkpoint.Name)
	for _, c := range []struct{ part, want string }{
		{`,{"AllocResp":"` + strings.Repeat("A", 8<<20) + `"}`, "longer than"},
		{strings.Repeat(",{}", 1<<14), "objects"},
		{strings.Repeat(",null", 1<<14), "objects"},
		{`,{"DeviceIDs":{"0":["x"` + strings.Repeat(`,"y"`, 1<<18) + `]}}`, "elements"},
		{strings.Repeat(",{}", 1<<14-5), "checksum"}, // that is the limit
	} {
		if err := os.WriteFile(path, []byte(head+c.part+tail), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := checkpoint.ReadWatched(path)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.20q...: %v, want %q", c.part, err, c.want)
		}
	}
}
