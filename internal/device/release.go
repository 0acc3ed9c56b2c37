package device

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/devmgrd/devmgrd/internal/lists"
)

// A Departure is an ended pod that still has its devices. No container of it may run.
type Departure struct {
	Pod Pod
	// Assignments are the devices that nothing has after the pod, and the device nodes that no other pod has been granted. A share without
	// devices has only such nodes: other pods keep its devices.
	Assignments []Assignment
	// Failed is why release.command has failed for these devices before a restart of devmgrd; empty: it has not.
	Failed string
}

// A Release is why the devices of an ended pod are not free yet. It never changes.
type Release struct {
	Since time.Time // when this proof began; it begins afresh after a restart of devmgrd, or when another pod joins or leaves the devices
	// Busy: the devices have not been proved free within a moment, and do not count in the Node's capacity.
	Busy bool
	// Underway: the proof is being made, and there is no sign that the devices are in use.
	Underway bool
	Why      string    // what is missing, if no process is named
	Holders  []Process // a few of the processes that keep the devices
	Failed   string    // why release.command has failed; empty: it has not. It is not repeated
}

// String returns what keeps the devices, as a sentence.
func (r *Release) String() string {
	if len(r.Holders) == 0 {
		return r.Why
	}
	const named = 3
	all := lists.Map(r.Holders[:min(named, len(r.Holders))], Process.String)
	if more := len(r.Holders) - len(all); more > 0 {
		all = append(all, fmt.Sprintf("%d more", more))
	}
	return strings.Join(all, ", ")
}

// A Process is a process that keeps devices of an ended pod.
type Process struct {
	PID     int    // on the host
	Command string // as the process calls itself
	Pod     Pod    // that the process belongs to; only the UID, if the pod is not known; zero: to none
	Holds   string // how it keeps them: "has /dev/gpu0 open"
}

// String returns the process with how it keeps the devices.
func (p Process) String() string {
	if p.PID == 0 {
		return "other processes " + p.Holds
	}
	command := strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return unicode.ReplacementChar
		}
		return c
	}, strings.ToValidUTF8(p.Command, string(unicode.ReplacementChar)))
	text := fmt.Sprintf("process %d (%s)", p.PID, Clip(command))
	switch {
	case p.Pod.Name != "":
		text += " of pod " + p.Pod.String()
	case p.Pod.UID != "":
		text += " of the pod with UID " + string(p.Pod.UID)
	}
	return text + " " + p.Holds
}
