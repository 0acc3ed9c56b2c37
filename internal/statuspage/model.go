package statuspage

import (
	"fmt"
	"time"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
)

// A model is the content of the page. Two models are equal if the pages differ only in ages.
type model struct {
	Node, Version string
	Started       when
	Matters       []matter
	Resources     []resource
	Waits         []wait
	MoreWaits     int
	Holds         []hold
	MoreHolds     int
	Plugins       []plugin
	Components    []component
	Limits        []string // of the runtime's release

	now time.Time
}

// Now is the time when the page was rendered.
func (m *model) Now() string { return m.now.Format(time.RFC3339Nano) }

// States returns the states that explain the signs.
func (m *model) States() any { return states }

// A matter is a problem for the operator, with its place on the page.
type matter struct{ Text, At string }

type component struct {
	Name    string
	Ready   bool
	Problem string
}

type wait struct {
	Key, Pod, Reason, Message, Ends string
	Since                           when
	Retry                           when
}

type hold struct {
	Key, Pod, Container, Resource string
	Devices                       []link
	More                          int // devices that are left out
	Since                         when
	Longer                        bool // devmgrd did not see its beginning
	Ended                         bool
}

// A link leads to a device's cell, if it has one.
type link struct{ ID, At string }

type plugin struct {
	Key, Resource, State, Pod, Endpoint, Problem string
	Devices, Healthy                             int
	Since                                        when
	LastError                                    string // of a plugin that does not serve
	LastErrorAt                                  when
}

// modelOf returns the page's content from the answers.
func modelOf(a answers, now time.Time) *model {
	m := &model{Node: name(a.status.Node), Version: name(a.status.Version), Started: whenOf(a.status.Started, now), now: now}
	for _, limit := range a.status.Limits {
		m.Limits = append(m.Limits, "With "+text(limit.Release)+" "+text(limit.Text)+".")
	}
	for _, p := range a.status.Components {
		m.Components = append(m.Components, component{name(p.Name), p.Ready, text(p.Problem)})
	}
	for _, p := range a.plugins.Plugins {
		one := plugin{
			Key: key("p", p.ResourceName), Resource: name(p.ResourceName), State: name(p.State), Endpoint: text(p.Endpoint),
			Devices: int(p.Devices), Healthy: int(p.Healthy), Problem: problem(p),
			Since: whenOf(p.Since, now),
		}
		if pod := p.Pod; pod != nil {
			one.Pod = name(pod.Namespace) + "/" + name(pod.Name)
		}
		if p.State != "serving" {
			one.LastError, one.LastErrorAt = text(p.LastError), whenOf(p.LastErrorTime, now)
		}
		m.Plugins = append(m.Plugins, one)
	}
	for _, e := range a.waits {
		m.Waits = append(m.Waits, wait{
			Key: key("w", e.Uid), Pod: name(e.Namespace) + "/" + name(e.Name), Reason: name(e.Reason), Message: text(e.Message),
			Ends: text(e.Ends), Since: whenOf(e.Since, now), Retry: whenOf(e.Retry, now),
		})
	}
	m.MoreWaits = max(0, len(a.status.Waiting)-maxWaits)
	for i, r := range a.status.Resources {
		m.Resources = append(m.Resources, resourceOf(r, a.devices[i], now))
	}
	m.addHolds(a.holds.Assignments, a.spans.Spans)
	m.addMatters(a)
	return m
}

// problem describes the problem of a plugin.
func problem(p *adminv1.Plugin) string {
	switch {
	case p.State == "stale":
		return "it is away for less than plugins.gracePeriod: its devices still count as capacity, and none is assigned; devmgrd redials it"
	case p.State == "lost":
		return "it is away for longer than plugins.gracePeriod: only devices in use count as capacity; devmgrd redials it. If it will not return: devmgrd forget " + p.ResourceName
	case p.State == "connected":
		return "it has not listed its devices yet"
	case p.Devices == 0:
		return "it lists no device"
	case p.Healthy < p.Devices:
		return fmt.Sprintf("%d of its devices unhealthy", p.Devices-p.Healthy)
	}
	return ""
}

// addHolds adds the assignments. Open spans have their beginnings, and links lead to cells.
func (m *model) addHolds(all []*adminv1.Assignment, spans []*adminv1.Span) {
	type part struct{ uid, container, resource string }
	begun := map[part]*adminv1.Span{}
	for _, s := range spans {
		if s.Until == nil {
			begun[part{s.Uid, s.Container, s.ResourceName}] = s
		}
	}
	shown := map[string]bool{}
	for _, r := range m.Resources {
		for _, p := range r.Places {
			for _, c := range p.Cells {
				shown[c.Key] = true
			}
		}
	}
	for _, as := range all[:min(len(all), maxHolds)] {
		h := hold{
			Key: key("h", as.Uid, as.Container, as.ResourceName), Pod: name(as.Namespace) + "/" + name(as.Pod), Container: name(as.Container),
			Resource: name(as.ResourceName), More: max(0, len(as.DeviceIds)-maxIDs), Ended: as.Ended, Since: whenOf(nil, m.now),
		}
		if s := begun[part{as.Uid, as.Container, as.ResourceName}]; s != nil {
			h.Since, h.Longer = whenOf(s.From, m.now), s.FromApproximate
		}
		for _, id := range as.DeviceIds[:min(len(as.DeviceIds), maxIDs)] {
			l := link{ID: nameOf(id)}
			if at := cellKey(as.ResourceName, id); shown[at] {
				l.At = at
			}
			h.Devices = append(h.Devices, l)
		}
		m.Holds = append(m.Holds, h)
	}
	m.MoreHolds = max(0, len(all)-maxHolds)
}

// addMatters adds the problems for the operator, the worst first.
func (m *model) addMatters(a answers) {
	add := func(at, format string, args ...any) {
		m.Matters = append(m.Matters, matter{fmt.Sprintf(format, args...), at})
	}
	for _, p := range m.Components {
		if !p.Ready {
			add("daemon", "%s is not ready", p.Name)
		}
	}
	for _, p := range m.Plugins {
		if p.State != "serving" && p.State != "connected" {
			add("plugins", "the plugin of %s is %s", p.Resource, p.State)
		}
	}
	for _, c := range a.plugins.NotRedirected[:min(len(a.plugins.NotRedirected), maxStrays)] {
		add("plugins", "container %s of %s/%s was created while devmgrd was away: a device plugin in it is registered with the kubelet", name(c.Container), name(c.Namespace), name(c.Pod))
	}
	for i, r := range a.status.Resources {
		at := m.Resources[i].Key
		if r.OverMaxDevices > 0 {
			add(at, "%s has more devices than dra.maxDevices %s allows, and stays in the Node's capacity", name(r.Name), number(int(r.OverMaxDevices)))
		}
		for _, some := range []struct {
			n  int32
			do string
		}{{r.Refused, "refused by the plugin"}, {r.Withheld, "withheld"}, {r.Quarantined, "quarantined"}, {r.Busy, "busy after their pods ended"}} {
			if some.n > 0 {
				add(at, "%s of %s %s", number(int(some.n)), name(r.Name), some.do)
			}
		}
		switch n, inUse := a.devices[i].unhealthy, a.devices[i].unhealthyInUse; {
		case inUse > 0:
			add(at, "%s of %s unhealthy, %s of them in use", number(n), name(r.Name), grouped(inUse))
		case n > 0:
			add(at, "%s of %s unhealthy", number(n), name(r.Name))
		}
	}
	waiting := 0
	for _, w := range a.status.Waiting {
		if w.Reason != "Allocating" && w.Reason != "Preparing" { // which take milliseconds
			waiting++
		}
	}
	switch {
	case waiting == 1:
		add("waiting", "1 pod waits for devices")
	case waiting > 1:
		add("waiting", "%s pods wait for devices", grouped(waiting))
	}
}
