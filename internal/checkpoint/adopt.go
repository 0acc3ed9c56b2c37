package checkpoint

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// An AdoptInput is the state with which Adopt compares a kubelet's file.
type AdoptInput struct {
	Active  []device.PodDemand    // the node's pods in the API that have not ended; a mirror pod has its static pod's UID
	Ended   []device.Pod          // the node's ended pods in the API
	Pods    []device.PodRecord    // devmgrd's state file
	Plugins []device.PluginRecord // likewise
	Now     time.Time             // recorded in adopted assignments
	Boot    string                // likewise: the machine's boot
}

// A Plan is the records to write in order to take over a kubelet's assignments, and the obstacles.
type Plan struct {
	Pods    []device.PodRecord
	Plugins []device.PluginRecord

	Items     []Item   // one for each entry of the file
	Notes     []string // remarks for the operator
	Conflicts []string // obstacles that the operator must remove first; with any of them nothing may be written
}

// An Item is the outcome of one entry.
type Item struct {
	Pod       device.Pod // ?/UID if the name is unknown
	Container string
	Resource  device.ResourceName
	IDs       []device.ID
	Outcome   Outcome
}

// An Outcome is the result of an entry.
type Outcome int

const (
	// Adopted: the entry will be written into the state file.
	Adopted Outcome = iota
	// AlreadyRecorded: the state file already has the entry.
	AlreadyRecorded
	// PodEnded: the entry will be written, but the pod has ended or the API server has no such pod. The kubelet may not have
	// ended its containers yet, so no other pod may have its devices before the runtime has reported that it has no container
	// of the pod.
	PodEnded
)

// Adopt plans to take over a whole file. It examines every entry, whatever it finds on the way.
//
// The pods' demands are those of the API server. An entry of an unknown pod becomes a record too; the allocator drops it, as
// for any pod that is gone, once the runtime has listed its containers.
func Adopt(f File, s AdoptInput) Plan {
	a := adoption{
		input:    s,
		active:   map[device.PodUID]device.PodDemand{},
		rivals:   map[device.PodUID]device.Pod{},
		ended:    map[device.PodUID]device.Pod{},
		recorded: map[device.PodUID]device.PodRecord{},
		owners:   map[device.ResourceName]map[device.ID]owner{},
	}
	for _, d := range s.Active {
		if first, taken := a.active[d.Pod.UID]; taken {
			a.rivals[d.Pod.UID] = first.Pod
		}
		a.active[d.Pod.UID] = d
	}
	for _, p := range s.Ended {
		a.ended[p.UID] = p
	}
	for _, r := range s.Pods {
		a.recorded[r.Demand.Pod.UID] = r
		for _, share := range device.Shares(r.Assignments) {
			a.own(share.Resource, share.IDs, r.Demand.Pod, "devmgrd's state file")
		}
	}
	for from, e := range f.Entries {
		if from > 0 && f.Entries[from-1].Container.Pod == e.Container.Pod {
			continue
		}
		to := from
		for to < len(f.Entries) && f.Entries[to].Container.Pod == e.Container.Pod {
			to++
		}
		a.pod(e.Container.Pod, f.Entries[from:to])
	}
	a.plugins(f)
	if len(a.plan.Conflicts) == 0 {
		a.waiting()
	}
	return a.plan
}

// An adoption is one run of Adopt.
type adoption struct {
	input    AdoptInput
	active   map[device.PodUID]device.PodDemand
	rivals   map[device.PodUID]device.Pod // other active pods of that UID: at most one of them is the mirror of a static pod
	ended    map[device.PodUID]device.Pod
	recorded map[device.PodUID]device.PodRecord
	owners   map[device.ResourceName]map[device.ID]owner
	plan     Plan
}

func (a *adoption) conflict(format string, args ...any) {
	a.plan.Conflicts = append(a.plan.Conflicts, fmt.Sprintf(format, args...))
}

// own records the owner of devices. A pod may have a device twice: its init containers hand theirs on.
func (a *adoption) own(r device.ResourceName, ids []device.ID, pod device.Pod, by string) {
	owners := lists.Inner(a.owners, r)
	for _, id := range ids {
		if other, taken := owners[id]; taken && other.pod.UID != pod.UID {
			a.conflict("%s/%s: assigned to pod %s by %s, and to pod %s by %s", r, id, other.pod, other.by, pod, by)
			continue
		}
		owners[id] = owner{pod, by}
	}
}

// An owner is a device's pod, and the file that names it.
type owner struct {
	pod device.Pod
	by  string
}

// pod plans the entries of one pod.
func (a *adoption) pod(uid device.PodUID, entries []Entry) {
	demand, active := a.active[uid]
	old := a.recorded[uid]
	switch {
	case !active:
		demand = device.PodDemand{Pod: a.name(uid), Created: old.Demand.Created, Local: old.Demand.Local}
	case len(old.Assignments) > 0:
		demand = old.Demand // its devices were assigned for that demand
	}
	if rival, is := a.rivals[uid]; is {
		a.conflict("pods %s and %s both have the annotation of the mirror of one static pod, %s: delete the one that no file of the kubelet declares", rival, demand.Pod, uid)
		return
	}
	got, sound := a.assignments(demand.Pod, entries)
	if !sound {
		return
	}
	fresh := map[string]device.Assignment{}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		as, fate := got[name], Adopted
		if !active {
			fate = PodEnded
		}
		has, held := device.AssignmentOf(old.Assignments, name)
		switch {
		case held && same(has, as):
			fate = AlreadyRecorded
		case held:
			a.conflict("pod %s, container %s: the kubelet's file assigns %s, and devmgrd's state file %s", demand.Pod, name, summary(as), summary(has))
			continue
		case active && !a.asked(demand, as):
			continue
		default:
			fresh[name] = as
		}
		for _, s := range as.Shares {
			a.plan.Items = append(a.plan.Items, Item{Pod: demand.Pod, Container: name, Resource: s.Resource, IDs: s.IDs, Outcome: fate})
		}
	}
	if len(fresh) == 0 {
		return
	}
	for _, as := range old.Assignments {
		fresh[as.Container.Name] = as
	}
	if !active {
		demand.Demands = demandsOf(fresh)
	}
	a.plan.Pods = append(a.plan.Pods, record(demand, fresh))
}

// name returns the identity of a pod that is not active.
func (a *adoption) name(uid device.PodUID) device.Pod {
	if p, ended := a.ended[uid]; ended {
		return p
	}
	if r, known := a.recorded[uid]; known {
		return r.Demand.Pod
	}
	return device.Pod{UID: uid, Namespace: "?", Name: string(uid)}
}

// assignments returns the assignments in one pod's entries, by container, and whether all entries are sound.
func (a *adoption) assignments(pod device.Pod, entries []Entry) (got map[string]device.Assignment, sound bool) {
	got, sound = map[string]device.Assignment{}, true
	for _, e := range entries {
		as := got[e.Container.Name]
		share, err := takeShare(e)
		if err == nil && len(as.Shares) > 0 && as.Shares[len(as.Shares)-1].Resource == e.Resource {
			err = errors.New("the file has two such entries")
		}
		if err != nil {
			a.conflict("pod %s, container %s, %s: %v", pod, e.Container.Name, e.Resource, err)
			sound = false
			continue
		}
		share.Boot = a.input.Boot
		a.own(e.Resource, share.IDs, pod, "the kubelet's file")
		as.Container, as.Imported = e.Container, a.input.Now
		as.Shares = append(as.Shares, share)
		got[e.Container.Name] = as
	}
	return got, sound
}

// takeShare converts one entry.
func takeShare(e Entry) (device.Share, error) {
	r, err := device.ParseResourceName(string(e.Resource))
	switch {
	case err != nil:
		return device.Share{}, err
	case e.Container.Pod == "" || e.Container.Name == "":
		return device.Share{}, errors.New("the entry lacks a pod or a container")
	case len(e.Devices) == 0:
		return device.Share{}, errors.New("the file names no device")
	case e.Devices[0].ID == "":
		return device.Share{}, errors.New("a device has no ID")
	}
	g, err := e.Grant()
	if err != nil {
		return device.Share{}, err
	}
	return device.Share{Resource: r, IDs: e.IDs(), Near: e.near(), Grant: g}, nil
}

// asked reports whether the container requests exactly the devices that it has.
func (a *adoption) asked(d device.PodDemand, as device.Assignment) bool {
	want, _ := d.Of(as.Container.Name)
	left := maps.Clone(want.Wants)
	ok := true
	for _, s := range as.Shares {
		if n := want.Wants[s.Resource]; n != len(s.IDs) {
			a.conflict("pod %s, container %s: it requests %d of %s, and the file has %d", d.Pod, as.Container.Name, n, s.Resource, len(s.IDs))
			ok = false
		}
		delete(left, s.Resource)
	}
	for _, r := range slices.Sorted(maps.Keys(left)) {
		a.conflict("pod %s, container %s: it requests %d of %s, and the file has only %s; "+
			"if no device plugin serves %[4]s, add it to plugins.ignoredResources", d.Pod, as.Container.Name, left[r], r, summary(as))
		ok = false
	}
	return ok
}

// waiting adds a note for each container that requests devices and has none in either file.
func (a *adoption) waiting() {
	taken := map[device.Container]bool{}
	for _, t := range a.plan.Items {
		taken[device.Container{Pod: t.Pod.UID, Name: t.Container}] = true
	}
	for _, d := range a.input.Active {
		for _, want := range d.Demands {
			if _, held := device.AssignmentOf(a.recorded[d.Pod.UID].Assignments, want.Container.Name); held || taken[want.Container] || d.Mirror {
				continue
			}
			wants := lists.Map(slices.Sorted(maps.Keys(want.Wants)), func(r device.ResourceName) string { return fmt.Sprintf("%d of %s", want.Wants[r], r) })
			a.plan.Notes = append(a.plan.Notes, fmt.Sprintf("pod %s, container %s requests %s, and the file has no devices for the container: devmgrd assigns them at its next start, once a plugin "+
				"has registered; add a resource that no device plugin serves to plugins.ignoredResources", d.Pod, want.Container.Name, strings.Join(wants, " and ")))
		}
	}
}

// plugins plans records of the resources, so that the Node's capacity does not fall before plugins have registered.
func (a *adoption) plugins(f File) {
	known := map[device.ResourceName]device.PluginRecord{}
	for _, p := range a.input.Plugins {
		known[p.Resource] = p
	}
	for _, r := range f.Resources() {
		if _, err := device.ParseResourceName(string(r)); err != nil {
			a.conflict("%v", err)
			continue
		}
		devices := map[device.ID]device.Device{}
		for _, e := range f.Entries {
			if e.Resource == r {
				for _, d := range e.Devices {
					devices[d.ID] = d // unhealthy, unless it is among the healthy ones
				}
			}
		}
		for _, id := range f.Healthy[r] {
			d := devices[id]
			d.ID, d.Healthy = id, true
			devices[id] = d
		}
		old := known[r]
		for _, d := range old.Devices { // as listed by the plugin itself
			devices[d.ID] = d
		}
		p := device.PluginRecord{Resource: r, Endpoint: old.Endpoint, Reported: true}
		for _, id := range slices.Sorted(maps.Keys(devices)) {
			p.Devices = append(p.Devices, devices[id])
		}
		a.plan.Plugins = append(a.plan.Plugins, p)
	}
}

// record returns a pod's record, with its assignments in the order of its demands.
func record(d device.PodDemand, has map[string]device.Assignment) device.PodRecord {
	r := device.PodRecord{Demand: d}
	for _, want := range d.Demands {
		if as, ok := has[want.Container.Name]; ok {
			r.Assignments = append(r.Assignments, as)
		}
	}
	return r
}

// demandsOf returns the least that the containers can have requested. Which of them are init containers is unknown.
func demandsOf(has map[string]device.Assignment) []device.Demand {
	var all []device.Demand
	for _, name := range slices.Sorted(maps.Keys(has)) {
		d := device.Demand{Container: has[name].Container, Kind: device.App, Wants: map[device.ResourceName]int{}}
		for _, s := range has[name].Shares {
			d.Wants[s.Resource] = len(s.IDs)
		}
		all = append(all, d)
	}
	return all
}

// same reports whether two assignments have the same devices. The plugin's answers may differ.
func same(a, b device.Assignment) bool {
	return slices.EqualFunc(a.Shares, b.Shares, func(s, t device.Share) bool {
		return s.Resource == t.Resource && slices.Equal(s.IDs, t.IDs)
	})
}

func summary(as device.Assignment) string {
	return strings.Join(lists.Map(as.Shares, func(s device.Share) string { return fmt.Sprintf("%s %v", s.Resource, s.IDs) }), " and ")
}
