package ledger

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
)

// knownPods are the allocator of a Ledger: pods' assignments, and how often it has been told of free devices.
type knownPods struct {
	assigned map[device.PodUID][]device.Assignment
	freed    int
}

func (k *knownPods) Assigned(uid device.PodUID) []device.Assignment { return k.assigned[uid] }
func (k *knownPods) Unused(device.PodUID, string) bool              { return false }
func (k *knownPods) MayRun(device.PodUID) bool                      { return false }
func (k *knownPods) Freed(device.ResourceName)                      { k.freed++ }

// The plugin has renamed devices while two pods' attempts hold some. The one for a new ID fails while that ID is withheld because of the other one.
// When the other one's grant turns out to be of a list that had the new ID already, the allocator hears that it is free.
func TestWithhold_ReleasedWhileWithheld_IsFreedLater(t *testing.T) {
	const r device.ResourceName = "vendor.example/device"
	pods := &knownPods{assigned: map[device.PodUID][]device.Assignment{}}
	l := New(pods, false, slog.New(slog.DiscardHandler))
	list := func(devices ...device.Device) {
		before := l.Of(r).Listing()
		listing := NewListing(devices, nil, Ordering{}, before)
		l.Accept(r, device.Offer{Reported: true, State: device.Serving, Inventory: device.Inventory{Resource: r, Devices: devices}}, listing, listing.Changed(before))
	}
	former, next := device.Device{ID: "former", Healthy: true}, device.Device{ID: "next", Healthy: true, Added: 5}
	list(former, next)
	l.Hold("a", map[string]device.Choice{"main": {r: {"former"}}})
	failing := l.Hold("b", map[string]device.Choice{"main": {r: {"next"}}})
	list(next)
	l.EndHold("b", failing)
	if n := l.Resources[r].FreeCount(); n != 0 {
		t.Fatalf("%d devices are free while the time of a grant is not known", n)
	}
	pods.assigned["a"] = []device.Assignment{{
		Container: device.Container{Pod: "a", Name: "main"}, Shares: []device.Share{{Resource: r, IDs: []device.ID{"former"}, At: 6}},
	}}
	l.Withhold(r)
	if n := l.Resources[r].FreeCount(); n != 1 || pods.freed != 1 {
		t.Errorf("%d devices are free, and the allocator has heard it %d times; want 1 and 1", n, pods.freed)
	}
}

// A list names the devices in use to look at: those that it changes, and all after an absence of the plugin.
func TestAccept_DevicesInUse_OnlyChangedOnesAreExamined(t *testing.T) {
	const r device.ResourceName = "vendor.example/device"
	l := New(&knownPods{}, false, slog.New(slog.DiscardHandler))
	healthy := make([]bool, 100)
	list := func(n int, state device.OfferState) (looks int) {
		devices := make([]device.Device, n)
		for i := range devices {
			devices[i] = device.Device{ID: device.ID(fmt.Sprintf("%03d", i)), Healthy: healthy[i]}
		}
		before := l.Of(r).Listing()
		listing := NewListing(devices, nil, Ordering{}, before)
		for range l.Accept(r, device.Offer{Reported: true, State: state, Listed: 1}, listing, listing.Changed(before)) {
			looks++
		}
		return looks
	}
	var used []device.ID
	for i := range 50 {
		used = append(used, device.ID(fmt.Sprintf("%03d", i)))
	}
	l.Recall("pod", Devices{r: used}, false)
	is := func(what string, got, want int) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %d devices are examined, want %d", what, got, want)
		}
	}
	is("the first list", list(100, device.Serving), 50)
	is("the same list", list(100, device.Serving), 0)
	healthy[7], healthy[8], healthy[70] = true, true, true
	is("two in use change", list(100, device.Serving), 2)
	is("two leave the list", list(48, device.Serving), 2)
	if !l.Resources[r].Broken("049") {
		t.Error("a device in use has left the list, and is not broken")
	}
	is("and are back", list(100, device.Serving), 2)
	list(100, device.Stale)
	is("the plugin was away", list(100, device.Serving), 50)
}
