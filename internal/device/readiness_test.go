package device

import "testing"

func TestWait_Same_CountsAndTimesMayDiffer(t *testing.T) {
	const message = "a.example/gpu-1: 2 wanted, 1 of 8 free, 1 suspended until 2026-01-02T13:02:00Z"
	for other, same := range map[string]bool{
		message: true,
		"a.example/gpu-1: 2 wanted, 0 of 8 free, 2 suspended until 2026-01-02T13:04:00Z":             true,
		"a.example/gpu-2: 2 wanted, 1 of 8 free, 1 suspended until 2026-01-02T13:02:00Z":             false,
		"a.example/gpu-1: 2 wanted, 1 of 8 free":                                                     false,
		"a.example/gpu-1: 2 wanted, 1 of 8 free, 1 cordoned, 1 suspended until 2026-01-02T13:02:00Z": false,
	} {
		if got := (Wait{Reason: NotEnoughDevices, Message: message}).Same(Wait{Reason: NotEnoughDevices, Message: other}); got != same {
			t.Errorf("%q: the same is %v, want %v", other, got, same)
		}
	}
	if (Wait{Reason: HostDeviceMissing, Message: "/dev/x1"}).Same(Wait{Reason: HostDeviceMissing, Message: "/dev/x2"}) {
		t.Error("two waits for devices of the host are the same")
	}
}
