package admin

import (
	"fmt"
	"strings"
	"time"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// explanation describes a pod's state in words.
func (s *Server) explanation(o device.PodStatus) *adminv1.ExplainResponse {
	h := o.PodAllocation
	e := &adminv1.ExplainResponse{
		Namespace: h.Pod.Namespace, Name: h.Pod.Name, Uid: string(h.Pod.UID), Since: stamp(o.Since), Assignments: assignmentsOf(h),
	}
	switch {
	case !h.Active:
		e.Verdict = "ended"
		e.Message = "the pod has ended"
		if len(h.Assignments) > 0 {
			e.Ends = "its devices are released when they are proved free, see release.check"
		}
		if o.Release != nil {
			e.Message = "the pod has ended, and its devices are not free yet: " + o.Release.String()
			e.Ends = "its devices are released when they are proved free, see release.check"
			if o.Release.Busy {
				e.Ends += ", or by devmgrd uncordon as they are"
			}
		}
	case o.State == device.NoDevices:
		e.Verdict = "none"
		e.Message = "the pod requests no device that devmgrd assigns"
	case o.State == device.Ready:
		e.Verdict = "ready"
		e.Message = "the pod has all the devices that it requests"
		if container, why := s.cfg.View.WouldRefuse(h.Pod.UID); why != nil {
			e.Verdict, e.Since = "waiting", nil // it has been served since then
			e.Reason, e.Message = string(why.Reason), "container "+container+" would not start now: "+why.Message
			e.Ends = device.Explain(why.Reason).Ends(strings.Join(lists.Strings(o.Wants()), " or "))
		}
	default:
		e.Verdict = "waiting"
		e.Reason, e.Message, e.Retry = string(o.Wait.Reason), o.Wait.Message, stamp(o.Retry)
		e.Ends = device.Explain(o.Wait.Reason).Ends(strings.Join(lists.Strings(o.Wants()), " or "))
		if o.Wait.Reason == device.PluginMissing || o.Wait.Reason == device.PluginStale {
			e.Ends += astray(s.notRedirected())
		}
		if !o.GivesUp.IsZero() {
			e.Ends += "; else devmgrd evicts the pod at " + o.GivesUp.UTC().Format(time.RFC3339) + " (wait.giveUpAfter)"
		}
	}
	return e
}

// tellEnd adds the end of a pod, as the API server reports it.
func tellEnd(e *adminv1.ExplainResponse, end device.EndedPod) {
	e.Reason = end.Reason
	switch {
	case end.Refused:
		e.Verdict, e.Since = "refused", stamp(end.At)
		e.Message = "the kubelet did not admit the pod, and none of its containers was created"
		e.Ends = refusalEnds
	case end.Leaving:
		e.Message = "the kubelet starts no further container of the pod"
	case end.Failed:
		e.Message = "the pod has failed"
	default:
		e.Message = "the pod has succeeded"
	}
	if end.Message != "" {
		e.Message += ": " + end.Message
	}
}

// refusalEnds is the remedy for a pod that the kubelet refused. The scheduler binds no pod beyond the Node's allocatable.
const refusalEnds = "never: delete the pod, or let its controller replace it; leave spec.nodeName to the scheduler, which keeps a pod pending until the Node has enough"

// maxNamedStrays bounds the containers that an explanation names.
const maxNamedStrays = 5

// astray names the containers that were created without the redirect and may run the missing plugin. The resources of plugins in
// these containers are not known.
func astray(all []device.PodContainer) string {
	if len(all) == 0 {
		return ""
	}
	names := lists.Map(all[:min(len(all), maxNamedStrays)], func(c device.PodContainer) string { return c.Pod.String() + ":" + c.Name })
	if more := len(all) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return "; if the plugin runs in " + strings.Join(names, " or ") + ", it is registered with the kubelet, because the container was created while devmgrd was away: delete its pod"
}

// choice returns the reason why a container has these devices of a resource.
func choice(as device.Assignment, s device.Share) string {
	if !as.Imported.IsZero() {
		return "taken over from the kubelet"
	}
	var parts []string
	add := func(n int, format string, args ...any) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d ", n)+fmt.Sprintf(format, args...))
		}
	}
	add(s.Why.Stamped, "in use by the container when the state file was lost")
	add(s.Why.Kept, "kept from init containers")
	add(s.Why.Claimed, "chosen by the scheduler, in a ResourceClaim")
	add(s.Why.Preferred, "preferred by the plugin")
	rest := "by lowest ID"
	if s.Why.Order != "" {
		rest = "in the order " + s.Why.Order
	}
	add(len(s.IDs)-s.Why.Stamped-s.Why.Kept-s.Why.Claimed-s.Why.Preferred, "%s", rest)
	if len(s.Why.Near) > 0 {
		parts = append(parts, "near NUMA "+nodes(s.Why.Near)+" first")
	}
	add(s.Why.Avoided, "left out: recently refused by the plugin")
	return strings.Join(parts, ", ")
}

// nodes formats NUMA nodes.
func nodes(all []int) string {
	if len(all) == 1 {
		return fmt.Sprintf("node %d", all[0])
	}
	return "nodes " + strings.Trim(strings.ReplaceAll(fmt.Sprint(all), " ", ", "), "[]")
}
