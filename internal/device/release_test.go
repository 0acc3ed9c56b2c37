package device_test

import (
	"testing"
	"unicode/utf8"

	"github.com/devmgrd/devmgrd/internal/device"
)

func TestRelease_String(t *testing.T) {
	for want, r := range map[string]device.Release{
		"nothing is known":                                          {Why: "nothing is known"},
		"process 7 (trainer) has /dev/gpu0 open":                    {Why: "x", Holders: []device.Process{{PID: 7, Command: "trainer", Holds: "has /dev/gpu0 open"}}},
		"process 7 (a) of pod lab/nb holds":                         {Holders: []device.Process{{PID: 7, Command: "a", Pod: device.Pod{Namespace: "lab", Name: "nb", UID: "1"}, Holds: "holds"}}},
		"process 7 (a) of the pod with UID 1 holds":                 {Holders: []device.Process{{PID: 7, Command: "a", Pod: device.Pod{UID: "1"}, Holds: "holds"}}},
		"process 7 (\uFFFD[2J\uFFFD) holds":                         {Holders: []device.Process{{PID: 7, Command: "\x1b[2J\xe2\x82", Holds: "holds"}}},
		"other processes have /dev/gpu0 open, too many to name":     {Holders: []device.Process{{Holds: "have /dev/gpu0 open, too many to name"}}},
		"process 1 (a) h, process 2 (a) h, process 3 (a) h, 1 more": {Holders: []device.Process{{PID: 1, Command: "a", Holds: "h"}, {PID: 2, Command: "a", Holds: "h"}, {PID: 3, Command: "a", Holds: "h"}, {PID: 4, Command: "a", Holds: "h"}}},
	} {
		if got := r.String(); got != want || !utf8.ValidString(got) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
