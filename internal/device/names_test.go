package device_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
)

func TestParseResourceName(t *testing.T) {
	for name, problem := range map[string]string{
		"vendor.example/gpu":                    "",
		"vendor/gpu":                            "", // a domain of one label will do
		"a-b.c1/G.P_U-1":                        "",
		strings.Repeat("a", 63) + ".com/x":      "",
		"v.com/" + strings.Repeat("x", 63):      "",
		"cpu":                                   "no slash",
		"":                                      "no slash",
		"a/b/c":                                 "more than one slash",
		"requests.vendor.com/gpu":               "quotas",
		"kubernetes.io/gpu":                     "reserved for Kubernetes",
		"sub.kubernetes.io/gpu":                 "reserved for Kubernetes",
		"Vendor.com/gpu":                        "lower-case",
		"vendor..com/gpu":                       "lower-case",
		"-vendor.com/gpu":                       "lower-case",
		"/gpu":                                  "lower-case",
		strings.Repeat("a.", 122) + "a/x":       "244",
		"vendor.com/":                           "after the slash",
		"vendor.com/-gpu":                       "after the slash",
		"vendor.com/g pu":                       "after the slash",
		"vendor.com/" + strings.Repeat("x", 64): "after the slash",
		"vendor.com/" + strings.Repeat("x", 10000): "...",
	} {
		got, err := device.ParseResourceName(name)
		switch {
		case problem == "":
			if err != nil || string(got) != name {
				t.Errorf("%q: %q, %v", name, got, err)
			}
		case err == nil:
			t.Errorf("%q was taken", name)
		case !strings.Contains(err.Error(), problem) || !strings.Contains(err.Error(), "vendor.example/gpu") || len(err.Error()) > 600:
			t.Errorf("%q: the error %q does not say %q, show a good name, and stay short", name, err, problem)
		}
	}
}

func FuzzParseResourceName(f *testing.F) {
	f.Add("vendor.example/gpu")
	f.Add("requests.a/b")
	f.Fuzz(func(t *testing.T, s string) {
		if r, err := device.ParseResourceName(s); err == nil && (string(r) != s || strings.Count(s, "/") != 1 || len(s) > 308) {
			t.Errorf("%q became %q", s, r)
		}
	})
}

const gpu device.ResourceName = "a.com/gpu"

func demand(kind device.Kind, n int) device.Demand {
	return device.Demand{Kind: kind, Wants: map[device.ResourceName]int{gpu: n}}
}

// The scheduler's arithmetic: what runs at the same time is added, what runs one after the other is not.
func TestRequests(t *testing.T) {
	for name, test := range map[string]struct {
		demands []device.Demand
		want    int
	}{
		"apps add up":                      {[]device.Demand{demand(device.App, 1), demand(device.App, 2)}, 3},
		"init containers do not":           {[]device.Demand{demand(device.Init, 1), demand(device.Init, 2), demand(device.App, 1)}, 2},
		"a large init container decides":   {[]device.Demand{demand(device.Init, 5), demand(device.App, 1)}, 5},
		"apps outweigh init containers":    {[]device.Demand{demand(device.Init, 2), demand(device.Init, 2), demand(device.App, 3), demand(device.App, 3)}, 6},
		"apps are as large together":       {[]device.Demand{demand(device.Init, 2), demand(device.Init, 2), demand(device.App, 1), demand(device.App, 1)}, 2},
		"sidecars run on":                  {[]device.Demand{demand(device.Sidecar, 1), demand(device.App, 1)}, 2},
		"an init container after sidecars": {[]device.Demand{demand(device.Sidecar, 2), demand(device.Init, 3), demand(device.App, 1)}, 5},
		"an init container before them":    {[]device.Demand{demand(device.Init, 3), demand(device.Sidecar, 2), demand(device.App, 1)}, 3},
	} {
		if got := (device.PodDemand{Demands: test.demands}).Requests(); !maps.Equal(got, map[device.ResourceName]int{gpu: test.want}) {
			t.Errorf("%s: %v, want %d", name, got, test.want)
		}
	}
	if got := (device.PodDemand{}).Requests(); len(got) != 0 {
		t.Errorf("a pod without demands requests %v", got)
	}
}
