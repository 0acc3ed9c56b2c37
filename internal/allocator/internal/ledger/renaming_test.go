package ledger_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/placement"
	"github.com/devmgrd/devmgrd/internal/device"
)

// In worlds of random lists and pods the Node never shows more devices than the listed ones and the unlisted ones in use
// together, counted once, unless the pods on it request more. No device is assigned that is in use under another ID.
func TestRandomWorlds_HardwareIsGivenOnce(t *testing.T) {
	const worlds = 5000
	withheld, first := 0, rand.Uint64() // other worlds in each run
	for n := range uint64(worlds) {
		seed := first + n
		w := newRenaming(seed)
		for step := range 12 {
			did := w.step()
			if err := w.check(); err != nil {
				t.Fatalf("world %d, step %d, %s: %v", seed, step, did, err)
			}
			withheld += w.resource().WithheldCount()
		}
	}
	if withheld == 0 {
		t.Error("no device was ever withheld")
	}
}

const worldly device.ResourceName = "vendor.example/device"

// A renaming is a world of hardware, the names under which a plugin lists it, and pods that hold some of it.
type renaming struct {
	*rand.Rand
	ledger  *ledger.Ledger
	clock   int64
	names   int                 // that have been used
	cards   []string            // the physical devices' names; a card may be unplugged
	hidden  map[string]bool     // cards that the plugin does not list for now
	slices  int                 // replicas of each card; 0: it is not shared
	of      map[device.ID]int   // the hardware that an ID stands for
	cardAt  []int               // the hardware of each card
	known   map[device.ID]int64 // Added of the listed devices
	former  map[device.ID]int64 // Added of formerly listed devices that may return
	listed  map[[2]device.ID]bool
	granted map[device.ID]int64 // when each device in use was granted
	holders map[device.ID]device.PodUID
	pods    int
}

func newRenaming(seed uint64) *renaming {
	w := &renaming{
		Rand: rand.New(rand.NewPCG(seed, 3)), ledger: ledger.New(nil, false, nil), hidden: map[string]bool{}, of: map[device.ID]int{},
		known: map[device.ID]int64{}, former: map[device.ID]int64{}, listed: map[[2]device.ID]bool{},
		granted: map[device.ID]int64{}, holders: map[device.ID]device.PodUID{},
	}
	for i := range 1 + w.IntN(6) {
		w.cards, w.cardAt = append(w.cards, w.name()), append(w.cardAt, i)
	}
	w.list()
	return w
}

func (w *renaming) resource() *ledger.Resource { return w.ledger.Of(worldly) }

func (w *renaming) name() string {
	w.names++
	return fmt.Sprintf("card-%d-%d", w.IntN(10), w.names)
}

func (w *renaming) step() string {
	w.clock += 10
	switch w.IntN(10) {
	case 0:
		for i := range w.cards {
			w.cards[i] = w.name()
		}
		w.list()
		return "all renamed"
	case 1:
		w.slices = []int{0, 2, 3}[w.IntN(3)]
		w.list()
		return fmt.Sprintf("%d replicas of each card", w.slices)
	case 2:
		card := w.cards[w.IntN(len(w.cards))]
		w.hidden[card] = !w.hidden[card]
		w.list()
		return card + " unplugged, or plugged in"
	case 3:
		for _, card := range w.cards {
			w.hidden[card] = true
		}
		w.list()
		clear(w.hidden)
		w.list()
		return "an empty list, and the full one"
	case 4, 5, 6:
		for _, uid := range w.holders {
			w.end(uid)
			return "a pod ends"
		}
		return "no pod to end"
	}
	return w.start(1 + w.IntN(2))
}

// list makes the plugin list its devices. Added is set as in the registry: a returning device keeps its age, unless the
// plugin has listed others under new IDs meanwhile.
func (w *renaming) list() {
	var devices []device.Device
	for i, card := range w.cards {
		if w.hidden[card] {
			continue
		}
		ids := []device.ID{device.ID(card)}
		if w.slices > 0 {
			ids = nil
			for n := range w.slices {
				ids = append(ids, device.ID(fmt.Sprintf("%s::%d", card, n)))
			}
		}
		for _, id := range ids {
			w.of[id] = w.cardAt[i]
			devices = append(devices, device.Device{ID: id, Healthy: true})
		}
	}
	slices.SortFunc(devices, func(a, b device.Device) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	first, fresh, now := len(w.known) == 0 && len(w.former) == 0, false, map[device.ID]int64{}
	for i := range devices {
		id := devices[i].ID
		added, is := w.known[id]
		if !is {
			added, is = w.former[id]
		}
		if !is && !first {
			added, fresh = w.clock, true
		}
		devices[i].Added, now[id] = added, added
	}
	if fresh {
		clear(w.former)
	} else {
		maps.Copy(w.former, w.known)
	}
	w.known = now
	for a := range now {
		for b := range now {
			w.listed[[2]device.ID{a, b}] = true
		}
	}
	r := w.resource()
	r.Accept(device.Offer{Reported: true, State: device.Serving, Inventory: device.Inventory{Resource: worldly, Devices: devices}},
		ledger.NewListing(devices, nil, ledger.Ordering{}, r.Listing()))
	w.withhold()
}

func (w *renaming) withhold() {
	unlisted := map[device.ID]int64{}
	for id, at := range w.granted {
		if _, is := w.known[id]; !is {
			unlisted[id] = at
		}
	}
	w.resource().Withhold(unlisted)
}

func (w *renaming) start(n int) string {
	w.pods++
	uid := device.PodUID(fmt.Sprint(w.pods))
	d := device.PodDemand{Pod: device.Pod{UID: uid}, Admitted: true, Demands: []device.Demand{
		{Container: device.Container{Pod: uid, Name: "main"}, Kind: device.App, Wants: map[device.ResourceName]int{worldly: n}}}}
	got, no := placement.Plan(placement.Input{Demand: d}, placement.Resources{worldly: w.resource()})
	if no != nil {
		return "no room for a pod"
	}
	ids := got.Choices["main"][worldly]
	w.ledger.Request(d, 1)
	for _, id := range ids {
		w.resource().Take(id, uid)
		w.granted[id], w.holders[id] = w.clock, uid
	}
	return fmt.Sprintf("pod %s is given %v", uid, ids)
}

func (w *renaming) end(uid device.PodUID) {
	var ids []device.ID
	for id, holder := range w.holders {
		if holder == uid {
			ids = append(ids, id)
		}
	}
	r := w.resource()
	r.AddRequests(-len(ids))
	r.Release(ids, uid)
	for _, id := range ids {
		delete(w.holders, id)
		delete(w.granted, id)
	}
	w.withhold()
}

// inUse reports whether a pod has the hardware of a device, under an ID that was never listed with it.
func (w *renaming) inUse(id device.ID) bool {
	for held := range w.holders {
		if w.of[held] == w.of[id] && !w.listed[[2]device.ID{held, id}] {
			return true
		}
	}
	return false
}

func (w *renaming) check() error {
	r := w.resource()
	for a, first := range w.holders {
		for b, second := range w.holders {
			if first != second && w.of[a] == w.of[b] && !w.listed[[2]device.ID{a, b}] {
				return fmt.Errorf("pods %s and %s have the same hardware, as %s and as %s", first, second, a, b)
			}
		}
	}
	most := len(w.holders)
	for _, d := range r.Listing().Devices() {
		if _, held := w.holders[d.ID]; !held && !w.inUse(d.ID) {
			most++
		}
	}
	if n := r.Capacity(0, 0, true); n > max(most, r.Admitted()) {
		return fmt.Errorf("the Node shows %d devices, and there are %d", n, most)
	}
	return r.Check()
}
