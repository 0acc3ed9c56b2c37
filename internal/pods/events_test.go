package pods

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/client-go/tools/record"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A pod may have thousands of devices, and the API takes only so much of a text.
func TestEventsAreClipped(t *testing.T) {
	told := record.NewFakeRecorder(2)
	events := &Events{recorder: told}
	var ids []device.ID
	for i := range 1000 {
		ids = append(ids, device.ID(fmt.Sprintf("gerät-%03d", i)))
	}
	as := device.Assignment{Container: device.Container{Pod: "1", Name: "main"}, Shares: []device.Share{{Resource: "a.com/x", IDs: ids[:2]}}}
	events.Assigned(device.Pod{UID: "1"}, []device.Assignment{as})
	if got, want := <-told.Events, "Normal DevicesAssigned container main has a.com/x [gerät-000 gerät-001]"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
	as.Shares[0].IDs = ids
	events.Assigned(device.Pod{UID: "1"}, []device.Assignment{as})
	got := strings.TrimPrefix(<-told.Events, "Normal DevicesAssigned ")
	if len(got) > maxMessage || len(got) < maxMessage-10 || !strings.HasSuffix(got, " ...") || strings.ToValidUTF8(got, "") != got {
		t.Errorf("told %d bytes: %q", len(got), got)
	}
}
