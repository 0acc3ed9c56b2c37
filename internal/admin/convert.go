package admin

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

func resourceOf(r device.ResourceName, s device.ResourceStatus) *adminv1.Resource {
	n := func(state device.DeviceState) int32 { return int32(s.States[state]) }
	plugin := device.Lost.String() // known only from its devices in containers
	if s.Offer != nil {
		plugin = s.Offer.Status()
	}
	return &adminv1.Resource{
		Name: string(r), Plugin: plugin,
		Free: n(device.StateFree), Assigned: n(device.StateAssigned), Unhealthy: n(device.StateUnhealthy),
		Cordoned: n(device.StateCordoned), Suspended: n(device.StateSuspended), Refused: n(device.StateRefused), Stale: n(device.StateStale), Quarantined: n(device.StateQuarantined), Withheld: n(device.StateWithheld), Unlisted: int32(s.Unlisted),
		Releasing: n(device.StateReleasing), Busy: n(device.StateBusy),
	}
}

func pluginOf(o device.Offer, at device.Registration) *adminv1.Plugin {
	p := &adminv1.Plugin{
		ResourceName: string(o.Inventory.Resource), State: o.Status(), Endpoint: at.Endpoint,
		Devices: int32(len(o.Inventory.Devices)), PreStart: o.PreStart, Prefers: o.Prefers, Since: stamp(o.Since),
		LastError: strings.ToValidUTF8(o.LastError, "\uFFFD"), LastErrorTime: stamp(o.LastErrorAt),
		Reserve: lists.Map(at.Reserve, func(other device.Registration) string { return other.Endpoint }),
	}
	if at.Pod.Known() {
		p.Pod = &adminv1.PluginPod{Namespace: at.Pod.Namespace, Name: at.Pod.Name, Uid: string(at.Pod.UID), ServiceAccount: at.Pod.ServiceAccount}
	}
	for _, d := range o.Inventory.Devices {
		if d.Healthy && o.State != device.Lost { // the health that a lost plugin reported is outdated
			p.Healthy++
		}
	}
	return p
}

func deviceOf(d device.DeviceStatus) *adminv1.Device {
	one := &adminv1.Device{ResourceName: string(d.Resource), Id: string(d.ID), State: string(d.State), Healthy: d.Healthy, Listed: d.Listed,
		Failures: int32(d.Failures), Failed: stamp(d.Failed), Refusals: int32(d.Refusals.Times), Refusal: d.Refusals.Why,
		NumaNodes: lists.Map(d.NUMA, func(n int) int32 { return int32(n) }), Sharers: lists.Map(d.Sharers, holderOf)}
	if d.Holder != nil {
		one.Holder = holderOf(*d.Holder)
	}
	if d.Cordon != nil {
		one.Cordon = &adminv1.DeviceCordon{Reason: d.Cordon.Reason, Since: stamp(d.Cordon.Since), Declared: d.Cordon.Declared, Suspended: d.Cordon.Suspended}
	}
	if d.Release != nil {
		one.Release = &adminv1.DeviceRelease{Why: d.Release.String(), Since: stamp(d.Release.Since)}
	}
	return one
}

func holderOf(h device.Holder) *adminv1.Holder {
	return &adminv1.Holder{Namespace: h.Pod.Namespace, Name: h.Pod.Name, Uid: string(h.Pod.UID), Containers: h.Containers}
}

func assignmentsOf(h *device.PodAllocation) []*adminv1.Assignment {
	var all []*adminv1.Assignment
	for _, as := range h.Assignments {
		for _, s := range as.Shares {
			all = append(all, &adminv1.Assignment{
				Namespace: h.Pod.Namespace, Pod: h.Pod.Name, Uid: string(h.Pod.UID), Container: as.Container.Name,
				ResourceName: string(s.Resource), DeviceIds: sortedIDs(s.IDs), Ended: !h.Active, Why: choice(as, s),
			})
		}
	}
	return all
}

func sortedIDs(ids []device.ID) []string {
	return lists.Strings(slices.SortedFunc(slices.Values(ids), device.CompareIDs))
}

func containersOf(all []device.PodContainer) []*adminv1.PodContainer {
	return lists.Map(all, func(c device.PodContainer) *adminv1.PodContainer {
		return &adminv1.PodContainer{Namespace: c.Pod.Namespace, Pod: c.Pod.Name, Uid: string(c.Pod.UID), Container: c.Name}
	})
}

// stamp converts a time; nil: not known.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func grantsOf(g device.PluginGrants) *adminv1.Grants {
	return &adminv1.Grants{
		ResourceName: string(g.Resource), Env: grantNamesOf(g.Env), Mounts: grantNamesOf(g.Mounts), Devices: grantNamesOf(g.Devices),
		Annotations: grantNamesOf(g.Annotations), CdiKinds: grantNamesOf(g.CDIKinds), Full: g.Full,
	}
}

func grantNamesOf(all []device.GrantName) []*adminv1.GrantName {
	return lists.Map(all, func(n device.GrantName) *adminv1.GrantName {
		return &adminv1.GrantName{Text: n.Text, Pattern: n.Pattern}
	})
}
