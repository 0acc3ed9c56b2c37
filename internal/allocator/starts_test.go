package allocator

import (
	"testing"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/containers"
	"github.com/devmgrd/devmgrd/internal/device"
)

// A container is barred before its start is let pass, or starts before it is barred.
func TestStarts_BarredOrPassed_NeverBoth(t *testing.T) {
	t.Parallel()
	var s starts
	pod := containers.Pod{"1": {}, "2": {}}
	if !s.pass("1") || s.bar(pod) {
		t.Error("a container is barred whose start was let pass")
	}
	if !s.bar(nil) {
		t.Error("a pod without containers waits for another pod's start")
	}
	s.recorded()
	if !s.bar(pod) || s.pass("1") || s.pass("2") {
		t.Error("the start of a barred container is let pass")
	}
	s.forget("1")
	if !s.pass("1") {
		t.Error("a container that is gone is still in question")
	}
	s.recorded()
	stamp := device.Choice{"vendor.com/gpu": {"d0"}}
	s.listed([]device.Running{{ID: "2", Idle: true}, {ID: "3", Idle: true}, {ID: "4", Idle: true, Stamp: stamp}, {ID: "5", Stamp: stamp}})
	for id, want := range map[string]bool{"2": false, "3": true, "4": false, "5": true} {
		if got := s.pass(id); got != want {
			t.Errorf("container %s is let pass: %v, want %v", id, got, want)
		}
	}
	s.listed([]device.Running{{ID: "2"}})
	if !s.pass("2") || len(s.question) != 0 {
		t.Errorf("in question are %v after a list of one that runs", s.question)
	}
}
