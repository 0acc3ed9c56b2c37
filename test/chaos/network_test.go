package main

import (
	"errors"
	"os"
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

// A namespace remains if its file does, whatever the DEL has done. That of a pod that is there, and one that is gone, do not count.
func TestRemain_PodIsGone_Counts(t *testing.T) {
	dir := t.TempDir()
	n := newNetworks(filepath.Join(dir, "log"))
	after := func(want bool, pods map[string]bool, what string) {
		t.Helper()
		if err := n.read(); err != nil {
			t.Fatal(err)
		}
		if got := n.remain(pods); got != want {
			t.Errorf("%s: remains: %v, want %v", what, got, want)
		}
	}
	none := map[string]bool{}
	after(false, none, "no network")
	for _, pod := range []string{"a", "b"} {
		v := visit{Command: "ADD", Sandbox: pod, Pod: pod, Namespace: filepath.Join(dir, pod)}
		if err := errors.Join(os.WriteFile(v.Namespace, nil, 0o600), v.noteIn(n.path)); err != nil {
			t.Fatal(err)
		}
	}
	after(false, map[string]bool{"a": true, "b": true}, "both pods are there")
	after(true, map[string]bool{"a": true}, "one pod is gone")
	if err := (visit{Command: "DEL", Sandbox: "b", Pod: "b"}).noteIn(n.path); err != nil {
		t.Fatal(err)
	}
	after(true, map[string]bool{"a": true}, "its DEL has ended")
	if err := os.Remove(filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	after(false, map[string]bool{"a": true}, "its namespace is gone")
	after(true, none, "the other pod is gone too")
	v := visit{Command: "ADD", Sandbox: "c", Pod: "c", Namespace: dir, Foreign: true}
	if err := v.noteIn(n.path); err != nil {
		t.Fatal(err)
	}
	after(false, map[string]bool{"a": true}, "a tenant's pod")
}
