package placement

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/device"
)

// inOrder sets the ordering of a resource, written like "pack" or "spread ^(.*)::".
func inOrder(s stocked, text string) stocked {
	order, expression, _ := strings.Cut(text, " ")
	o := ledger.Ordering{Order: ledger.Order(order)}
	if expression != "" {
		o.Group = regexp.MustCompile(expression)
	}
	s.ledger.SetListing(gpu, ledger.NewListing(s.Listing().Devices(), s.Listing().Cordons(), o, nil))
	return s
}

const (
	replica = " ^(.*)::"
	// Three cards with three replicas each; of the first one is free, of the second two.
	cards = "a::0* a::1* a::2 b::0* b::1 b::2 c::0 c::1 c::2"
)

func TestOrder(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		order, gpu, pod string
		policy          Policy
		advice          []device.ID
		want            string
	}{
		"lowest, one":                                   {"lowest", cards, "main gpu=1", NoPolicy, nil, "a::2"},
		"lowest has no groups":                          {"lowest" + replica, cards, "main gpu=2", NoPolicy, nil, "a::2,b::1"},
		"pack, one: the fullest card":                   {"pack" + replica, cards, "main gpu=1", NoPolicy, nil, "a::2"},
		"pack, two: the smallest card that has two":     {"pack" + replica, cards, "main gpu=2", NoPolicy, nil, "b::1,b::2"},
		"pack, three: the only card that has three":     {"pack" + replica, cards, "main gpu=3", NoPolicy, nil, "c::0,c::1,c::2"},
		"pack, four: a whole card, and the fullest one": {"pack" + replica, cards, "main gpu=4", NoPolicy, nil, "a::2,c::0,c::1,c::2"},
		"pack, all":                                   {"pack" + replica, cards, "main gpu=6", NoPolicy, nil, "a::2,b::1,b::2,c::0,c::1,c::2"},
		"spread, one: the emptiest card":              {"spread" + replica, cards, "main gpu=1", NoPolicy, nil, "c::0"},
		"spread, two: two cards":                      {"spread" + replica, cards, "main gpu=2", NoPolicy, nil, "b::1,c::0"},
		"spread, three: three cards":                  {"spread" + replica, cards, "main gpu=3", NoPolicy, nil, "a::2,b::1,c::0"},
		"spread, four: the emptiest again":            {"spread" + replica, cards, "main gpu=4", NoPolicy, nil, "a::2,b::1,c::0,c::1"},
		"the whole match is a group too":              {"spread ^[a-z]", cards, "main gpu=2", NoPolicy, nil, "b::1,c::0"},
		"no match: a group of its own":                {"pack" + replica, "x y a::0 a::1", "main gpu=2", NoPolicy, nil, "a::0,a::1"},
		"an optional parenthesis, no match":           {"pack ^(x)?", "a x1 x2 b", "main gpu=2", NoPolicy, nil, "a,b"},
		"unhealthy ones do not count":                 {"pack" + replica, "a::0! a::1 b::0 b::1", "main gpu=1", NoPolicy, nil, "a::1"},
		"pack by NUMA node, no policy":                {"pack", "a@0 b@0 c@1* d@1", "main gpu=1", NoPolicy, nil, "d"},
		"pack by NUMA node":                           {"pack", "a@0 b@0 c@1* d@1", "main gpu=1", BestEffort, nil, "d"},
		"pack keeps the larger node whole":            {"pack", "a@0 b@0 c@0 d@0 e@1 f@1 g@1", "main gpu=2", SingleNUMA, nil, "e,f"},
		"spread by NUMA node":                         {"spread", "a@0* b@0 c@1 d@1", "main gpu=1", BestEffort, nil, "c"},
		"spread away from what an init container had": {"spread" + replica, "a::0 a::1 a::2 a::3 b::0 b::1", "init:i gpu=1|main gpu=2", NoPolicy, nil, "i gpu:a::0 | main gpu:a::0,b::0"},
		"alignment comes before spread":               {"spread", "a@0* b@0 c@1 d@1", "main gpu=2", BestEffort, nil, "c,d"},
		"spread within a NUMA node":                   {"spread" + replica, "a::0@0 a::1@0 b::0@0 c::0@1", "main gpu=2", SingleNUMA, nil, "a::0,b::0"},
		"no device has a NUMA node":                   {"pack", "a b c", "main gpu=2", BestEffort, nil, "a,b"},
		"the plugin's preference first":               {"spread" + replica, cards, "main gpu=2", NoPolicy, []device.ID{"c::0", "c::1"}, "c::0,c::1"},
		"a useless preference":                        {"spread" + replica, cards, "main gpu=2", NoPolicy, []device.ID{"x"}, "b::1,c::0"},
		"too few":                                     {"pack" + replica, cards, "main gpu=7", NoPolicy, nil, "NotEnoughDevices"},
	} {
		t.Run(name, func(t *testing.T) {
			in := Input{Topology: Topology{Policy: c.policy}}
			in.Demand = device.PodDemand{Pod: device.Pod{UID: "pod"}}
			for text := range strings.SplitSeq(c.pod, "|") {
				in.Demand.Demands = append(in.Demand.Demands, asks(text))
			}
			if c.advice != nil {
				in.Preferences = Preferences{{"main", gpu}: c.advice}
			}
			got := strings.TrimPrefix(told(Plan(in, Resources{gpu: inOrder(stock(c.advice != nil, c.gpu), c.order).Resource})), "main gpu:")
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// Devices go round: the one that was released last comes last, also when the plugin's list has been empty meanwhile.
func TestOrder_Oldest_DevicesGoRound(t *testing.T) {
	t.Parallel()
	s := inOrder(stock(false, "a b c d"), "oldest")
	take := func(n int) string {
		in := Input{Demand: device.PodDemand{Pod: device.Pod{UID: "pod"}, Demands: []device.Demand{asks(fmt.Sprintf("main gpu=%d", n))}}}
		result, no := Plan(in, Resources{gpu: s.Resource})
		if no != nil {
			t.Fatal(no)
		}
		ids := result.Choices["main"][gpu]
		if why := result.Why["main"][gpu]; why.Order != "oldest" {
			t.Errorf("%+v", why)
		}
		hold(s.ledger, gpu, ids, "pod")
		return join(ids)
	}
	release := func(ids ...device.ID) {
		s.ledger.Release("pod", ledger.Devices{gpu: ids})
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
	}
	got := take(1) // a
	release("a")
	got += " " + take(2) // b,c
	release("c")
	release("b")
	got += " " + take(2) // a,d: d has never been used
	release("d", "a")
	full := s.Listing()
	for _, devices := range [][]device.Device{nil, full.Devices()} {
		s.ledger.SetListing(gpu, ledger.NewListing(devices, nil, full.Ordering(), s.Listing()))
	}
	got += " " + take(3) // c, b, d
	if want := "a b,c a,d b,c,d"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// BenchmarkOrder measures a plan for one pod, on a node with 50 000 free devices.
func BenchmarkOrder(b *testing.B) {
	var text strings.Builder
	for i := range 50_000 {
		fmt.Fprintf(&text, "gpu-%05d::%d@%d ", i/4, i%4, i%2)
	}
	for _, order := range []string{"lowest", "pack" + replica, "spread" + replica, "oldest"} {
		for _, n := range []int{1, 8, 1000} {
			b.Run(fmt.Sprintf("%s/devices=%d", strings.Fields(order)[0], n), func(b *testing.B) {
				s := inOrder(stock(false, text.String()), order)
				in := Input{Demand: device.PodDemand{Pod: device.Pod{UID: "pod"}, Demands: []device.Demand{asks(fmt.Sprintf("main gpu=%d", n))}}}
				for b.Loop() {
					if _, no := Plan(in, Resources{gpu: s.Resource}); no != nil {
						b.Fatal(no)
					}
				}
			})
		}
	}
}

// One by one, as the scheduler takes devices from a list.
func TestOrder_OneByOne(t *testing.T) {
	t.Parallel()
	for order, want := range map[string]string{
		"":                "",
		"pack":            "x@2 a@0 b@0 p@1 q@1 r@1",
		"spread":          "p@1 a@0 x@2 q@1 b@0 r@1",
		"spread ^(.*)::":  "a@0 b@0 p@1 q@1 r@1 x@2", // no ID has the mark: each is a group
		"oldest":          "b@0 p@1 q@1 r@1 x@2 a@0",
		"oldest, refused": "p@1 q@1 r@1 x@2 a@0 b@0",
	} {
		t.Run(order, func(t *testing.T) {
			text, refused := strings.CutSuffix(order, ", refused")
			s := inOrder(stock(false, "a@0 b@0 c@0* p@1 q@1 r@1 x@2 y@2!"), text)
			hold(s.ledger, gpu, []device.ID{"a"}, "pod")
			s.ledger.Release("pod", ledger.Devices{gpu: {"a"}})
			if refused {
				s.ledger.Refuse(gpu, "b", 1, "no", ledger.Denied, time.Now())
			}
			var got []string
			for _, id := range Order(s.Resource) {
				d, _ := s.Listing().Find(id)
				got = append(got, fmt.Sprintf("%s@%d", id, d.NUMA[0]))
			}
			if text := strings.Join(got, " "); text != want {
				t.Errorf("%s, want %s", text, want)
			}
		})
	}
}

// A container that requests as many replicas as there are GPUs with free ones takes as many devices from the list, and gets one replica of each GPU,
// however many are free: docs/dra.md, "Time slicing".
func TestOrder_SpreadReplicas_ContainerTakesDifferentGPUs(t *testing.T) {
	t.Parallel()
	for text, gpus := range map[string]int{
		"a::0 a::1 a::2 b::0 b::1 b::2":             2, // as many of each
		"a::0* a::1* a::2 b::0 b::1 b::2":           2,
		"a::0* a::1 a::2 b::0* b::1 b::2 c::0 c::1": 3,
		cards: 3,
		"a::0* a::1* a::2* b::0 b::1 b::2 c::0* c::1*": 1,
	} {
		s := inOrder(stock(false, text), "spread"+replica)
		var from []string
		for _, id := range Order(s.Resource)[:gpus] {
			gpu, _, _ := strings.Cut(string(id), "::")
			if slices.Contains(from, gpu) {
				t.Errorf("%s: the first %d are %v", text, gpus, Order(s.Resource)[:gpus])
				break
			}
			from = append(from, gpu)
		}
	}
}
