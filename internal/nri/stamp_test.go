package nri

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/containerd/nri/pkg/api"

	"github.com/devmgrd/devmgrd/internal/device"
)

func TestStamped(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]map[device.ResourceName][]device.ID{
		"":                        nil,
		"null":                    nil,
		"{}":                      nil,
		"not JSON":                nil,
		`["a.com/x"]`:             nil,
		`{"a.com/x":"1"}`:         nil,
		`{"a.com/x":["1"]}`:       {"a.com/x": {"1"}},
		`{"a.com/x":["","1",""]}`: {"a.com/x": {"1"}},
		`{"a.com/x":[],"b.com/x":[""],"cpu":["1"],"":["1"]}`:             nil,
		fmt.Sprintf(`{"a.com/x":["%s"]}`, strings.Repeat("1", maxStamp)): nil,
	} {
		left := 2
		if got, _ := stamped(map[string]string{stampKey: text}, &left); !reflect.DeepEqual(got, want) {
			t.Errorf("%.100s was read as %v, want %v", text, got, want)
		}
	}
	if got, digests := stamped(nil, new(int)); got != nil || digests != nil {
		t.Errorf("no annotation was read as %v", got)
	}
}

// A written stamp reads back unchanged, and a stamp of another program does no harm.
func FuzzStamp(f *testing.F) {
	f.Add(`{"a.com/x":["1","2"]}`, "GPU-1::3", "<&>\u2028")
	f.Add(`{"a.com/x":[""],"":["1"],"cpu":null}`, "\\\"", "\x00")
	f.Fuzz(func(t *testing.T, text, one, other string) {
		left := maxExpanded
		found, _ := stamped(map[string]string{stampKey: text}, &left)
		for resource, ids := range found {
			if _, err := device.ParseResourceName(string(resource)); err != nil || len(ids) == 0 || slices.Contains(ids, "") {
				t.Errorf("%q was read as resource %q with %q", text, resource, ids)
			}
		}
		if one == "" || other == "" || !utf8.ValidString(one) || !utf8.ValidString(other) { // IDs come over protobuf, which has no others
			return
		}
		want := map[device.ResourceName][]device.ID{"a.com/x": {device.ID(one), device.ID(other)}, "b.com/y": {device.ID(other)}}
		as := device.Assignment{Shares: []device.Share{{Resource: "a.com/x", IDs: want["a.com/x"]}, {Resource: "b.com/y", IDs: want["b.com/y"]}}}
		written := stamp(as)
		if got, _ := stamped(map[string]string{stampKey: written}, &left); len(written) <= maxPlain && !reflect.DeepEqual(got, want) {
			t.Errorf("%v was written as %s and read as %v", want, written, got)
		}
	})
}

// megabytes are devices as plugins that share memory by the megabyte list them, ascending.
func megabytes(format string, n int) []device.ID {
	ids := make([]device.ID, n)
	for i := range ids {
		ids[i] = device.ID(fmt.Sprintf(format, i))
	}
	slices.Sort(ids)
	return ids
}

// scattered are devices without any order in their names.
func scattered(n int) []device.ID {
	ids := make([]device.ID, n)
	for i := range ids {
		ids[i] = device.ID(device.Digest([]device.ID{device.ID(fmt.Sprint(i))})[:36])
	}
	slices.Sort(ids)
	return ids
}

func TestStamp_LongLists(t *testing.T) {
	t.Parallel()
	const padded, natural = "GPU-8f6d2c4e-1111-2222-3333-444455556666-_-%06d", "GPU-8f6d2c4e-1111-2222-3333-444455556666-_-%d"
	for _, test := range []struct {
		name   string
		ids    []device.ID
		most   int // bytes
		sealed bool
	}{
		{"one", megabytes(padded, 1), 100, false},
		{"eight", megabytes(natural, 8), 500, false},
		{"1000 with leading zeros", megabytes(padded, 1000), 250, false},
		{"1000 without", megabytes(natural, 1000), 250, false},
		{"60000 with leading zeros", megabytes(padded, 60_000), 250, false},
		{"60000 without", megabytes(natural, 60_000), 250, false},
		{"60000 that cannot be summed up", scattered(60_000), 250, true},
		{"1000 that cannot be summed up", scattered(1000), 250, true},
		{"more digits than a number has", megabytes("9999999999999999999%020d", 1000), 250, false},
		{"names without numbers", append(megabytes(padded, 1000), "x", "y"), 250, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			as := device.Assignment{Shares: []device.Share{{Resource: "a.com/x", IDs: test.ids}}}
			text, left := stamp(as), maxExpanded
			t.Logf("%d devices: %d bytes", len(test.ids), len(text))
			if len(text) > test.most {
				t.Errorf("%d bytes, want %d at most: %.200s", len(text), test.most, text)
			}
			ids, digests := stamped(map[string]string{stampKey: text}, &left)
			if test.sealed {
				if len(ids) > 0 || digests["a.com/x"] != device.Digest(test.ids) {
					t.Errorf("read as %d devices and the digest %q", len(ids["a.com/x"]), digests["a.com/x"])
				}
				return
			}
			if !slices.Equal(ids["a.com/x"], test.ids) || digests != nil {
				t.Errorf("read as %d devices and the digests %q", len(ids["a.com/x"]), digests)
			}
		})
	}
}

// A container may have many resources with many devices each.
func TestStamp_ManyResources(t *testing.T) {
	t.Parallel()
	var as device.Assignment
	for i := range 256 {
		as.Shares = append(as.Shares, device.Share{Resource: device.ResourceName(fmt.Sprintf("a.com/x%03d", i)), IDs: scattered(100)})
	}
	as.Shares = append(as.Shares, device.Share{Resource: "b.com/y", IDs: []device.ID{"1"}})
	text := stamp(as)
	if len(text) > 64<<10 {
		t.Errorf("a stamp of %d bytes", len(text))
	}
	left := maxExpanded
	ids, digests := stamped(map[string]string{stampKey: text}, &left)
	if len(digests) != 256 || !reflect.DeepEqual(ids, map[device.ResourceName][]device.ID{"b.com/y": {"1"}}) {
		t.Errorf("read as %v and %d digests", ids, len(digests))
	}
}

// An object that cannot be read counts as a list of unknown devices, and costs no memory.
func TestStamp_Hostile(t *testing.T) {
	t.Parallel()
	for _, value := range []string{
		`{}`, `{"count":1}`, `{"count":-1,"ranges":[["x0"]]}`, `{"count":2,"ranges":[["x0"]]}`, `{"count":1,"ranges":[["x0"],["x1"]]}`,
		`{"count":1,"ranges":[[]]}`, `{"count":1,"ranges":[[""]]}`, `{"count":2,"ranges":[["x0","y1"]]}`, `{"count":2,"ranges":[["x1","x0"]]}`,
		`{"count":2,"ranges":[["x00","x1"]]}`, `{"count":2,"ranges":[["x0","x999999999"]]}`, `{"count":999999999,"ranges":[["x0","x999999998"]]}`,
		`{"count":9223372036854775807,"ranges":[["x0","x999999998"]]}`, `{"count":"x"}`, `{"zstd":"KLUv"}`, `{"count":1,"ranges":[["a","b","c"]]}`,
	} {
		left := 1000
		ids, digests := stamped(map[string]string{stampKey: `{"a.com/x":` + value + `}`}, &left)
		if digest, is := digests["a.com/x"]; len(ids) > 0 || !is || digest != "" {
			t.Errorf("%s was read as %v and %q", value, ids, digests)
		}
	}
	for _, text := range []string{`{"a.com/x":{"count":600,"ranges":[["x0","x599"]]}}`, marshal(map[string]any{"a.com/x": megabytes("x-%d", 600)})} {
		left := 1000
		for _, want := range []int{600, 0} {
			ids, digests := stamped(map[string]string{stampKey: text}, &left)
			if digest, is := digests["a.com/x"]; len(ids["a.com/x"]) != want || is != (want == 0) || digest != "" {
				t.Errorf("%d devices and the digests %q are read with %d left, want %d", len(ids["a.com/x"]), digests, left, want)
			}
		}
	}
}

// CRI-O copies the annotations of a pod to its containers.
func TestSynchronize_StampCopiedFromThePod_HasNoDigestAndFewDevices(t *testing.T) {
	t.Parallel()
	const list, digest = `{"a.com/x":["nothing"]}`, `{"a.com/x":{"count":1,"sha256":"x"}}`
	for _, test := range []struct {
		pod, container   string
		devices, digests int
	}{
		{digest, digest, 0, 0},
		{`{"a.com/x":{"count":1048576,"ranges":[["x0","x1048575"]]}}`, `{"a.com/x":{"count":1048576,"ranges":[["x0","x1048575"]]}}`, 0, 0},
		{list, list, 1, 0}, // the allocator compares it with the request
		{digest, list, 1, 0},
		{list, digest, 0, 1}, // devmgrd has replaced it
		{"", digest, 0, 1},
	} {
		p, w := newPlugin(t)
		pod, ctr := sandbox(), container()
		pod.Annotations[stampKey] = test.pod
		ctr.Annotations = map[string]string{stampKey: test.container}
		if _, err := p.Synchronize(context.Background(), []*api.PodSandbox{pod}, []*api.Container{ctr}); err != nil {
			t.Fatal(err)
		}
		for _, r := range w.synced {
			if len(r.Stamp["a.com/x"]) != test.devices || len(r.Digests) != test.digests {
				t.Errorf("by the pod's %s and its own %s the container has %d devices and the digests %q", test.pod, test.container, len(r.Stamp["a.com/x"]), r.Digests)
			}
		}
	}
}

func TestCreateContainer_StampOfThePod_IsRemovedOrReplaced(t *testing.T) {
	t.Parallel()
	ready := device.Readiness{State: device.Ready, Assignment: device.Assignment{Container: main, Shares: []device.Share{{Resource: "a.com/x", IDs: []device.ID{"1"}}}}}
	for _, test := range []struct {
		name   string
		st     device.Readiness
		forged bool
		want   map[string]string
	}{
		{"without devices", device.Readiness{State: device.NoDevices}, true, map[string]string{api.MarkForRemoval(stampKey): ""}},
		{"with devices", ready, true, map[string]string{stampKey: `{"a.com/x":["1"]}`}},
		{"none, without devices", device.Readiness{State: device.NoDevices}, false, nil},
	} {
		p, w := newPlugin(t)
		w.set(test.st)
		pod, ctr := sandbox(), container()
		if test.forged {
			pod.Annotations[stampKey] = `{"a.com/x":["2"]}`
			ctr.Annotations = map[string]string{stampKey: `{"a.com/x":["2"]}`}
		}
		adj, _, err := p.CreateContainer(context.Background(), pod, ctr)
		if err != nil {
			t.Fatal(err)
		}
		if got := adj.GetAnnotations(); !maps.Equal(got, test.want) {
			t.Errorf("%s: the answer has the annotations %v, want %v", test.name, got, test.want)
		}
	}
}

func FuzzRanges(f *testing.F) {
	f.Add("x-1", "x-2", "x-03")
	f.Add("0", "00", "1")
	f.Add("999999999", "1000000000", "1000000001")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		ids := slices.DeleteFunc([]device.ID{device.ID(a), device.ID(b), device.ID(c)}, func(id device.ID) bool { return id == "" })
		slices.Sort(ids)
		ids = slices.Compact(ids)
		var got []device.ID
		for _, r := range rangesOf(ids) {
			all, ok := expandRange(r, len(ids)-len(got))
			if !ok {
				t.Fatalf("%q of %q cannot be read", r, ids)
			}
			got = append(got, all...)
		}
		slices.Sort(got)
		if !slices.Equal(got, ids) {
			t.Errorf("%q was read as %q", ids, got)
		}
	})
}
