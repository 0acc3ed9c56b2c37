package placement

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/bitset"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// A plan must not change what is remembered: the devices that others name are a union.
func TestPlan_ContainersNameDevices_OthersTakeTheRest(t *testing.T) {
	t.Parallel()
	w := Input{Demand: device.PodDemand{Demands: []device.Demand{asks("x gpu=1"), asks("y gpu=1"), asks("z gpu=1")}}}
	for i, id := range []string{"", "a", "b"} {
		if id != "" {
			w.Demand.Demands[i].Select = map[device.ResourceName]device.Selection{gpu: {Use: []string{id}}}
		}
	}
	p := stock(false, "a b c").Resource
	for range 2 {
		if got, want := told(Plan(w, Resources{gpu: p})), "x gpu:c | y gpu:a | z gpu:b"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The processor time for a pod with many patterns is compared with that for the same pod without, so the machine's speed does not matter.
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
			p := stock(false, names).Resource
			took := plugintest.ProcessorTime(t, func() {
				if _, no := Plan(w, Resources{gpu: p}); no != nil {
					t.Fatal(no)
				}
			})
			if best[limited] == 0 || took < best[limited] {
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
	p := &planner{Input: Input{Demand: device.PodDemand{Demands: []device.Demand{d}}}, from: Resources{gpu: stock(false, "a b").Resource}, named: map[device.ResourceName]bitset.Set{}, work: &work}
	if _, no := p.requests(d, drafts{}); no != nil || work != maxWork-100*patternWork-1 {
		t.Errorf("%v, %d left of %d", no, work, maxWork)
	}
}
