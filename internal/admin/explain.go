package admin

import (
	"fmt"
	"strings"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/device"
)

// explanation says in words how a pod stands.
func explanation(o device.Outlook) *adminv1.ExplainResponse {
	h := o.Holding
	e := &adminv1.ExplainResponse{
		Namespace: h.Pod.Namespace, Name: h.Pod.Name, Uid: string(h.Pod.UID), Since: stamp(o.Since), Assignments: assignmentsOf(h),
	}
	switch {
	case !h.Active:
		e.Verdict = "ended"
		e.Message = "the pod is over"
		if len(h.Assignments) > 0 {
			e.Ends = "its devices are free when the runtime has no container of it any more"
		}
	case o.Stand == device.Free:
		e.Verdict = "none"
		e.Message = "the pod asks for no device that devmgrd gives out"
	case o.Stand == device.Ready:
		e.Verdict = "ready"
		e.Message = "the pod has all the devices that it asks for"
	default:
		e.Verdict = "waiting"
		e.Reason, e.Message, e.Retry = string(o.Wait.Reason), o.Wait.Message, stamp(o.Retry)
		e.Ends = ends(o.Wait.Reason, resources(o.Wants))
	}
	return e
}

func resources(names []device.ResourceName) string {
	all := make([]string, len(names))
	for i, r := range names {
		all[i] = string(r)
	}
	return strings.Join(all, " or ")
}

// ends says what would end a wait.
func ends(why device.Reason, of string) string {
	switch why {
	case device.PluginMissing:
		return fmt.Sprintf("the device plugin of %s registers and lists its devices", of)
	case device.PluginStale:
		return fmt.Sprintf("the device plugin of %s is back; devmgrd dials it by itself", of)
	case device.NotEnoughDevices:
		return fmt.Sprintf("a device of %s is given back by another pod, uncordoned, or listed anew", of)
	case device.DeviceUnhealthy:
		return fmt.Sprintf("a device of %s gets well, or is given back by another pod", of)
	case device.TopologyMismatch:
		return fmt.Sprintf("devices of %s are given back where they are near each other, or topology.policy is a weaker one", of)
	case device.PluginSlow, device.PluginError:
		return fmt.Sprintf("the device plugin of %s answers: it is asked again after a pause, and at once when it is back from having been away", of)
	case device.StoreUnavailable:
		return "the state file can be written again: it is tried again after a pause"
	case device.Allocating:
		return "the device plugins answer"
	case device.Preparing, device.PreStartFailed:
		return fmt.Sprintf("PreStartContainer of the device plugin of %s succeeds", of)
	}
	return ""
}
