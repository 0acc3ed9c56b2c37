package nodestatus

import (
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A number is contested when it has been changed three times with little time between, and until there was peace for a while.
func TestContested(t *testing.T) {
	t.Parallel()
	const gpu, nic device.ResourceName = "a.example/gpu", "a.example/nic"
	now := time.Unix(0, 0)
	v := &contention{now: func() time.Time { return now }}
	for i, step := range []struct {
		after     time.Duration
		changed   device.ResourceName // "": none
		contested int
	}{
		{0, gpu, 0},
		{contentionWindow, gpu, 0},
		{contentionWindow + time.Second, gpu, 0}, // so long after the last one it is the first
		{time.Second, nic, 0},
		{time.Second, gpu, 0},
		{time.Second, gpu, 1},
		{time.Second, gpu, 1},
		{contentionWindow, "", 1},
		{time.Second, "", 0},
		{0, gpu, 0},
	} {
		now = now.Add(step.after)
		if step.changed != "" {
			v.record(step.changed)
		}
		if got := v.contested(); len(got) != step.contested || len(got) == 1 && got[0] != gpu {
			t.Errorf("step %d: contested are %v", i, got)
		}
	}
	if len(v.overwritten) != 1 {
		t.Errorf("it remembers %v", v.overwritten)
	}
}
