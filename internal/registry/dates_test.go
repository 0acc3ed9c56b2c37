package registry_test

import (
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// listedBefore is what the allocator records as Share.At of a grant: the highest date of the list from which the device was chosen.
func listedBefore(o device.Offer) int64 {
	n := int64(1)
	for _, d := range o.Inventory.Devices {
		n = max(n, d.Added)
	}
	return n
}

// devmgrd is killed after a second plugin, which names the hardware otherwise, has begun to serve and a pod got a device of it. The pod's record is
// durable, the plugin's list is not: the allocator sees that by the date of the grant.
func TestDates_KilledBeforeTheListIsSaved_GrantIsNewerThanTheRecord(t *testing.T) {
	t.Parallel()
	first := start(t)
	first.instance(t, "old")
	first.eventually("the old one serves", first.serves("old"))
	recorded := func() bool { r, ok := first.memory.last(); return ok && r.Reported && len(r.Devices) == 1 }
	first.eventually("it is recorded", recorded)
	onDisk, _ := first.memory.last() // the next one would be written within a second
	earlier := listedBefore(first.offer())
	fresh := first.instance(t, "fresh")
	first.eventually("the new one serves", first.serves("fresh"))
	granted := listedBefore(first.offer())
	fresh.Kill()
	first.stop()
	second := prepare(t, at(first.dir), known(onDisk))
	if newest := second.offer().Newest; newest < earlier || newest >= granted {
		t.Errorf("the newest date of the record is %d; an earlier grant has %d, and that by the lost list %d", newest, earlier, granted)
	}
	second.run()
	second.eventually("the old one serves", second.serves("old"))
}

// A plugin that has never listed its devices, as far as the record says, has granted by a list that was lost.
func TestDates_KilledBeforeTheFirstListIsSaved_GrantIsNewerThanTheRecord(t *testing.T) {
	t.Parallel()
	f := prepare(t, known(device.PluginRecord{Resource: gpu, Endpoint: "x.sock"}))
	if newest := f.offer().Newest; newest != 0 {
		t.Errorf("the newest date is %d", newest)
	}
	f.run()
	f.instance(t, "x")
	f.eventually("it serves", f.serves("x"))
	if newest := f.offer().Newest; newest != 1 {
		t.Errorf("the newest date is %d after the first list, whose devices have none", newest)
	}
}

// The device with the newest date is listed no longer when devmgrd restarts, and the clock has been set back by an hour.
func TestDates_ClockSetBackOverARestart_NewDeviceIsNewerThanTheGrant(t *testing.T) {
	t.Parallel()
	first := start(t)
	p := first.instance(t, "x")
	first.eventually("it serves", first.serves("x"))
	p.Set(plugintest.Dev("x", plugintest.Healthy), plugintest.Dev("y", plugintest.Healthy))
	first.eventually("y is new", first.serves("x", "y"))
	granted := listedBefore(first.offer()) + int64(time.Hour) // a pod gets y. All that is recorded is an hour ahead, instead of the clock an hour back
	p.Set(plugintest.Dev("x", plugintest.Healthy))
	first.eventually("y is gone", first.serves("x"))
	first.stop()
	onDisk, _ := first.memory.last()
	onDisk.Newest += int64(time.Hour)
	second := start(t, at(first.dir), known(onDisk))
	second.eventually("it serves", second.serves("x"))
	p.Set(plugintest.Dev("x", plugintest.Healthy), plugintest.Dev("z", plugintest.Healthy)) // y under another name
	second.eventually("z is new", second.serves("x", "z"))
	if d := second.offer().Inventory.Devices[1]; d.Added <= granted {
		t.Errorf("device %s was listed after the grant and has the date %d, and the grant %d: it is not withheld", d.ID, d.Added, granted)
	}
}
