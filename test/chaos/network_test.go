package main

import (
	"path/filepath"
	"testing"
	"time"
)

// A device that another pod has while the network of its former pod is there counts, until the DEL has ended, the power is cut, or the network has
// taken too long. A network that the former pod gets after a power cut does not count.
func TestHandedOn_NetworkIsThere_Counts(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	note := func(command, sandbox, pod string) {
		t.Helper()
		if err := (visit{Command: command, Sandbox: sandbox, Pod: pod}).noteIn(log); err != nil {
			t.Fatal(err)
		}
	}
	said := 0
	start := time.Now()
	fresh := func() *truth {
		said = 0
		return &truth{
			last: map[string]user{}, networks: newNetworks(log),
			say: func(string, string) { said++ }, share: func(string, string, string) bool { return false },
		}
	}
	after := func(of *truth, d time.Duration, want int, what string) {
		t.Helper()
		said = 0
		if err := of.networks.read(); err != nil {
			t.Fatal(err)
		}
		of.last["0"] = user{"a", start}
		of.handedOn(holder{pod: "b"}, "0", start.Add(d))
		of.handedOn(holder{pod: "b"}, "0", start.Add(d))
		if said != want {
			t.Errorf("%s: counted %d times, want %d", what, said, want)
		}
	}
	j := fresh()
	after(j, time.Second, 0, "no network")
	note("ADD", "s", "a")
	after(j, time.Second, 1, "a network")
	after(j, networkLimit, 0, "a network that takes too long")
	j.forgetHands()
	after(j, time.Second, 0, "a network of before the power cut")
	said, j.last["0"] = 0, user{"a", start}
	j.forgetHands()
	note("ADD", "again", "a")
	if err := j.networks.read(); err != nil {
		t.Fatal(err)
	}
	j.handedOn(holder{pod: "b"}, "0", start.Add(time.Second))
	if said != 0 {
		t.Error("a network of after the power cut counts for a device of before")
	}
	note("DEL", "again", "a")
	j = fresh()
	note("ADD", "t", "a")
	note("DEL", "s", "a")
	after(j, time.Second, 1, "one of two networks")
	note("DEL", "t", "a")
	after(j, time.Second, 0, "a network that was removed")
}
