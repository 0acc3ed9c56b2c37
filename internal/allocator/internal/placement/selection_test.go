package placement

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

func TestMatching_SameIDs_AreComparedOnce(t *testing.T) {
	t.Parallel()
	first := stock(false, "a b c d").Listing()
	s := device.Selection{Use: []string{"a", "c*"}}
	all := first.matching(s)
	if got := []bool{all.has(0), all.has(1), all.has(2), all.has(3)}; !slices.Equal(got, []bool{true, false, true, false}) {
		t.Errorf("a to d: %v", got)
	}
	failing := slices.Clone(first.Devices())
	failing[0].Healthy = false
	for _, l := range []*Listing{first, NewListing(failing, nil, Ordering{}, first), NewListing(failing, map[device.ID]device.Cordon{"b": {}}, Ordering{}, first)} {
		if again := l.matching(device.Selection{Use: []string{"a", "c*"}}); &again[0] != &all[0] {
			t.Error("the IDs are compared again")
		}
	}
	if other := NewListing(failing[1:], nil, Ordering{}, first).matching(s); other.common(nil) != 1 {
		t.Errorf("%d of b to d, want c", other.common(nil))
	}
	if other := first.matching(device.Selection{Avoid: []string{"a", "c*"}}); other.common(nil) != 2 {
		t.Errorf("%d others, want b and d", other.common(nil))
	}
}

func TestMatching_ManySelections_AreForgotten(t *testing.T) {
	t.Parallel()
	l := stock(false, "a7 b7").Listing()
	for i := range 3 * maxSelections {
		if n := l.matching(device.Selection{Use: []string{fmt.Sprint("a", i)}}).common(nil); n != map[bool]int{true: 1}[i == 7] {
			t.Fatalf("a%d: %d devices", i, n)
		}
		if n := len(l.matched.known); n > maxSelections {
			t.Fatalf("%d selections are remembered", n)
		}
	}
}

// A plan must not change what is remembered: the devices that others name are a union.
func TestPlan_ContainersNameDevices_OthersTakeTheRest(t *testing.T) {
	t.Parallel()
	w := Input{Demand: device.PodDemand{Demands: []device.Demand{asks("x gpu=1"), asks("y gpu=1"), asks("z gpu=1")}}}
	for i, id := range []string{"", "a", "b"} {
		if id != "" {
			w.Demand.Demands[i].Select = map[device.ResourceName]device.Selection{gpu: {Use: []string{id}}}
		}
	}
	p := stock(false, "a b c")
	for range 2 {
		if got, want := told(Plan(w, Resources{gpu: p})), "x gpu:c | y gpu:a | z gpu:b"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The time for a pod with many patterns is compared with that for the same pod without, so the machine's speed does not matter.
func TestPlan_PatternsOfManyContainers_CostLittle(t *testing.T) {
	t.Parallel()
	const containers = 50
	s := device.Selection{Use: append(slices.Repeat([]string{"G*g*"}, 63), "G*"), Avoid: append(slices.Repeat([]string{"G*h*"}, 63), "G*i*")}
	names := ""
	for i := range 8 {
		names += fmt.Sprintf("GPU-5b1f5a34-8d3c-4f3e-9a64-%012d ", i)
	}
	best := map[bool]time.Duration{}
	for range 5 {
		for _, limited := range []bool{false, true} {
			var w Input
			for i := range 2 * containers {
				d := asks(fmt.Sprintf("init:c%d gpu=1", i))
				if limited && i < containers {
					d.Select = map[device.ResourceName]device.Selection{gpu: s}
				}
				w.Demand.Demands = append(w.Demand.Demands, d)
			}
			p := stock(false, names)
			began := time.Now()
			if _, no := Plan(w, Resources{gpu: p}); no != nil {
				t.Fatal(no)
			}
			if took := time.Since(began); best[limited] == 0 || took < best[limited] {
				best[limited] = took
			}
		}
	}
	if ratio := float64(best[true]) / float64(best[false]); ratio > 30 {
		t.Errorf("a plan with patterns takes %.0f times as long as one without: %v", ratio, best)
	} else {
		t.Logf("%.1f times: %v", ratio, best)
	}
}

func TestPlan_Patterns_CountAsWork(t *testing.T) {
	t.Parallel()
	d := asks("main gpu=1")
	d.Select = map[device.ResourceName]device.Selection{gpu: {Avoid: slices.Repeat([]string{"x"}, 100)}}
	work := maxWork
	p := &planner{Input: Input{Demand: device.PodDemand{Demands: []device.Demand{d}}}, from: Resources{gpu: stock(false, "a b")}, named: map[device.ResourceName]bitset{}, work: &work}
	if _, no := p.requests(d, drafts{}); no != nil || work != maxWork-100*patternWork-1 {
		t.Errorf("%v, %d left of %d", no, work, maxWork)
	}
}
