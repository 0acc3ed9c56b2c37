package statuspage

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/visible"
)

func name(s string) string { return visible.Short(s, maxName) }

// nameOf returns a device's ID as the commands show it.
func nameOf(id string) string { return name(device.QuoteID(device.ID(id))) }

func text(s string) string { return visible.Short(s, maxText) }

// key returns a stable ID within the page for an object with any name.
func key(kind string, of ...string) string {
	return kind + hex.EncodeToString(sum(strings.Join(of, "\x00"))[:8])
}

// A when is a time for people, shown as its distance from now.
type when struct {
	At  time.Time
	now time.Time
}

func whenOf(t *timestamppb.Timestamp, now time.Time) when {
	if t == nil {
		return when{now: now}
	}
	return when{t.AsTime(), now}
}

// Known reports whether the time is set.
func (w when) Known() bool { return !w.At.IsZero() }

// Stamp formats the exact time.
func (w when) Stamp() string { return w.At.UTC().Format(time.RFC3339) }

// Ago formats the age as the commands do. page.js keeps it current.
func (w when) Ago() string { return visible.Age(w.now.Sub(w.At)) }

// holders names the pods that have a device as the commands do.
func holders(d *adminv1.Device) string {
	if n := len(d.Sharers); n > 0 {
		return fmt.Sprintf("%s and %d more", holder(d.Holder), n)
	}
	return holder(d.Holder)
}

// holder names the holder of a device as the commands do.
func holder(h *adminv1.Holder) string {
	switch {
	case h == nil:
		return ""
	case h.Name == "":
		return "a pod with UID " + name(h.Uid)
	case len(h.Containers) == 0:
		return name(h.Namespace) + "/" + name(h.Name)
	}
	return name(h.Namespace) + "/" + name(h.Name) + ":" + text(strings.Join(h.Containers, ","))
}

// place names the place of devices.
func place(nodes []int32) string {
	if len(nodes) == 0 {
		return "no NUMA node"
	}
	all := lists.Map(nodes, func(n int32) string { return strconv.Itoa(int(n)) })
	if len(all) == 1 {
		return "NUMA node " + all[0]
	}
	return text("NUMA nodes " + strings.Join(all, ", "))
}

// number formats a number of devices.
func number(n int) string {
	if n == 1 {
		return "1 device"
	}
	return grouped(n) + " devices"
}

// grouped formats a number with non-breaking spaces between its thousands.
func grouped(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}
