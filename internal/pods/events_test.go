package pods

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/record"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A pod may have thousands of devices, and the API takes only so much of a text.
func TestEventsAreClipped(t *testing.T) {
	t.Parallel()
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
	many := make([]device.Assignment, 100)
	for i := range many {
		many[i] = as
	}
	events.Assigned(device.Pod{UID: "1"}, many)
	got := strings.TrimPrefix(<-told.Events, "Normal DevicesAssigned ")
	if len(got) > maxMessage || len(got) < maxMessage-10 || !strings.HasSuffix(got, " ...") || strings.ToValidUTF8(got, "") != got {
		t.Errorf("told %d bytes: %q", len(got), got)
	}
}

// Events name a few of many devices, and no character that cannot be seen.
func TestEventsNameDevices(t *testing.T) {
	t.Parallel()
	told := record.NewFakeRecorder(4)
	events := &Events{recorder: told}
	one := func(ids ...device.ID) []device.Assignment {
		return []device.Assignment{{Container: device.Container{Pod: "1", Name: "main"}, Shares: []device.Share{{Resource: "a.com/x", IDs: ids}}}}
	}
	events.Assigned(device.Pod{UID: "1"}, one("a\x1b", "b"))
	events.Assigned(device.Pod{UID: "1"}, one("0", "1", "2", "3", "4", "5", "6", "7", "8"))
	events.Failed(device.Pod{UID: "1"}, "a.com/x", []device.ID{"a\x1b"})
	events.Failed(device.Pod{UID: "1"}, "a.com/x", []device.ID{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"})
	for _, want := range []string{
		`Normal DevicesAssigned container main has a.com/x ["a\x1b" b]`,
		`Normal DevicesAssigned container main has 9 of a.com/x [0 1 2 3 4 5 6 7 ...]`,
		`Warning DeviceFailed device "a\x1b" of a.com/x, which this pod has, is unhealthy, or its plugin has stopped listing it`,
		`Warning DeviceFailed 10 devices of a.com/x, which this pod has, are unhealthy, or their plugin has stopped listing them: 0 1 2 3 4 5 6 7 and 2 more`,
	} {
		if got := <-told.Events; got != want {
			t.Errorf("told %q, want %q", got, want)
		}
	}
}

// The table of events has each event that is sent, and no other, with its type and its objects.
func TestKinds_EachEvent_IsOne(t *testing.T) {
	t.Parallel()
	sent := record.NewFakeRecorder(20)
	sent.IncludeObject = true
	events := &Events{recorder: sent, node: "n"}
	pod := device.Pod{UID: "1", Namespace: "ns", Name: "p"}
	events.Waiting(pod, device.Wait{Reason: device.PluginMissing, Message: "away"})
	events.Assigned(pod, nil)
	events.GivenUp(pod, device.Wait{Reason: device.PluginMissing, Message: "away"}, time.Hour)
	events.Failed(pod, "a.com/x", []device.ID{"0"})
	events.DeviceRefused("a.com/x", "0", "why")
	events.Contradiction(pod, "main", nil)
	events.NotStarted(pod, "main", 4, "why")
	events.StartedWithoutDevices(pod, "main")
	events.NotRedirected(pod, "main")
	events.NotAllowed(pod, "why")
	events.NotAllowed(device.Pod{}, "why")
	events.Contested("a.com/x")
	events.InvalidCordons(errors.New("why"))
	events.NotSynchronized("why")
	close(sent.Events)
	var got []string
	for e := range sent.Events {
		words := strings.Fields(e)
		_, object, _ := strings.Cut(e, "involvedObject{kind=")
		object, _, _ = strings.Cut(object, ",")
		got = append(got, strings.Join([]string{words[1], words[0], object}, " "))
	}
	var want []string
	for _, k := range Kinds() {
		for _, object := range k.Objects {
			want = append(want, strings.Join([]string{k.Reason, k.Type, object}, " "))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("sent %q, the table has %q", got, want)
	}
	if n := reflect.TypeFor[*Events]().NumMethod(); n != 14 {
		t.Errorf("Events has %d methods: does the test call each one that sends?", n)
	}
}
