package cli

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/cli/internal/preflight"
	"github.com/devmgrd/devmgrd/internal/cli/internal/table"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/nri"
	"github.com/devmgrd/devmgrd/internal/store"
)

var update = flag.Bool("update", false, "write the golden files")

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func before(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(noon.Add(-d)) }

// What a node with eight GPUs, one of them out of service, has to tell.
var (
	aStatus = &adminv1.GetStatusResponse{
		Version: "v1.0.0", Node: "worker-7", Started: before(26 * time.Hour),
		Components: []*adminv1.Component{
			{Name: "registration", Ready: true}, {Name: "store", Ready: true}, {Name: "pods", Ready: true}, {Name: "node", Ready: true},
			{Name: "nri", Problem: "not connected to container runtime at /var/run/nri/nri.sock"}, {Name: "podresources", Ready: true},
		},
		Resources: []*adminv1.Resource{
			{Name: "vendor.example/gpu", Plugin: "serving", NodeCapacity: 7, TargetCapacity: 7, Free: 3, Assigned: 3, Unhealthy: 1, Cordoned: 1},
			{Name: "vendor.example/nic", Plugin: "stale", NodeCapacity: 2, TargetCapacity: 2, Stale: 1, Assigned: 1},
		},
		Waiting: []*adminv1.Waiting{{
			Namespace: "ml", Name: "training-3", Reason: "NotEnoughDevices", Since: before(95 * time.Second),
			Message: "vendor.example/gpu: 4 wanted, 3 of 8 free, 1 cordoned",
		}},
	}
	// A node on which devmgrd was away while a plugin started.
	strays      = []*adminv1.PodContainer{{Namespace: "kube-system", Pod: "gpu-plugin-x7k2p", Container: "gpu-plugin"}}
	somePlugins = &adminv1.ListPluginsResponse{Plugins: []*adminv1.Plugin{
		{ResourceName: "vendor.example/gpu", State: "serving", Endpoint: "gpu.sock", Pod: &adminv1.PluginPod{Namespace: "kube-system", Name: "gpu-plugin-x7k2p", Uid: "u", ServiceAccount: "gpu-plugin"}, Devices: 8, Healthy: 7, Prefers: true, Since: before(26 * time.Hour)},
		{ResourceName: "vendor.example/nic", State: "stale", Endpoint: "nic.sock", Devices: 2, Healthy: 2, PreStart: true, Since: before(40 * time.Second),
			LastError: "dial unix /run/devmgrd/device-plugins/nic.sock: connect: connection refused", LastErrorTime: before(3 * time.Second)},
	}}
	someDevices = []*adminv1.Device{
		{ResourceName: "vendor.example/gpu", Id: "GPU-0", State: "assigned", Healthy: true, Listed: true, NumaNodes: []int32{0},
			Holder: &adminv1.Holder{Namespace: "ml", Name: "training-0", Uid: "u0", Containers: []string{"main"}}},
		{ResourceName: "vendor.example/gpu", Id: "GPU-1", State: "free", Healthy: true, Listed: true, NumaNodes: []int32{0}},
		{ResourceName: "vendor.example/gpu", Id: "GPU-2", State: "unhealthy", Listed: true, NumaNodes: []int32{0}},
		{ResourceName: "vendor.example/gpu", Id: "GPU-3", State: "cordoned", Healthy: true, Listed: true, NumaNodes: []int32{1},
			Cordon: &adminv1.DeviceCordon{Reason: "fan noise, ticket 4711", Since: before(50 * time.Hour)}},
		{ResourceName: "vendor.example/gpu", Id: "GPU-4", State: "assigned", Listed: true, NumaNodes: []int32{1}, Failures: 2, Failed: before(6 * time.Minute),
			Holder: &adminv1.Holder{Namespace: "ml", Name: "training-1", Uid: "u1", Containers: []string{"main"}},
			Cordon: &adminv1.DeviceCordon{Since: before(5 * time.Minute)}},
		{ResourceName: "vendor.example/nic", Id: "0000:3b:00.1", State: "assigned",
			Holder: &adminv1.Holder{Namespace: "ml", Name: "training-1", Uid: "u1", Containers: []string{"main"}}},
	}
	someAssignments = []*adminv1.Assignment{
		{Namespace: "ml", Pod: "training-0", Uid: "u0", Container: "main", ResourceName: "vendor.example/gpu", DeviceIds: []string{"GPU-0"}},
		{Namespace: "ml", Pod: "training-1", Uid: "u1", Container: "main", ResourceName: "vendor.example/gpu", DeviceIds: []string{"GPU-4", "GPU-5"}, Why: "2 by lowest ID, near NUMA node 1 first"},
		{Namespace: "ml", Pod: "training-1", Uid: "u1", Container: "main", ResourceName: "vendor.example/nic", DeviceIds: []string{"0000:3b:00.1"}, Why: "1 preferred by the plugin"},
		{Namespace: "ml", Pod: "training-2", Uid: "u2", Container: "main", ResourceName: "vendor.example/gpu", DeviceIds: []string{"GPU-7"}, Ended: true},
	}
	aWait = &adminv1.ExplainResponse{
		Namespace: "ml", Name: "training-3", Uid: "6ad2b4a5-2f2d-4f4c-8c57-5d6a0f3c3d11", Verdict: "waiting", Reason: "NotEnoughDevices",
		Message: "vendor.example/gpu: 4 wanted, 3 of 8 free, 1 cordoned", Since: before(95 * time.Second),
		Ends: "a device of vendor.example/gpu is released by another pod, uncordoned, or newly listed",
	}
	// A node on which devmgrd has just been installed, next to a kubelet that has a plugin.
	aFreshNode = preflight.Facts{
		Root: true, ConfigFile: "/etc/devmgrd/config.yaml", State: preflight.State{Dir: "/var/lib/devmgrd"},
		Sockets:    []preflight.Socket{{Key: "plugins.socketDir", At: "/run/devmgrd/device-plugins/kubelet.sock", Init: true}, {Key: "admin.socket", At: "/run/devmgrd/admin.sock"}},
		Runtime:    preflight.Runtime{Socket: "/run/containerd/containerd.sock", Name: "containerd", Version: "v2.4.2", CgroupDriver: "systemd", OCI: "runc", Systemd: true, UserNamespaces: true, Containers: make([]preflight.Size, 23)},
		NRI:        preflight.NRI{Socket: "/var/run/nri/nri.sock", Greeting: nri.Greeting{Runtime: "containerd", Version: "v2.4.2", RequestTimeout: 2 * time.Second, CDI: true, Rules: true, Args: true, Validates: true}},
		Containerd: preflight.Containerd{File: "/etc/containerd/config.toml"}, Kubelet: preflight.Kubelet{Devices: map[device.ResourceName]int{"vendor.example/gpu": 8}},
		API:        &preflight.API{NodeName: "worker-7", Node: true},
		Checkpoint: preflight.Checkpoint{Path: "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint", Resources: []device.ResourceName{"vendor.example/gpu", "vendor.example/old"}},
	}
	aFarewell      = &adminv1.ForgetResponse{Lifted: []*adminv1.DeviceName{{ResourceName: "vendor.example/old-gpu", Id: "GPU-3"}}}
	aPodThatHasAll = &adminv1.ExplainResponse{
		Namespace: "ml", Name: "training-1", Uid: "u1", Verdict: "ready", Message: "the pod has all the devices that it requests",
		Since: before(3 * time.Hour), Assignments: someAssignments[1:3],
	}
)

// What commands print is in testdata, and what documents show of it is that. go test ./internal/cli -run TestGolden -update writes the
// files; the documents are edited by hand then.
func TestGolden(t *testing.T) {
	documents := map[string]document{}
	for name, file := range map[string]string{"devices": "devices.md", "explain": "waiting.md"} {
		documents[name] = openDocument(t, file)
	}
	for name, show := range map[string]func(*bytes.Buffer){
		"status":  func(to *bytes.Buffer) { showStatus(to, aStatus, noon) },
		"stray":   func(to *bytes.Buffer) { showNotRedirected(to, strays) },
		"plugins": func(to *bytes.Buffer) { showPlugins(to, somePlugins, noon) },
		"devices": func(to *bytes.Buffer) { showDevices(to, &adminv1.ListDevicesResponse{Devices: someDevices}, noon) },
		"assignments": func(to *bytes.Buffer) {
			showAssignments(to, &adminv1.ListAssignmentsResponse{Assignments: someAssignments}, noon)
		},
		"explain":     func(to *bytes.Buffer) { showExplanation(to, aWait, noon) },
		"explain-all": func(to *bytes.Buffer) { showExplanation(to, aPodThatHasAll, noon) },
		"history":     func(to *bytes.Buffer) { showHistory(to, &adminv1.ListHistoryResponse{Spans: someSpans}, noon) },
		"actions":     func(to *bytes.Buffer) { showActions(to, someActions, someUser) },
		"check":       func(to *bytes.Buffer) { showFindings(to, preflight.Judge(aFreshNode)) },
		"forget":      func(to *bytes.Buffer) { showForgotten(to, "vendor.example/old-gpu", aFarewell) },
	} {
		var got bytes.Buffer
		show(&got)
		file := filepath.Join("testdata", name+".txt")
		if *update {
			if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got.String() != string(want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got.String(), want)
		}
		if d, shows := documents[name]; shows {
			d.shows("", string(want))
		}
		for line := range strings.Lines(got.String()) {
			if strings.TrimRight(line, " \n") != strings.TrimSuffix(line, "\n") {
				t.Errorf("%s: there is space at the end of %q", name, line)
			}
		}
	}
}

// With nothing to show that is said, instead of an empty table.
func TestNothingToShow(t *testing.T) {
	for want, show := range map[string]func(*bytes.Buffer){
		"No device plugin has registered.\n\nNo pod waits.\n": func(to *bytes.Buffer) { showStatus(to, &adminv1.GetStatusResponse{}, noon) },
		"No device plugin has registered.\n":                  func(to *bytes.Buffer) { showPlugins(to, &adminv1.ListPluginsResponse{}, noon) },
		"There are no devices.\n":                             func(to *bytes.Buffer) { showDevices(to, &adminv1.ListDevicesResponse{}, noon) },
		"No container has devices.\n":                         func(to *bytes.Buffer) { showAssignments(to, &adminv1.ListAssignmentsResponse{}, noon) },
	} {
		var got bytes.Buffer
		show(&got)
		if !strings.HasSuffix(got.String(), want) {
			t.Errorf("got %q, want %q", got.String(), want)
		}
	}
}

// Machines get the same each time, with all fields.
func TestForMachines(t *testing.T) {
	answer := &adminv1.ListDevicesResponse{Devices: someDevices[3:4]}
	for format, want := range map[string]string{
		"json": `{
  "devices": [
    {
      "resourceName": "vendor.example/gpu",
      "id": "GPU-3",
      "state": "cordoned",
      "healthy": true,
      "listed": true,
      "numaNodes": [
        1
      ],
      "cordon": {
        "reason": "fan noise, ticket 4711",
        "since": "2025-12-31T10:00:00Z",
        "declared": false,
        "suspended": false
      },
      "failures": 0,
      "sharers": [],
      "refusals": 0,
      "refusal": ""
    }
  ]
}
`,
		"yaml": `devices:
- cordon:
    declared: false
    reason: fan noise, ticket 4711
    since: "2025-12-31T10:00:00Z"
    suspended: false
  failures: 0
  healthy: true
  id: GPU-3
  listed: true
  numaNodes:
  - 1
  refusal: ""
  refusals: 0
  resourceName: vendor.example/gpu
  sharers: []
  state: cordoned
`,
	} {
		var got bytes.Buffer
		if err := printAnswer(&got, format, proto.Message(answer), nil); err != nil || got.String() != want {
			t.Errorf("%s: %v, got\n%s\nwant\n%s", format, err, got.String(), want)
		}
	}
}

func TestNames(t *testing.T) {
	for arg, want := range map[string][2]string{
		"v.example/gpu/GPU-0":   {"v.example/gpu", "GPU-0"},
		"v.example/gpu/a/b":     {"v.example/gpu", "a/b"}, // IDs may be paths
		"v.example/gpu//dev/x0": {"v.example/gpu", "/dev/x0"},
		`v.example/gpu/"a\x1b"`: {"v.example/gpu", "a\x1b"}, // as tables show it
	} {
		if d, err := splitDevice(arg); err != nil || d.ResourceName != want[0] || d.Id != want[1] {
			t.Errorf("%s: %v, %v", arg, d, err)
		}
	}
	for _, arg := range []string{"", "gpu", "v.example/gpu", "v.example/gpu/", `v.example/gpu/""`} {
		if _, err := splitDevice(arg); err == nil {
			t.Errorf("%q is taken for a device", arg)
		}
	}
	for _, arg := range []string{"", "pod", "a/", "/b", "a/b/c"} {
		if _, _, err := splitPod(arg); err == nil {
			t.Errorf("%q is taken for a pod", arg)
		}
	}
}

// Long lists of IDs make no table wide, IDs can be named as they are shown, and last columns are not padded.
func TestLongLists(t *testing.T) {
	long := make([]string, 60_000)
	for i := range long {
		long[i] = fmt.Sprintf("GPU-%d", i)
	}
	assignments := []*adminv1.Assignment{
		{Namespace: "ml", Pod: "a", Container: "main", ResourceName: "v.example/gpu", DeviceIds: long},
		{Namespace: "ml", Pod: "b", Container: "main", ResourceName: "v.example/gpu", DeviceIds: []string{"a b", "c"}, Why: "1 kept from init containers, 1 by lowest ID, near NUMA node 0 first"},
	}
	for name, show := range map[string]func(*bytes.Buffer){
		"assignments": func(to *bytes.Buffer) {
			showAssignments(to, &adminv1.ListAssignmentsResponse{Assignments: assignments}, noon)
		},
		"explain": func(to *bytes.Buffer) { showExplanation(to, &adminv1.ExplainResponse{Assignments: assignments}, noon) },
		"history": func(to *bytes.Buffer) {
			showHistory(to, &adminv1.ListHistoryResponse{Spans: []*adminv1.Span{{From: before(0), DeviceIds: long}, {From: before(0), DeviceIds: []string{"a b", "c"}}}}, noon)
		},
	} {
		var out bytes.Buffer
		show(&out)
		text := out.String()
		if len(text) > 1000 || !strings.Contains(text, "GPU-0,GPU-1,GPU-2,GPU-3 and 59996 more") || !strings.Contains(text, `"a b",c`) {
			t.Errorf("%s has %d bytes:\n%.1000s", name, len(text), text)
		}
		for line := range strings.Lines(text) {
			if name != "explain" && strings.HasSuffix(line, " \n") {
				t.Errorf("%s: %q is padded", name, line)
			}
		}
	}
	if got := table.IDs(long[:8]); got != strings.Join(long[:8], ",") {
		t.Errorf("a short list is %q", got)
	}
}

func TestAgo(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", -time.Second: "0s", 59 * time.Second: "59s", 61 * time.Second: "1m01s", 3*time.Hour + 5*time.Minute: "3h05m", 50 * time.Hour: "2d02h",
	} {
		if got := ago(before(d), noon); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
}

// A cordon, and the record of a device that became unhealthy, are printed with the device's name.
func TestDumpNamesDevices(t *testing.T) {
	text, err := json.Marshal(dumped(store.State{
		Cordons: []device.Cordon{{Resource: "vendor.com/gpu", ID: "d0", Reason: "fan"}},
		Falls:   []device.Falls{{Resource: "vendor.com/nic", ID: "d1", Falls: []time.Time{noon}, Until: noon, Spell: time.Hour}},
	}, store.HistoryContent{}))
	if err != nil || !strings.Contains(string(text), `"d0"`) || strings.Count(string(text), "Cordons") != 1 ||
		!strings.Contains(string(text), `"Falls":[{"resource":"vendor.com/nic","id":"d1","falls":["`) {
		t.Errorf("%s, %v", text, err)
	}
}

// What a plugin or a client has said does not steer root's terminal.
func TestTables_ControlCharacters_AreEscaped(t *testing.T) {
	var out bytes.Buffer
	evil := "x\x1b]0;owned\x07\x1b[2J"
	showExplanation(&out, &adminv1.ExplainResponse{Namespace: "ns", Name: "p", Verdict: "waiting", Message: evil}, time.Now())
	showDevices(&out, &adminv1.ListDevicesResponse{Devices: []*adminv1.Device{{ResourceName: "a.b/c", Id: evil, Cordon: &adminv1.DeviceCordon{Reason: evil}}}}, time.Now())
	if n := strings.Count(out.String(), "\x1b"); n > 0 {
		t.Errorf("%d escape characters: %q", n, out.String())
	}
}

// A number of the Node that is about to change is noted with its direction.
func TestRare(t *testing.T) {
	for _, test := range []struct {
		published, wanted int32
		claimed           bool
		want              string
	}{{8, 8, false, "-"}, {7, 8, false, "capacity rising to 8"}, {8, 7, false, "capacity falling to 7"}, {0, 0, true, "offered through DRA"}, {8, 0, true, "offered through DRA, capacity falling to 0"}} {
		if got := rare(&adminv1.Resource{NodeCapacity: test.published, TargetCapacity: test.wanted, Claimed: test.claimed}); got != test.want {
			t.Errorf("%d on the node, %d wanted: %q, want %q", test.published, test.wanted, got, test.want)
		}
	}
}

// What releases keep devmgrd from doing is in the status.
func TestStatus_Limits(t *testing.T) {
	var text strings.Builder
	showStatus(&text, &adminv1.GetStatusResponse{Limits: []*adminv1.Limit{
		{Release: "containerd 2.1.9", Text: "containers that are granted x are refused"}, {Release: "containerd 2.1.9", Text: "b"}, {Release: "Kubernetes v1.33.4", Text: "c"},
	}}, time.Now())
	if want := "\nWith containerd 2.1.9:\n  containers that are granted x are refused\n  b\n\nWith Kubernetes v1.33.4:\n  c\n"; !strings.Contains(text.String(), want) {
		t.Errorf("the status is %q, without %q", text.String(), want)
	}
}

// A suspended device's reason has the times. A device that has been refused, and is still counted, says so.
func TestDevices_SuspendedOrRefused_SayWhy(t *testing.T) {
	var out strings.Builder
	why := "suspended by devmgrd until 2026-01-02T13:02:00Z: it became unhealthy 3 times within an hour, the last time at 2026-01-02T12:02:00Z"
	showDevices(&out, &adminv1.ListDevicesResponse{Devices: []*adminv1.Device{
		{ResourceName: "a.b/c", Id: "d", State: "suspended", Healthy: true, Listed: true, Cordon: &adminv1.DeviceCordon{Reason: why, Suspended: true}},
		{ResourceName: "a.b/c", Id: "e", State: "free", Healthy: true, Listed: true, Refusals: 2, Refusal: "no such device"},
	}}, time.Now())
	if got := strings.Join(strings.Fields(strings.Split(out.String(), "\n")[1]), " "); got != "a.b/c d suspended - - "+why {
		t.Errorf("it shows %q", got)
	}
	if got := strings.Join(strings.Fields(strings.Split(out.String(), "\n")[2]), " "); got != "a.b/c e free - - refused 2 times in a row: no such device" {
		t.Errorf("it shows %q", got)
	}
}
