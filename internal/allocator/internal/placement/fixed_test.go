package placement

import (
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/device"
)

// fixedDemand returns a demand like asks; "gpu:a,b" are devices that the scheduler has chosen.
func fixedDemand(text string) device.Demand {
	words := strings.Fields(text)
	var plain []string
	fixed := map[device.ResourceName][]device.ID{}
	for _, w := range words {
		r, list, chosen := strings.Cut(w, ":")
		if !chosen || r == "init" || r == "sidecar" {
			plain = append(plain, w)
			continue
		}
		for id := range strings.SplitSeq(list, ",") {
			name := device.ResourceName("vendor.com/" + r)
			fixed[name] = append(fixed[name], device.ID(id))
		}
	}
	d := asks(strings.Join(plain, " "))
	d.Fixed = fixed
	for r, ids := range fixed {
		d.Wants[r] = len(ids)
	}
	return d
}

func TestPlan_DevicesChosenByTheScheduler(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		policy   Policy
		scope    Scope
		gpu, nic string
		pod      []string
		runs     map[string]device.Choice
		has      []device.Assignment
		mistake  device.Reason
		want     string
	}{
		"exactly these":                             {gpu: "a b c", pod: []string{"main gpu:c,a"}, want: "main gpu:c,a"},
		"another pod has one":                       {gpu: "a b* c", pod: []string{"main gpu:a,b"}, want: "DeviceInUse"},
		"one is unhealthy":                          {gpu: "a b!", pod: []string{"main gpu:b"}, want: "DeviceUnhealthy"},
		"one is not listed":                         {gpu: "a b", pod: []string{"main gpu:z"}, want: "DeviceGone"},
		"there is no plugin":                        {pod: []string{"main gpu:a"}, want: "PluginMissing"},
		"one claim of two containers":               {gpu: "a b", pod: []string{"x gpu:a", "y gpu:a"}, want: "x gpu:a | y gpu:a"},
		"an init container's is another's too":      {gpu: "a b", pod: []string{"init:i gpu:a,b", "main gpu:b"}, want: "i gpu:a,b | main gpu:b"},
		"apart, although the policy wants one node": {policy: SingleNUMA, gpu: "a@0 b@1", pod: []string{"main gpu:a,b"}, want: "main gpu:a,b"},
		"likewise for the whole pod":                {policy: SingleNUMA, scope: PerPod, gpu: "a@0 b@1", pod: []string{"x gpu:a", "y gpu:b"}, want: "x gpu:a | y gpu:b"},
		"the policy holds for the rest":             {policy: SingleNUMA, gpu: "a@0 b@1", nic: "m@0 n@1 o@1", pod: []string{"main gpu:a nic=2"}, want: "main gpu:a nic:n,o"},
		"and is not met":                            {policy: SingleNUMA, gpu: "a@0 b@1", nic: "m@0 n@1", pod: []string{"main gpu:a nic=2"}, want: "TopologyMismatch"},
		"another container's choice leaves them":    {gpu: "a b c", pod: []string{"x gpu:a", "y gpu=2"}, want: "x gpu:a | y gpu:b,c"},
		"a later container's choice leaves them":    {gpu: "a b", pod: []string{"x gpu=1", "y gpu:a"}, want: "x gpu:b | y gpu:a"},
		"an init container's is not handed on":      {gpu: "a b", pod: []string{"init:i gpu:a", "main gpu=1"}, want: "i gpu:a | main gpu:b"},
		"although no other is free":                 {gpu: "a", pod: []string{"init:i gpu:a", "main gpu=1"}, want: "NotEnoughDevices"},
		"nor one that it has already": {gpu: "a b", pod: []string{"init:i gpu:a", "main gpu=1"}, want: "main gpu:b",
			has: []device.Assignment{{Container: device.Container{Pod: "pod", Name: "i"}, Shares: []device.Share{{Resource: gpu, IDs: []device.ID{"a"}}}}}},
		"nor one that another container runs with": {gpu: "a b", pod: []string{"init:i gpu=1", "main gpu:b"}, runs: map[string]device.Choice{"main": {gpu: {"b"}}}, want: "i gpu:a | main gpu:b"},
		"too few are left":                         {gpu: "a b", pod: []string{"x gpu:a", "y gpu=2"}, want: "NotEnoughDevices"},
		"the container runs with them":             {gpu: "a b", pod: []string{"main gpu:b"}, runs: map[string]device.Choice{"main": {gpu: {"b"}}}, want: "main gpu:b"},
		"a mistake":                                {gpu: "a b", pod: []string{"main gpu:b"}, mistake: device.NoClaim, want: "NoClaim"},
		"a mistake of a running pod":               {gpu: "a b", pod: []string{"main gpu:b"}, mistake: device.NoClaim, runs: map[string]device.Choice{"main": {gpu: {"b"}}}, want: "main gpu:b"},
		"the plugin of a running pod's device has not listed it yet": {gpu: "a b", pod: []string{"main"}, mistake: device.DeviceGone, runs: map[string]device.Choice{"main": {gpu: {"b"}}}, want: "DeviceGone"},
		"the claim of a running pod is not known yet":                {gpu: "a b", pod: []string{"main"}, mistake: device.ClaimUnknown, runs: map[string]device.Choice{"main": {gpu: {"b"}}}, want: "ClaimUnknown"},
		"a running pod exceeds a limit":                              {gpu: "a b", pod: []string{"main"}, mistake: device.PodTooLarge, runs: map[string]device.Choice{"main": {gpu: {"b"}}}, want: "PodTooLarge"},
	} {
		t.Run(name, func(t *testing.T) {
			w := Input{Running: c.runs, Has: c.has, Topology: Topology{Policy: c.policy, Scope: c.scope}}
			w.Demand.Pod.UID = "pod"
			for _, text := range c.pod {
				d := fixedDemand(text)
				if c.mistake != "" {
					d.Mistake, d.Blocked = "why", c.mistake
				}
				w.Demand.Demands = append(w.Demand.Demands, d)
			}
			from, ledgers := Resources{}, map[device.ResourceName]*ledger.Ledger{}
			for r, text := range map[device.ResourceName]string{gpu: c.gpu, nic: c.nic} {
				if text != "" {
					s := stock(false, text)
					from[r], ledgers[r] = s.Resource, s.ledger
				}
			}
			for _, choice := range c.runs {
				for r, ids := range choice {
					ledgers[r].Quarantine(device.Container{Pod: "pod", Name: "main"}, gpu, ids, ledger.Index{})
				}
			}
			for _, s := range device.Shares(c.has) {
				hold(ledgers[s.Resource], gpu, s.IDs, "pod")
			}
			result, no := Plan(w, from)
			if got := told(result, no); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			if no != nil && no.InUse != (no.Reason == device.DeviceInUse) {
				t.Errorf("%s: busy is %v", no.Reason, no.InUse)
			}
		})
	}
}

func TestPlan_ChosenDeviceIsCordonedOrBusy_MessageSaysWhy(t *testing.T) {
	t.Parallel()
	w := Input{Demand: device.PodDemand{Pod: device.Pod{UID: "pod"}, Demands: []device.Demand{fixedDemand("main gpu:a")}}}
	s := stock(false, "a b")
	s.ledger.SetListing(gpu, ledger.NewListing(s.Listing().Devices(), map[device.ID]device.Cordon{"a": {ID: "a", Reason: "Xid 79"}}, ledger.Ordering{}, s.Listing()))
	if _, no := Plan(w, Resources{gpu: s.Resource}); no == nil || no.Reason != device.DeviceCordoned || !strings.Contains(no.Message, "Xid 79") {
		t.Errorf("cordoned: %v", no)
	}
	s = stock(false, "a* b")
	s.ledger.Releasing("others", ledger.Devices{gpu: {"a"}}, &device.Release{Busy: true, Why: "pid 7 has it open"})
	if _, no := Plan(w, Resources{gpu: s.Resource}); no == nil || no.Reason != device.DeviceBusy || !strings.Contains(no.Message, "pid 7") {
		t.Errorf("busy: %v", no)
	}
}
