package cpupolicy

import (
	"testing"

	"k8s.io/utils/cpuset"
)

// four has CPUs 0 and 1 on NUMA node 0, CPUs 2 to 5 on node 1.
var four = Machine{0: {cpuset.New(0, 1), 0}, 1: {cpuset.New(2, 3, 4, 5), 1}}

func TestTake(t *testing.T) {
	near := func(nodes ...int64) []int64 { return nodes }
	for name, test := range map[string]struct {
		devices    [][]int64
		count      int
		cpus, mems string
		near       bool
	}{
		"near its device":          {[][]int64{near(0)}, 2, "0-1", "0", true},
		"near both of its devices": {[][]int64{near(0), near(0, 1)}, 1, "0", "0", true},
		"no device":                {nil, 1, "2", "1", true},
		"no place":                 {[][]int64{nil}, 1, "2", "1", true},
		"too few near the device":  {[][]int64{near(0)}, 3, "0-2", "0,1", false},
		"devices apart":            {[][]int64{near(0), near(1)}, 1, "2", "1", false},
	} {
		t.Run(name, func(t *testing.T) {
			p := New(four)
			cpus, mems, err := p.Take("c", test.devices, test.count)
			if err != nil || cpus.String() != test.cpus || mems != test.mems {
				t.Errorf("CPUs %s and memory %s, %v; want %s and %s", cpus, mems, err, test.cpus, test.mems)
			}
			if near := four.Near(cpus, test.devices); near != test.near {
				t.Errorf("near its devices: %t", near)
			}
			strict := New(four)
			strict.Strict = true
			if cpus, _, err := strict.Take("c", test.devices, test.count); err == nil != test.near {
				t.Errorf("a strict policy: CPUs %s, %v", cpus, err)
			}
		})
	}
}

// A CPU is of one container at a time.
func TestTake_NoneIsFree(t *testing.T) {
	p := New(four)
	if _, _, err := p.Take("a", nil, 6); err != nil {
		t.Fatal(err)
	}
	if cpus, _, err := p.Take("b", nil, 1); err == nil {
		t.Errorf("container b has CPUs %s of container a", cpus)
	}
	p.Return("a")
	if _, _, err := p.Take("b", nil, 6); err != nil {
		t.Error(err)
	}
}
