package placement

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/device"
)

const (
	gpu device.ResourceName = "vendor.com/gpu"
	nic device.ResourceName = "vendor.com/nic"
)

// noPods are the pods of a ledger without assignments.
type noPods struct{}

func (noPods) Assigned(device.PodUID) []device.Assignment { return nil }
func (noPods) Unused(device.PodUID, string) bool          { return false }
func (noPods) MayRun(device.PodUID) bool                  { return false }
func (noPods) Freed(device.ResourceName)                  {}

func newLedger() *ledger.Ledger { return ledger.New(noPods{}, false, slog.New(slog.DiscardHandler)) }

// hold has a pod hold devices of a resource.
func hold(l *ledger.Ledger, r device.ResourceName, ids []device.ID, pod device.PodUID) {
	l.Hold(pod, map[string]device.Choice{"main": {r: ids}})
}

// A stocked is a resource in a ledger of its own, under the name gpu.
type stocked struct {
	*ledger.Resource
	ledger *ledger.Ledger
}

// stock returns a resource with devices written like "a@0 b@0,1 c d@1! e@1*": names, NUMA nodes, unhealthy (!), taken by other pods
// (*).
func stock(prefers bool, text string) stocked {
	l := newLedger()
	var devices []device.Device
	var taken []device.ID
	for _, word := range strings.Fields(text) {
		name, mark := strings.TrimRight(word, "!*"), ""
		if len(name) < len(word) {
			mark = word[len(name):]
		}
		id, at, _ := strings.Cut(name, "@")
		d := device.Device{ID: device.ID(id), Healthy: !strings.Contains(mark, "!")}
		for node := range strings.SplitSeq(at, ",") {
			if node != "" {
				var n int
				fmt.Sscan(node, &n)
				d.NUMA = append(d.NUMA, n)
			}
		}
		devices = append(devices, d)
		if strings.Contains(mark, "*") {
			taken = append(taken, d.ID)
		}
	}
	l.Accept(gpu, device.Offer{Reported: true, Prefers: prefers, Inventory: device.Inventory{Devices: devices}}, ledger.NewListing(devices, nil, ledger.Ordering{}, nil), nil)
	hold(l, gpu, taken, "others")
	return stocked{l.Resources[gpu], l}
}

// asks returns a demand written like "main gpu=2 nic=1", of an app container unless it begins with "init:" or "sidecar:".
func asks(text string) device.Demand {
	words := strings.Fields(text)
	d := device.Demand{Kind: device.App, Container: device.Container{Pod: "pod", Name: words[0]}, Wants: map[device.ResourceName]int{}}
	if kind, name, ok := strings.Cut(words[0], ":"); ok {
		d.Kind, d.Container.Name = device.Kind(kind), name
	}
	for _, w := range words[1:] {
		r, n, _ := strings.Cut(w, "=")
		var count int
		fmt.Sscan(n, &count)
		d.Wants[device.ResourceName("vendor.com/"+r)] = count
	}
	return d
}

// told returns a proposal like "main gpu:a,b nic:c", containers in alphabetical order, or the reason of a refusal.
func told(p Result, no *device.Refusal) string {
	if no != nil {
		return string(no.Reason)
	}
	var all []string
	for _, c := range slices.Sorted(maps.Keys(p.Choices)) {
		text := c
		for _, r := range slices.Sorted(maps.Keys(p.Choices[c])) {
			text += " " + strings.TrimPrefix(string(r), "vendor.com/") + ":" + join(p.Choices[c][r])
		}
		all = append(all, text)
	}
	return strings.Join(all, " | ")
}

func join(ids []device.ID) string {
	var s []string
	for _, id := range ids {
		s = append(s, string(id))
	}
	return strings.Join(s, ",")
}

type planCase struct {
	policy   Policy // none if empty
	scope    Scope
	gpu, nic string // the offered devices
	pod      []string
	runs     map[string]device.Choice
	advice   Preferences
	want     string
}

func (c planCase) run(t *testing.T) {
	t.Helper()
	w := Input{Running: c.runs, Preferences: c.advice, Topology: Topology{Policy: c.policy, Scope: c.scope}}
	w.Demand.Pod.UID = "pod"
	for _, text := range c.pod {
		w.Demand.Demands = append(w.Demand.Demands, asks(text))
	}
	from := Resources{}
	for r, text := range map[device.ResourceName]string{gpu: c.gpu, nic: c.nic} {
		if text != "" {
			from[r] = stock(c.advice != nil, text).Resource
		}
	}
	if got := told(Plan(w, from)); got != c.want {
		t.Errorf("%q, want %q", got, c.want)
	}
}

func one(text string) []string { return []string{text} }

// Devices of a container that must be near one NUMA node, or near as few as possible.
func TestPlaces(t *testing.T) {
	t.Parallel()
	perNode := "a0@0 a1@0 b0@1 b1@1"
	for name, c := range map[string]planCase{
		"no device has a place":                  {policy: BestEffort, gpu: "a b c", pod: one("main gpu=1"), want: "main gpu:a"},
		"only one has a place":                   {policy: BestEffort, gpu: "a b@1 c", pod: one("main gpu=1"), want: "main gpu:b"},
		"one device per node":                    {policy: BestEffort, gpu: "a@0 b@1", pod: one("main gpu=1"), want: "main gpu:a"},
		"two of one per node":                    {policy: BestEffort, gpu: "a@0 b@1", pod: one("main gpu=2"), want: "main gpu:a,b"},
		"two of two per node":                    {policy: BestEffort, gpu: "a@0 b@1 c@0 d@1", pod: one("main gpu=2"), want: "main gpu:a,c"},
		"could be near, but is not, best-effort": {policy: BestEffort, gpu: "a0@0 a1@0* b0@1 b1@1*", pod: one("main gpu=2"), want: "main gpu:a0,b0"},
		"could be near, but is not, restricted":  {policy: Restricted, gpu: "a0@0 a1@0* b0@1 b1@1*", pod: one("main gpu=2"), want: "TopologyMismatch"},
		"can never be nearer, restricted":        {policy: Restricted, gpu: "a@0 b@1", pod: one("main gpu=2"), want: "main gpu:a,b"},
		"can never be nearer, single":            {policy: SingleNUMA, gpu: "a@0 b@1", pod: one("main gpu=2"), want: "TopologyMismatch"},
		"an unhealthy device is near too":        {policy: Restricted, gpu: "a@0 b@0! c@1", pod: one("main gpu=2"), want: "TopologyMismatch"},
		"too few is not a mismatch":              {policy: SingleNUMA, gpu: "a@0", pod: one("main gpu=2"), want: "NotEnoughDevices"},
		"places are ignored":                     {gpu: "a@0 b@1 c@0", pod: one("main gpu=2"), want: "main gpu:a,b"},
		"three near and one more":                {policy: BestEffort, gpu: "a@0 b@0 c@0 d@1! e f@1*", pod: one("main gpu=4"), want: "main gpu:a,b,c,e"},
		"other nodes before no place":            {policy: BestEffort, gpu: "a b@0 c@1", pod: one("main gpu=2"), want: "main gpu:b,c"},
		"only nodes that have devices":           {policy: BestEffort, gpu: "a@33 b@2 c@33", pod: one("main gpu=2"), want: "main gpu:a,c"},
		"a device near two nodes counts at both": {policy: SingleNUMA, gpu: "a@0,1 b@1 c@2", pod: one("main gpu=2"), want: "main gpu:a,b"},

		"two resources near each other":                     {policy: BestEffort, gpu: "a@0 b@1", nic: "x@1 y@1", pod: one("main gpu=1 nic=1"), want: "main gpu:b nic:x"},
		"two resources, one without places":                 {policy: SingleNUMA, gpu: "a@0 b@1", nic: "x", pod: one("main gpu=1 nic=1"), want: "main gpu:a nic:x"},
		"two resources that cannot, best-effort":            {policy: BestEffort, gpu: "a@0 b@0", nic: "x@1", pod: one("main gpu=1 nic=1"), want: "main gpu:a nic:x"},
		"two resources that cannot, single":                 {policy: SingleNUMA, gpu: "a@0 b@0", nic: "x@1", pod: one("main gpu=1 nic=1"), want: "TopologyMismatch"},
		"two resources that could, restricted":              {policy: Restricted, gpu: "a@0 b@1*", nic: "x@1", pod: one("main gpu=1 nic=1"), want: "TopologyMismatch"},
		"two resources that never could, restricted":        {policy: Restricted, gpu: "a@0", nic: "x@1", pod: one("main gpu=1 nic=1"), want: "main gpu:a nic:x"},
		"each resource on as few of the nodes as it can be": {policy: BestEffort, gpu: "a@0 b@1 c@1", nic: "x@0 y@1*", pod: one("main gpu=2 nic=1"), want: "main gpu:b,c nic:x"},

		"each container alone":    {policy: SingleNUMA, gpu: perNode, pod: []string{"a gpu=2", "b gpu=2"}, want: "a gpu:a0,a1 | b gpu:b0,b1"},
		"the pod as a whole":      {policy: SingleNUMA, scope: PerPod, gpu: perNode, pod: []string{"a gpu=2", "b gpu=2"}, want: "TopologyMismatch"},
		"the pod as a whole fits": {policy: SingleNUMA, scope: PerPod, gpu: "a@0 b@1 c@1", pod: []string{"a gpu=1", "b gpu=1"}, want: "a gpu:b | b gpu:c"},
		"the pod's init containers end before its apps": {policy: SingleNUMA, scope: PerPod, gpu: "a@0 b@1 c@1",
			pod: []string{"init:i gpu=2", "a gpu=1", "b gpu=1"}, want: "a gpu:b | b gpu:c | i gpu:b,c"},
		"an init container may need most": {policy: SingleNUMA, scope: PerPod, gpu: "a@0 b@0 c@1 d@1 e@1",
			pod: []string{"init:i gpu=3", "a gpu=1"}, want: "a gpu:c | i gpu:c,d,e"},
		"a pod's resources of which one has no places": {policy: Restricted, scope: PerPod, gpu: "a@0 b@1", nic: "x y",
			pod: []string{"a gpu=1 nic=1", "b nic=1"}, want: "a gpu:a nic:x | b nic:y"},
		// The first container could have a0. Then the second would wait forever.
		"a container makes room for the next": {policy: SingleNUMA, gpu: "a0@0 a1@0 b0@1", pod: []string{"a gpu=1", "b gpu=2"}, want: "a gpu:b0 | b gpu:a0,a1"},
		"what init containers hand on decides": {policy: SingleNUMA, gpu: "a@0 b@1", nic: "y@1",
			pod: []string{"init:i gpu=1", "main gpu=1 nic=1"}, want: "i gpu:b | main gpu:b nic:y"},
		"reused and further devices near each other": {policy: BestEffort, gpu: "a@1 b@0 c@0 d@1*", nic: "x@0", pod: []string{"init:i nic=1 gpu=1", "main gpu=2"}, want: "i gpu:b nic:x | main gpu:b,c"},
		"the nearest of what is handed on":           {policy: BestEffort, gpu: "a@0 b@1", nic: "y@1", pod: []string{"init:i gpu=2", "main gpu=1 nic=1"}, want: "i gpu:a,b | main gpu:b nic:y"},
		"as the stamps say, near or not": {policy: SingleNUMA, gpu: "a@0 b@1", pod: one("main gpu=2"),
			runs: map[string]device.Choice{"main": {gpu: {"a", "b"}}}, want: "main gpu:a,b"},
	} {
		t.Run(name, c.run)
	}
}

// Init containers hand their devices on; sidecars keep theirs; apps have their own.
func TestReuse(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]planCase{
		"an init container and an app": {gpu: "a b", pod: []string{"init:i gpu=1", "main gpu=1"}, want: "i gpu:a | main gpu:a"},
		"two inits and two apps share two devices": {gpu: "a b c d", pod: []string{"init:i1 gpu=1", "init:i2 gpu=2", "m1 gpu=1", "m2 gpu=1"},
			want: "i1 gpu:a | i2 gpu:a,b | m1 gpu:a | m2 gpu:b"},
		"sidecars draw from init containers and keep that": {gpu: "a b c d e f", pod: []string{"init:i gpu=3", "sidecar:s1 gpu=1", "sidecar:s2 gpu=2", "m1 gpu=1", "m2 gpu=2"},
			want: "i gpu:a,b,c | m1 gpu:d | m2 gpu:e,f | s1 gpu:a | s2 gpu:b,c"},
		"init, sidecar and app with two devices": {gpu: "a b", pod: []string{"init:i gpu=1", "sidecar:s gpu=1", "main gpu=1"}, want: "i gpu:a | main gpu:b | s gpu:a"},
		"a sidecar's devices are not handed on":  {gpu: "a", pod: []string{"sidecar:s gpu=1", "main gpu=1"}, want: "NotEnoughDevices"},
		"enough for both, too few for the rest":  {gpu: "a b c", pod: []string{"m1 gpu=2", "m2 gpu=2"}, want: "NotEnoughDevices"},
		"unhealthy ones are not enough":          {gpu: "a b!", pod: one("main gpu=2"), want: "DeviceUnhealthy"},
		"no plugin offers it":                    {gpu: "a", pod: one("main nic=1"), want: "PluginMissing"},
		"an empty list":                          {gpu: " ", pod: one("main gpu=1"), want: "NotEnoughDevices"},
	} {
		t.Run(name, c.run)
	}
}

func says(ids ...device.ID) Preferences { return Preferences{PreferenceKey{"main", gpu}: ids} }

// A plugin's preference decides only among the eligible devices.
func TestPreferences(t *testing.T) {
	t.Parallel()
	eight := "a@0 b@0 c@0 d@0 e@0 f@0 g@1 h@1"
	for name, c := range map[string]planCase{
		"followed":                             {gpu: "a b c d", pod: one("main gpu=2"), advice: says("b", "d"), want: "main gpu:b,d"},
		"nothing preferred":                    {gpu: "a b c", pod: one("main gpu=2"), advice: says(), want: "main gpu:a,b"},
		"too many":                             {gpu: "a b c d", pod: one("main gpu=2"), advice: says("d", "c", "b"), want: "main gpu:c,d"},
		"too few":                              {gpu: "a b c d", pod: one("main gpu=3"), advice: says("d"), want: "main gpu:a,b,d"},
		"doubles":                              {gpu: "a b c d", pod: one("main gpu=2"), advice: says("d", "d"), want: "main gpu:a,d"},
		"unknown, unhealthy and taken ones":    {gpu: "a b c! d* e", pod: one("main gpu=2"), advice: says("zz", "c", "d", "e"), want: "main gpu:a,e"},
		"near ones":                            {policy: BestEffort, gpu: eight, pod: one("main gpu=5"), advice: says("b", "c", "d", "e", "f"), want: "main gpu:b,c,d,e,f"},
		"near ones, and others are not taken":  {policy: BestEffort, gpu: eight, pod: one("main gpu=5"), advice: says("b", "c", "g", "h", "f"), want: "main gpu:a,b,c,d,f"},
		"nonsense and near ones":               {policy: BestEffort, gpu: eight, pod: one("main gpu=5"), advice: says("x", "y", "f"), want: "main gpu:a,b,c,d,f"},
		"others once all near ones are chosen": {policy: BestEffort, gpu: "a@0 b@0 c d e", pod: one("main gpu=3"), advice: says("a", "b", "e"), want: "main gpu:a,b,e"},
		"what init containers hand on is first": {gpu: "a b c d", pod: []string{"init:i gpu=1", "main gpu=2"}, advice: says("c", "d"),
			want: "i gpu:a | main gpu:a,c"},
		"the plugin knows which near ones fit each other": {policy: SingleNUMA, gpu: "a@0 b@0 c@0", nic: "x@0", pod: one("main gpu=2 nic=1"), advice: says("a", "c"),
			want: "main gpu:a,c nic:x"},
	} {
		t.Run(name, c.run)
	}
}

// A plugin is asked only where there is a choice, with all eligible devices, the required ones among them, and their number.
func TestQuestions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		policy   Policy
		gpu, has string // has: of what is taken, what the first container has
		pod      []string
		want     string // the first question, or why it has to wait
	}{
		"any of them":                    {"", "a b c d*", "", one("main gpu=1"), "main: 1 of a,b,c with "},
		"all of them: no choice":         {"", "a b c*", "", one("main gpu=2"), ""},
		"near ones only":                 {BestEffort, "a@0 b@0 c@1 d", "", one("main gpu=1"), "main: 1 of a,b with "},
		"all near ones: no choice":       {BestEffort, "a@0 b@0 c@1*", "", one("main gpu=2"), ""},
		"all near ones and some others":  {BestEffort, "a@0 b@0 c d", "", one("main gpu=3"), "main: 3 of a,b,c,d with a,b"},
		"all near ones and all others":   {BestEffort, "a@0 b@0 c", "", one("main gpu=3"), ""},
		"what init containers hand on":   {"", "a b c d", "", []string{"init:i gpu=4", "main gpu=2"}, ""},
		"reused ones must be among them": {"", "a b c d", "", []string{"init:i gpu=4", "sidecar:s gpu=3", "main gpu=1"}, ""},
		"the first container first":      {"", "a b c d", "", []string{"init:i gpu=1", "main gpu=2"}, "i: 1 of a,b,c,d with "},
		"no plugin is asked if it waits": {"", "a b c d", "", []string{"m1 gpu=2", "m2 gpu=3"}, "NotEnoughDevices"},

		"some are handed on, and others have some": {BestEffort, "a@0* b@0* c@0 d@0 e@0* f@0* g@0 h@0", "a f",
			[]string{"init:i gpu=2", "main gpu=4"}, "main: 4 of a,c,d,f,g,h with a,f"},
		"some are handed on, of two nodes": {BestEffort, "a@0 b@0* c@0 d@0 e@1 f@1 g@1* h@1", "b g",
			[]string{"init:i gpu=2", "main gpu=6"}, "main: 6 of a,b,c,d,e,f,g,h with b,g"},
		"all near ones, what is handed on and some others": {BestEffort, "a@0 b@0* c@0 d@0 e f g* h", "b g",
			[]string{"init:i gpu=2", "main gpu=6"}, "main: 6 of a,b,c,d,e,f,g,h with a,b,c,d,g"},
		"all near ones, what is handed on, and others have some": {BestEffort, "a@0* b@0* c@0 d@0 e f g* h*", "b g",
			[]string{"init:i gpu=2", "main gpu=5"}, "main: 5 of b,c,d,e,f,g with b,c,d,g"},
		"all that others do not have: no choice": {BestEffort, "a@0* b@0* c@0 d@0 e f g* h*", "b g",
			[]string{"init:i gpu=2", "main gpu=6"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := Input{Preferences: Preferences{}, Topology: Topology{Policy: c.policy}}
			for _, text := range c.pod {
				w.Demand.Demands = append(w.Demand.Demands, asks(text))
			}
			if c.has != "" {
				share := device.Share{Resource: gpu}
				for id := range strings.FieldsSeq(c.has) {
					share.IDs = append(share.IDs, device.ID(id))
				}
				w.Has = []device.Assignment{{Container: w.Demand.Demands[0].Container, Shares: []device.Share{share}}}
			}
			p, no := Plan(w, Resources{gpu: stock(true, c.gpu).Resource})
			got := ""
			if no != nil {
				got = string(no.Reason)
			}
			if q := p.Ask; q != nil {
				got = fmt.Sprintf("%s: %d of %s with %s", q.Container.Name, q.Size, join(q.Available), join(q.Must))
			}
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
	// The second question, after the first has been answered, builds on that answer.
	w := Input{Preferences: Preferences{PreferenceKey{"i", gpu}: {"c"}}}
	w.Demand.Demands = []device.Demand{asks("init:i gpu=1"), asks("main gpu=2")}
	if p, _ := Plan(w, Resources{gpu: stock(true, "a b c d").Resource}); p.Ask == nil || join(p.Ask.Must) != "c" || join(p.Ask.Available) != "a,b,c,d" || p.Ask.Size != 2 {
		t.Errorf("the second question is %+v", p.Ask)
	}
}

// A refusal names the obstacle so that the operator can act.
func TestMismatchIsExplained(t *testing.T) {
	t.Parallel()
	w := Input{Topology: Topology{Policy: SingleNUMA}}
	w.Demand.Demands = []device.Demand{asks("main gpu=2 nic=1")}
	_, no := Plan(w, Resources{gpu: stock(false, "a@0 b@1 c@1").Resource, nic: stock(false, "x@0").Resource})
	if want := "container main requests 2 vendor.com/gpu (free by NUMA node: 1 on 0, 2 on 1) and 1 vendor.com/nic (free by NUMA node: 1 on 0), " +
		"which cannot be allocated on one NUMA node, as topology.policy single-numa-node requires"; no == nil || no.Message != want {
		t.Errorf("%v, want %q", no, want)
	}
}

// big returns a plan input with 2^64 sets of nodes, which the kubelet's full enumeration would never finish.
func big(kinds, nodes, devices int) (Input, Resources) {
	l := newLedger()
	w := Input{Preferences: Preferences{}, Topology: Topology{Policy: BestEffort}}
	w.Demand.Demands = []device.Demand{{Container: device.Container{Name: "main"}, Kind: device.App, Wants: map[device.ResourceName]int{}}}
	for r := range kinds {
		name := device.ResourceName(fmt.Sprintf("vendor.com/r%d", r))
		all := make([]device.Device, devices)
		for i := range all {
			all[i] = device.Device{ID: device.ID(fmt.Sprintf("device-%06d", i)), Healthy: true, NUMA: []int{i % nodes}}
		}
		l.Accept(name, device.Offer{Reported: true}, ledger.NewListing(all, nil, ledger.Ordering{}, nil), nil)
		for i := range all {
			if (i/nodes+i)%(r+2) != 0 { // most are taken, each resource in a way of its own
				hold(l, name, []device.ID{all[i].ID}, "others")
			}
		}
		w.Demand.Demands[0].Wants[name] = l.Resources[name].FreeCount() / 2
	}
	return w, l.Resources
}

// On a machine of 64 nodes a plan ends, with a choice as good as possible.
func TestManyNodes(t *testing.T) {
	t.Parallel()
	w, from := big(8, 64, 6400)
	for _, policy := range []Policy{NoPolicy, BestEffort, Restricted, SingleNUMA} {
		w.Topology.Policy = policy
		p, no := Plan(w, from)
		if served := policy != Restricted && policy != SingleNUMA; (no == nil) != served {
			t.Fatalf("%s: %v", policy, no)
		}
		for r, n := range w.Demand.Demands[0].Wants {
			if no == nil && len(p.Choices["main"][r]) != n {
				t.Errorf("%s: %d of %s, want %d", policy, len(p.Choices["main"][r]), r, n)
			}
		}
	}
}

// vain returns a pod that single-numa-node can never serve. Only its last containers show that, so every attempt for the
// earlier ones fails. If the last containers could be served alone, the plan finds out even later.
func vain(devices, nodes, containers int, alone bool) (Input, Resources) {
	const aux device.ResourceName = "vendor.com/aux"
	l := newLedger()
	w := Input{Preferences: Preferences{}, Topology: Topology{Policy: SingleNUMA}}
	stock := func(r device.ResourceName, n int, near func(i int) int) {
		all := make([]device.Device, n)
		for i := range all {
			all[i] = device.Device{ID: device.ID(fmt.Sprintf("device-%06d", i)), Healthy: true, NUMA: []int{near(i)}}
		}
		l.Accept(r, device.Offer{Reported: true, Prefers: true}, ledger.NewListing(all, nil, ledger.Ordering{}, nil), nil)
	}
	add := func(wants map[device.ResourceName]int) {
		c := device.Container{Name: fmt.Sprintf("c%02d", len(w.Demand.Demands))}
		w.Demand.Demands = append(w.Demand.Demands, device.Demand{Container: c, Kind: device.App, Wants: wants})
	}
	stock(gpu, devices, func(i int) int { return i % nodes })
	stock(nic, 2, func(i int) int { return i })
	stock(aux, 2, func(int) int { return 0 })
	for range containers {
		add(map[device.ResourceName]int{gpu: 1})
	}
	if alone {
		add(map[device.ResourceName]int{nic: 1, aux: 1})
		add(map[device.ResourceName]int{nic: 1, aux: 1})
	} else {
		add(map[device.ResourceName]int{nic: 2})
	}
	return w, l.Resources
}

// A plan that cannot succeed also ends after a bounded amount of work: the runtime's questions wait for it. The test measures
// that work by its allocations, independent of the machine.
func TestPlansInVain(t *testing.T) {
	for _, c := range []struct{ devices, nodes, containers int }{{64, 2, 20}, {64, 8, 7}, {64, 8, 40}, {20_000, 8, 7}} {
		for _, alone := range []bool{false, true} {
			w, from := vain(c.devices, c.nodes, c.containers, alone)
			var no *device.Refusal
			allocations := testing.AllocsPerRun(1, func() { _, no = Plan(w, from) })
			if no == nil || no.Reason != device.TopologyMismatch {
				t.Errorf("%+v: %v", c, no)
			}
			if allocations > 100_000 {
				t.Errorf("%+v, alone %v: %.0f allocations", c, alone, allocations)
			}
		}
	}
}

// BenchmarkPlanInVain measures plans that cannot succeed.
func BenchmarkPlanInVain(b *testing.B) {
	for _, c := range []struct{ devices, nodes, containers int }{{64, 2, 20}, {64, 8, 7}, {80_000, 8, 7}} {
		for _, alone := range []bool{false, true} {
			b.Run(fmt.Sprintf("%ddevices/%dnodes/%dcontainers/alone=%v", c.devices, c.nodes, c.containers, alone), func(b *testing.B) {
				w, from := vain(c.devices, c.nodes, c.containers, alone)
				for b.Loop() {
					Plan(w, from)
				}
			})
		}
	}
}

// BenchmarkPlanOne plans for one device of many: the first free one, and one of the last NUMA node.
func BenchmarkPlanOne(b *testing.B) {
	for _, devices := range []int{10, 1000, 80_000} {
		for _, nodes := range []int{0, 2, 8} {
			b.Run(fmt.Sprintf("%ddevices/%dnodes", devices, nodes), func(b *testing.B) {
				w, from := big(1, 1, 1)
				all := make([]device.Device, devices)
				for i := range all {
					all[i] = device.Device{ID: device.ID(fmt.Sprintf("device-%06d", i)), Healthy: true}
					if nodes > 0 {
						all[i].NUMA = []int{i * nodes / devices}
					}
				}
				for r := range w.Demand.Demands[0].Wants {
					l := newLedger()
					l.Accept(r, device.Offer{Reported: true}, ledger.NewListing(all, nil, ledger.Ordering{}, nil), nil)
					for _, d := range all[:devices-1] { // all but the last one are taken
						hold(l, r, []device.ID{d.ID}, "others")
					}
					from[r] = l.Resources[r]
					w.Demand.Demands[0].Wants[r] = 1
				}
				for b.Loop() {
					if _, no := Plan(w, from); no != nil {
						b.Fatal(no)
					}
				}
			})
		}
	}
}

// BenchmarkPlanManyNodes plans for a container that requests 8 resources of 100 000 devices each on 64 NUMA nodes, so that no
// small set of nodes suffices: the search reaches its limit.
func BenchmarkPlanManyNodes(b *testing.B) {
	for _, size := range []struct{ resources, nodes, devices int }{{1, 2, 1000}, {8, 8, 1000}, {8, 36, 1024}, {8, 64, 100_000}} {
		b.Run(fmt.Sprintf("%dresources/%dnodes/%ddevices", size.resources, size.nodes, size.devices), func(b *testing.B) {
			w, from := big(size.resources, size.nodes, size.devices)
			for _, policy := range []Policy{NoPolicy, BestEffort} {
				b.Run(string(policy), func(b *testing.B) {
					w.Topology.Policy = policy
					for b.Loop() {
						if _, no := Plan(w, from); no != nil {
							b.Fatal(no)
						}
					}
				})
			}
		})
	}
}

// A refusal says whether the wait ends when other pods do, or the devices would not suffice if they were all free.
func TestPlan_Refused_BusyIfOthersHaveTheDevices(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		policy Policy
		gpu    string
		pod    string
		reason device.Reason
		busy   bool
	}{
		"others have one":                           {NoPolicy, "a b*", "main gpu=2", device.NotEnoughDevices, true},
		"there is only one":                         {NoPolicy, "a", "main gpu=2", device.NotEnoughDevices, false},
		"there is only one, and in use":             {NoPolicy, "a*", "main gpu=2", device.NotEnoughDevices, false},
		"one is unhealthy":                          {NoPolicy, "a b!", "main gpu=2", device.DeviceUnhealthy, false},
		"one is unhealthy, one in use":              {NoPolicy, "a b! c*", "main gpu=2", device.DeviceUnhealthy, true},
		"one on each node, single":                  {SingleNUMA, "a@0 b@1", "main gpu=2", device.TopologyMismatch, false},
		"two on each node, single":                  {SingleNUMA, "a@0 b@0* c@1 d@1*", "main gpu=2", device.TopologyMismatch, true},
		"could be near, restricted":                 {Restricted, "a@0 b@0* c@1 d@1*", "main gpu=2", device.TopologyMismatch, true},
		"two containers with two each, of two":      {NoPolicy, "a b", "x gpu=2|y gpu=2", device.NotEnoughDevices, false},
		"two containers with two each, of four":     {NoPolicy, "a b c* d", "x gpu=2|y gpu=2", device.NotEnoughDevices, true},
		"an unhealthy one on each node, single":     {SingleNUMA, "a@0 b@0! c@1 d@1!", "main gpu=2", device.TopologyMismatch, false},
		"an unhealthy one on each node, restricted": {Restricted, "a@0 b@0! c@1 d@1!", "main gpu=2", device.TopologyMismatch, false},
		"the plugin is missing: not for pods":       {NoPolicy, "", "main gpu=1", device.PluginMissing, false},
	} {
		t.Run(name, func(t *testing.T) {
			in, from := Input{Topology: Topology{Policy: c.policy}}, Resources{}
			in.Demand = device.PodDemand{Pod: device.Pod{UID: "pod"}}
			for text := range strings.SplitSeq(c.pod, "|") {
				in.Demand.Demands = append(in.Demand.Demands, asks(text))
			}
			if c.gpu != "" {
				from[gpu] = stock(false, c.gpu).Resource
			}
			if _, no := Plan(in, from); no == nil || no.Reason != c.reason || no.InUse != c.busy {
				t.Errorf("%+v, want %s, busy %v", no, c.reason, c.busy)
			}
		})
	}
}
