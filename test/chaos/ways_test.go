package main

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/node"
)

// However a pod asks for devices, its containers ask for as many as were drawn, and for those of an earlier pod's claim.
func TestDraws_Ways_AskForAsManyDevices(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(3000) {
		w := &world{plan: plan{claims: true}, offered: seed%3 > 0, claimed: map[int][]string{1: {"one"}, 2: {"two"}}}
		w.kinds, w.ways = rand.New(rand.NewPCG(seed, 3)), rand.New(rand.NewPCG(seed, 4))
		devices := 1 + int(seed)%deviceCount
		s := w.draws(devices)
		pod := node.Pod("a", resourceName, 1, "sleep")
		s.shapes(pod)
		joined := 0
		if s.claim == shared {
			joined = s.claimed()
		}
		if sum := int(wants(pod)); sum != devices && sum != devices+joined {
			t.Errorf("seed %d: %d devices of %d: %+v", seed, sum, devices, s)
		}
		if s.claim == requests != (s.claimed() == 0) || !w.offered && slices.ContainsFunc(s.containers, func(y way) bool { return y.class > 0 }) {
			t.Errorf("seed %d: %+v", seed, s)
		}
		for _, y := range s.containers {
			if y.name > 0 && y.claim > 0 {
				seen["name and claim"]++
			}
			if y.name > 0 && y.class > 0 {
				seen["both names"]++
			}
			if y.class > 0 && y.claim > 0 {
				seen["class and claim"]++
			}
			if y.class == devices {
				seen["class"]++
			}
		}
		seen["containers"] += len(s.containers) - 1
	}
	if len(seen) < 5 || slices.ContainsFunc([]string{"name and claim", "both names", "class and claim", "class", "containers"}, func(what string) bool { return seen[what] < 50 }) {
		t.Errorf("of 3000 pods %v", seen)
	}
}

// A pod that uses an earlier pod's claim and requests devices besides takes only those, when the claim has its own.
func TestTakes_ClaimAndRequest_OnlyTheRequest(t *testing.T) {
	w := &world{uses: map[string]string{"a": "claim"}, sizes: map[string]int{"claim": 2}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{}}}}
	shape{containers: []way{{claim: 2}, {name: 1}}, claim: shared}.shapes(pod)
	if first, later := w.takes(pod, map[string]bool{}), w.takes(pod, map[string]bool{"claim": true}); first != 3 || later != 1 {
		t.Errorf("the pod takes %d devices, and %d when another one has the claim; want 3 and 1", first, later)
	}
}

func TestNamed_Fits_TheClaimsDevicesAndOthers(t *testing.T) {
	n := named{ids: []string{"dev-1"}, besides: 1}
	for _, test := range []struct {
		has  []string
		want bool
	}{{[]string{"dev-2", "dev-1"}, true}, {[]string{"dev-1"}, false}, {[]string{"dev-2", "dev-3"}, false}, {[]string{"dev-1", "dev-2", "dev-3"}, false}} {
		if got := n.fits(test.has); got != test.want {
			t.Errorf("%v: %v, want %v", test.has, got, test.want)
		}
	}
}

// The number leaves the Node while a plugin serves, or while slices cannot be written: that counts after 3 s. Where no plugin serves, where the
// resource is offered through DRA, or where devmgrd has started again meanwhile, it may leave. After an outage it may be 0 for a while.
func TestStays_NumberLeaves_Counts(t *testing.T) {
	start := time.Now()
	for _, test := range []struct {
		what                  string
		awake, pinned, slices bool
		usable                int64
		there                 bool
		shown                 int64
		want                  int
		before, outOfService  bool
		restarts              int
		outage                bool // the API server was away
	}{
		{what: "it leaves", awake: true, usable: 4, before: true, want: 1},
		{what: "it is 0", awake: true, usable: 4, before: true, there: true, want: 1},
		{what: "it leaves after an outage", awake: true, usable: 4, before: true, outage: true, want: 1},
		{what: "it is 0 after an outage", awake: true, usable: 4, before: true, there: true, outage: true},
		{what: "it is 0, and devices are out of service", awake: true, usable: 4, before: true, there: true, outOfService: true},
		{what: "it has not been there yet", awake: true, usable: 4},
		{what: "no plugin serves", usable: 4, before: true},
		{what: "no device is usable", awake: true, before: true},
		{what: "the resource is in slices", awake: true, usable: 4, before: true, slices: true},
		{what: "slices cannot be written", awake: true, usable: 4, before: true, slices: true, pinned: true, want: 1},
		{what: "slices can be written again", awake: true, usable: 4, before: true, slices: true},
		{what: "slices cannot be written, and devmgrd was killed", awake: true, usable: 4, before: true, slices: true, pinned: true, restarts: 1},
		{what: "devmgrd was killed, and is back before anyone could look", awake: true, usable: 4, before: true, restarts: 1},
		{what: "it is there", awake: true, usable: 4, before: true, there: true, shown: 1},
	} {
		said := 0
		is := func(value bool) func() bool { return func() bool { return value } }
		v := &apiView{
			say: func(string, string) { said++ }, awake: is(test.awake), pinned: is(test.pinned), slices: is(test.slices),
			publisher: func() int { return 0 },
		}
		if test.before {
			v.awake, v.slices = is(true), is(false)
			v.stays(4, true, nil, 4, false, start)
			v.awake, v.slices = is(test.awake), is(test.slices)
			v.publisher = func() int { return test.restarts }
		}
		if test.outage {
			v.blind(start)
		}
		for i := range 10 {
			v.stays(test.shown, test.there, nil, test.usable, test.outOfService, start.Add(time.Duration(1+2*i)*time.Second))
		}
		if said != test.want {
			t.Errorf("%s: counted %d times, want %d", test.what, said, test.want)
		}
	}
}

// What was seen before an outage of the API server does not count after it, and devmgrd has to find it again first.
func TestStays_Outage_CountsAnew(t *testing.T) {
	start, said := time.Now(), 0
	yes, no := func() bool { return true }, func() bool { return false }
	v := &apiView{say: func(string, string) { said++ }, awake: yes, pinned: no, slices: no, publisher: func() int { return 0 }}
	v.stays(4, true, nil, 4, false, start)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	v.stays(0, false, nil, 4, false, at(1))
	v.blind(at(20))
	for s := 21; s <= 29; s++ {
		v.stays(0, false, nil, 4, false, at(s))
	}
	if said != 0 {
		t.Error("counted before devmgrd can have found the API server, and 3 s more have gone by")
	}
	v.stays(0, false, nil, 4, false, at(30))
	if said != 1 {
		t.Errorf("counted %d times after that, want once", said)
	}
}

// The trials do not depend on each other, and those that need devmgrd are not played without it.
func TestTrials_Seeds_EachInSome(t *testing.T) {
	count := map[string]int{}
	for seed := range uint64(1000) {
		p := newPlan(seed, false, false)
		all := newTrials(seed, p, false)
		for name, dice := range map[string]*rand.Rand{
			"ways": all.ways, "surge": all.surge, "free": all.free, "rival": all.rival, "blocks": all.blocks, "long": all.long, "network": all.network,
		} {
			if dice != nil {
				count[name]++
			}
		}
		if k := newTrials(seed, newPlan(seed, true, false), true); k.ways != nil || k.blocks != nil || k.long != nil {
			t.Errorf("seed %d against the kubelet: %+v", seed, k)
		}
	}
	for name, least := range map[string]int{"ways": 270, "surge": 270, "free": 200, "rival": 200, "blocks": 200, "long": 130, "network": 270} {
		if count[name] < least {
			t.Errorf("%s in %d of 1000 sequences", name, count[name])
		}
	}
}
