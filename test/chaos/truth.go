package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/devmgrd/devmgrd/test/cluster"
)

// A holder is one process of a container of the tests.
type holder struct {
	pid       int
	started   string // with the pid, what makes it one process
	pod       string
	container string
	wants     int
	has       []string
}

// holders returns all processes that run in containers of the tests, with the devices that they really have.
func holders() []holder {
	var all []holder
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if h, ok := look(pid); ok {
			all = append(all, h)
		}
	}
	return all
}

// look reads what a process has. It returns false if it is none of a container of the tests, or has ended.
func look(pid int) (holder, bool) {
	dir := fmt.Sprintf("/proc/%d", pid)
	env, err := os.ReadFile(dir + "/environ")
	if err != nil || !bytes.Contains(env, []byte(podVariable+"=")) {
		return holder{}, false
	}
	h := holder{pid: pid, started: startOf(pid)}
	for v := range strings.SplitSeq(string(env), "\x00") {
		name, value, _ := strings.Cut(v, "=")
		switch name {
		case podVariable:
			h.pod = value
		case containerVariable:
			h.container = value
		case wantsVariable:
			h.wants, _ = strconv.Atoi(value)
		case devicesVariable:
			for id := range strings.SplitSeq(value, ",") {
				if _, err := os.Lstat(filepath.Join(dir, "root/dev/chaos-"+id)); err == nil {
					h.has = append(h.has, id)
				}
			}
		}
	}
	return h, h.pod != "" && h.started != "" && h.started == startOf(pid)
}

// startOf returns when a process started, in the kernel's words; "" if it has ended.
func startOf(pid int) string {
	if fields := stat(pid); len(fields) >= 20 && fields[0] != "Z" && fields[0] != "X" {
		return fields[19]
	}
	return ""
}

// stat returns what the kernel says of a process, from its state on; nothing if it has ended.
func stat(pid int) []string {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	_, rest, _ := strings.Cut(string(line), ") ") // the name may hold anything but that
	return strings.Fields(rest)
}

// awake reports whether a process runs and is not frozen.
func awake(p *cluster.Process) bool {
	fields := stat(p.Pid())
	return p.Running() && len(fields) > 0 && fields[0] != "T"
}

func (h holder) alive() bool { return startOf(h.pid) == h.started }

// bareLimit is how long a container may run without its devices before that counts. It covers two looks.
const bareLimit = time.Second

// A truth watches what containers really have.
type truth struct {
	bare map[string]time.Time // since when, by process
	had  map[string]had       // by container: the devices of its first process; later ones have the same
	told map[string]bool      // what has been counted
	last map[string]user      // by hardware
	boot func() int64         // world.boots
	say  func(kind, what string)

	holds     func() []hold
	forbidden func(id, pod string, now time.Time) time.Time
	claims    *claimView // nil: there are none
	share     func(pod, other, id string) bool
	networks  *networks
	booted    int64
}

// A user is the pod that has had a device last.
type user struct {
	pod  string
	seen time.Time
}

// A had is what a pod's containers had last, and in which boot.
type had struct {
	ids  string
	boot int64
}

// renamed reports whether a container has other devices with reason: the machine was booted, and the plugin lists none of the
// former IDs.
func (h had) renamed(now had) bool {
	names := func(ids string) string { name, _, _ := strings.Cut(ids, "-dev-"); return name }
	return now.boot != h.boot && names(now.ids) != names(h.ids)
}

func newTruth(w *world) *truth {
	return &truth{
		bare: map[string]time.Time{}, had: map[string]had{}, told: map[string]bool{}, last: map[string]user{}, networks: newNetworks(networkLog), boot: w.boots.Load, say: w.say,
		holds: w.openHolds, forbidden: w.forbidden, claims: w.claims, share: w.share,
	}
}

// look looks once.
func (t *truth) look(now time.Time) {
	boot, all := t.boot(), holders()
	if boot%2 == 1 || t.boot() != boot {
		return // the power is cut, or was while it looked
	}
	if err := t.networks.read(); err != nil {
		t.say(networked, err.Error())
	}
	if boot != t.booted {
		t.forgetHands()
		t.booted = boot
	}
	holds := t.holds()
	owner := map[string]holder{}
	seen := map[string]bool{}
	for _, h := range all {
		key := fmt.Sprint(h.pid, "/", h.started)
		seen[key] = true
		if len(h.has) < h.wants {
			if _, known := t.bare[key]; !known {
				t.bare[key] = now
			}
			if now.Sub(t.bare[key]) > bareLimit && !t.told[key] {
				t.told[key] = true
				t.say(bare, fmt.Sprintf("a container of %s runs with %d of %d devices", h.pod, len(h.has), h.wants))
			}
		}
		if has := (had{strings.Join(h.has, " "), boot}); len(h.has) == h.wants && h.wants > 0 {
			name := h.pod + "/" + h.container
			switch before, known := t.had[name]; {
			case !known, before.ids == has.ids, before.renamed(has):
				t.had[name] = has
			case !t.told[key]:
				t.told[key] = true
				t.say(changed, fmt.Sprintf("a container of %s has %s, and the one before it had %s", h.pod, has.ids, before.ids))
			}
		}
		if n, known := t.claims.of(h.pod, h.container); known && len(h.has) >= h.wants && !t.told[key+" claim"] && !n.fits(h.has) {
			t.told[key+" claim"] = true
			t.say(claimed, fmt.Sprintf("container %s of %s has %v, its claims name %v, and it requests %d besides", h.container, h.pod, h.has, n.ids, n.besides))
		}
		for _, id := range h.has {
			if until := t.forbidden(id, h.pod, now); !until.IsZero() && !t.told[key+id] {
				t.told[key+id] = true
				t.say(early, fmt.Sprintf("pod %s has device %s, which is suspended until %s", h.pod, id, until))
			}
			id = hardware(id) // two IDs may be one device
			for _, o := range holds {
				if pair := fmt.Sprint(key, o.pid); o.hardware == id && o.pod != h.pod && !t.share(o.pod, h.pod, id) && o.has() && !t.told[pair] {
					t.told[pair] = true
					t.say(taken, fmt.Sprintf("a container of %s has started with device %s, which process %d has had open since %s had it", h.pod, id, o.pid, o.pod))
				}
			}
			t.handedOn(h, id, now)
			other, taken := owner[id]
			owner[id] = h
			// Processes are looked at one after the other: both have to be there still.
			another := other.pod != h.pod && !t.share(other.pod, h.pod, id) || other.pod == h.pod && other.container != h.container
			if pair := id + " " + other.pod + " " + h.pod; taken && another && other.alive() && h.alive() && !t.told[pair] {
				t.told[pair] = true
				t.say(twoHands, fmt.Sprintf("device %s is in the hands of %s/%s and %s/%s", id, other.pod, other.container, h.pod, h.container))
			}
		}
	}
	for key := range t.bare {
		if !seen[key] {
			delete(t.bare, key)
		}
	}
}

// forgetHands forgets who has had which device, and all networks: the power has been cut. A pod that is made again has a new network, and
// may have other devices.
func (t *truth) forgetHands() {
	clear(t.last)
	t.networks.boot()
}

// handedOn looks whether a device has been handed on before the network of its former pod was gone.
func (t *truth) handedOn(h holder, hardware string, now time.Time) {
	was, known := t.last[hardware]
	if known && was.pod != h.pod && !t.share(was.pod, h.pod, hardware) && t.networks.has(was.pod) && now.Sub(was.seen) < networkLimit {
		t.say(networked, fmt.Sprintf("device %s is in the hands of %s, and the network of %s, which had it until %s ago, is not torn down", hardware, h.pod, was.pod, now.Sub(was.seen)))
	}
	t.last[hardware] = user{h.pod, now}
}
