package dra

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/devmgrd/devmgrd/internal/device"
)

func TestName(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 63)
	for _, c := range []struct {
		id   device.ID
		want string // ends in "-*" if it is derived
	}{
		{"gpu-3", "gpu-3"},
		{"0", "0"},
		{device.ID(long), long},
		{"gpu-9221d5d1-b60b-a624-bf14-0a1819cfda3b", "gpu-9221d5d1-b60b-a624-bf14-0a1819cfda3b"},
		{"GPU-3", "gpu-3-*"},
		{"0000:3b:00.0", "0000-3b-00-0-*"},
		{"GPU-9221d5d1-b60b-a624-bf14-0a1819cfda3b", "gpu-9221d5d1-b60b-a624-bf14-0a1819cfda3b-*"},
		{"NAME::2", "name-2-*"},
		{"-a-", "a-*"},
		{"a b\x00c\xff", "a-b-c-*"},
		{"", "device-*"},
		{"//", "device-*"},
		{device.ID(long + "a"), long[:56] + "-*"},
		{device.ID(long[:55] + "::::b"), long[:55] + "-*"}, // the cut is after a hyphen
		{"gpu-3-abcdef", "gpu-3-abcdef-*"},                 // as if it were derived
		{"gpu-3-abcdeg", "gpu-3-abcdeg"},
	} {
		got := Name(c.id)
		if begin, derived := strings.CutSuffix(c.want, "*"); got != c.want && (!derived || got != begin+digits(string(c.id), 6)) {
			t.Errorf("Name(%q) is %q, want %q", c.id, got, c.want)
		}
	}
}

// No ID has the derived name of another, and case counts.
func TestName_OfDifferentIDs_Differs(t *testing.T) {
	t.Parallel()
	ids := []device.ID{"GPU-3", "gpu-3", "Gpu-3", "gpu_3", "gpu 3", "gpu.3", "gpu-3-", "gpu--3", "GPU--3"}
	for _, id := range ids[:] {
		ids = append(ids, device.ID(Name(id))) // as if a plugin had it
	}
	for _, id := range ids[:] {
		ids = append(ids, device.ID(Name(id)))
	}
	names := map[string]device.ID{}
	for _, id := range ids {
		if other, taken := names[Name(id)]; taken && other != id {
			t.Errorf("%q and %q are both named %s", id, other, Name(id))
		}
		names[Name(id)] = id
	}
}

func TestName_OfAnyID_IsALabel(t *testing.T) {
	t.Parallel()
	alphabet := []byte("abz09AZ-_.:/ \x00\xff")
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		id := make([]byte, r.IntN(90))
		for i := range id {
			id[i] = alphabet[r.IntN(len(alphabet))]
		}
		if got, want := isLabel(string(id)), len(validation.IsDNS1123Label(string(id))) == 0; got != want {
			t.Fatalf("isLabel(%q) is %v", id, got)
		}
		name := Name(device.ID(id))
		if errs := validation.IsDNS1123Label(name); len(errs) > 0 {
			t.Fatalf("Name(%q) is %q: %v", id, name, errs)
		}
	}
}

func TestPoolName(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		node, want string
		resource   device.ResourceName
	}{
		{"n1", "n1/vendor.example/gpu/0", "vendor.example/gpu"},
		{"n1", "n1/nvidia.com/mig-1g.5gb/0", "nvidia.com/mig-1g.5gb"},
		{"n1", "n1/vendor.example/gpu-x-" + digits("vendor.example/GPU_x", 6) + "/0", "vendor.example/GPU_x"},
		{"n1", "n1/vendor.example/a.b-" + digits("vendor.example/a..b", 6) + "/0", "vendor.example/a..b"},
		{"n1", "n1/vendor.example/x-abcdef-" + digits("vendor.example/x-abcdef", 6) + "/0", "vendor.example/x-abcdef"},
	} {
		if got := PoolName(c.node, c.resource, 0); got != c.want && !strings.HasPrefix(got, "n1/vendor.example/a-b-") {
			t.Errorf("the pool of %s is %s, want %s", c.resource, got, c.want)
		}
	}
}

// Pools and slices of different nodes, resources and numbers have different names, and all names are valid.
func TestPoolNameAndSliceName_OfAnyResource_AreValidAndUnique(t *testing.T) {
	t.Parallel()
	nodes := []string{"n1", "n1-a", "ip-10-0-0-1.ec2.internal", strings.Repeat("n", 253), strings.Repeat("n", 252) + "m", strings.Repeat("n.", 126) + "n"}
	resources := []device.ResourceName{"a.example/gpu", "a.example/GPU", "a.example/Gpu", "a.example/g_pu", "a.example/g-pu", "a-a.example/gpu", "a.example/a..b", "a.example/a.-b", "a.example/a.b",
		"a.example/0", device.ResourceName(strings.Repeat("d", 244) + "/" + strings.Repeat("N", 63)), device.ResourceName(strings.Repeat("d", 244) + "/" + strings.Repeat("n", 63))}
	pools, names := map[string]string{}, map[string]string{}
	for _, node := range nodes {
		for _, r := range resources {
			if _, err := device.ParseResourceName(string(r)); err != nil {
				t.Fatal(err)
			}
			for _, k := range []int{0, 1, 31, 781} {
				this := fmt.Sprint(node, r, k)
				pool := PoolName(node, r, k)
				if other, taken := pools[pool]; taken || len(pool) > 253 {
					t.Errorf("the pool of %s is %s, as that of %q", this, pool, other)
				}
				for part := range strings.SplitSeq(pool, "/") {
					if errs := validation.IsDNS1123Subdomain(part); len(errs) > 0 {
						t.Errorf("%q of %s: %v", part, pool, errs)
					}
				}
				name := SliceName(node, r, k)
				if other, taken := names[name]; taken {
					t.Errorf("the slice of %s is %s, as that of %q", this, name, other)
				}
				if errs := validation.IsDNS1123Subdomain(name); len(errs) > 0 {
					t.Errorf("%s: %v", name, errs)
				}
				pools[pool], names[name] = this, this
			}
		}
	}
	if got, want := SliceName("n1", "a.example/gpu", 2), "n1-devmgrd.io-a.example-gpu-2-"; !strings.HasPrefix(got, want) {
		t.Errorf("%s does not begin with %s", got, want)
	}
}
