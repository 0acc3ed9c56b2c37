package device

import (
	"cmp"
	"iter"
	"slices"
	"time"
)

// A Grant is a plugin's answer to an allocation: the changes to a container that let it use its devices.
type Grant struct {
	Env         map[string]string `json:"env,omitempty"`
	Mounts      []Mount           `json:"mounts,omitempty"`
	Nodes       []Node            `json:"nodes,omitempty"`
	CDI         []string          `json:"cdi,omitempty"` // fully qualified CDI device names: vendor/class=name
	Annotations map[string]string `json:"annotations,omitempty"`
}

// A Mount shows a host path inside the container.
type Mount struct {
	ContainerPath string `json:"containerPath"`
	HostPath      string `json:"hostPath"`
	ReadOnly      bool   `json:"readOnly,omitempty"`
}

// A Node shows a device node of the host inside the container.
type Node struct {
	ContainerPath string `json:"containerPath"` // empty: the path on the host, links resolved
	HostPath      string `json:"hostPath"`
	Permissions   string `json:"permissions"` // letters of "rwm": read, write, mknod
}

// A Share is one plugin's part of an assignment.
type Share struct {
	Resource ResourceName `json:"resource"`
	IDs      []ID         `json:"ids"` // ascending
	// Near are the NUMA nodes of each of the IDs at assignment; nil: no device has a place.
	Near     [][]int `json:"near,omitempty"`
	Grant    Grant   `json:"grant"`
	PreStart bool    `json:"preStart,omitempty"` // the plugin wants PreStartContainer before each start
	Why      Why     `json:"why,omitzero"`
	// At is the highest Device.Added of a list that had the devices, mostly the one from which they were chosen, and at least 1: a device
	// added later was not in that list. 0: not known.
	At int64 `json:"at,omitempty"`
	// Boot identifies the boot of the machine in which the plugin returned the Grant; empty: not known.
	Boot string `json:"boot,omitempty"`
}

// Why is the reasons for the choice of a share's devices.
type Why struct {
	Kept      int   `json:"kept,omitempty"`      // from init containers, which end before this container starts
	Stamped   int   `json:"stamped,omitempty"`   // from the running container's stamp, after a loss of the state file
	Claimed   int   `json:"claimed,omitempty"`   // chosen by the scheduler
	Preferred int   `json:"preferred,omitempty"` // by the plugin's preference
	Near      []int `json:"near,omitempty"`      // the NUMA nodes preferred for the devices
	Avoided   int   `json:"avoided,omitempty"`   // free devices left out because the plugin had recently refused them
	// Order is the order in which the rest was chosen; empty: by the lowest IDs.
	Order string `json:"order,omitempty"`
}

// An Assignment is all of a container's devices. A container has all the devices that it requests, or no assignment.
type Assignment struct {
	Container Container `json:"container"`
	Shares    []Share   `json:"shares"` // ascending by resource
	// Imported is when the assignment was taken over from a kubelet's device manager; zero: it was not. Containers created
	// before then have their devices from the kubelet, and no stamp.
	Imported time.Time `json:"imported,omitzero"`
}

// Shares yields the shares of assignments, each with its container.
func Shares(all []Assignment) iter.Seq2[Container, Share] {
	return func(yield func(Container, Share) bool) {
		for _, as := range all {
			for _, s := range as.Shares {
				if !yield(as.Container, s) {
					return
				}
			}
		}
	}
}

// AssignmentOf returns the assignment of the container of that name, if there is one.
func AssignmentOf(all []Assignment, container string) (Assignment, bool) {
	for _, as := range all {
		if as.Container.Name == container {
			return as, true
		}
	}
	return Assignment{}, false
}

// A Choice is a proposal of devices for one container, without a hold.
type Choice map[ResourceName][]ID

// Kubelets is what the kubelet's device manager has assigned.
type Kubelets struct {
	Pods  map[PodUID]map[string]Choice // as its checkpoint says, which others can write; by container name
	Word  map[string]map[string]Choice // as it says itself of each pod that it knows; by namespace/name, and by container name, without init containers
	Asked bool                         // it is asked; otherwise the checkpoint is believed
}

// Used returns the resources of which pods have devices by the kubelet, in its own word.
func (k *Kubelets) Used() map[ResourceName]bool {
	used := map[ResourceName]bool{}
	for _, containers := range k.Word {
		for _, choice := range containers {
			for r := range choice {
				used[r] = true
			}
		}
	}
	return used
}

// Denies reports whether the kubelet knows a pod and says that a container does not have what the checkpoint names.
func (k *Kubelets) Denies(p Pod, container string, init bool, r ResourceName, ids []ID) bool {
	word, known := k.Word[p.String()]
	return k.Asked && known && !init && !sameIDs(ids, word[container][r])
}

// Of returns the devices of a resource that the checkpoint names for a container and the kubelet says it has. An init container, of which it says nothing, has them
// if no other pod has; nil: none.
func (k *Kubelets) Of(p Pod, container string, init bool, r ResourceName) []ID {
	ids := k.Pods[p.UID][container][r]
	if len(ids) == 0 || !k.Asked {
		return ids
	}
	word, known := k.Word[p.String()]
	if !known || !init && !sameIDs(ids, word[container][r]) || init && k.anothers(p, r, ids) {
		return nil
	}
	return ids
}

// anothers reports whether the kubelet says that another pod has one of these devices.
func (k *Kubelets) anothers(p Pod, r ResourceName, ids []ID) bool {
	for name, containers := range k.Word {
		for _, choice := range containers {
			if name != p.String() && slices.ContainsFunc(choice[r], func(id ID) bool { return slices.Contains(ids, id) }) {
				return true
			}
		}
	}
	return false
}

func sameIDs(a, b []ID) bool {
	return len(a) == len(b) && slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// A PodRecord is the store's record of a pod: its demand and, once settled, its assignments.
type PodRecord struct {
	Demand      PodDemand    `json:"demand"`
	Assignments []Assignment `json:"assignments,omitempty"`
	// Since is when the pod began to wait for Reason or, if that is empty, when it was assigned its devices; zero: not known.
	Since  time.Time `json:"since,omitzero"`
	Reason Reason    `json:"reason,omitempty"`
	Stall  Stall     `json:"stall,omitzero"` // recorded only where it may lead to an eviction
	// ReleaseFailed is why release.command has failed for the devices of a pod that has ended; empty: it has not.
	ReleaseFailed string `json:"releaseFailed,omitempty"`
}

// A Stall is how long a pod has waited for one reason while no other pod had the devices. The zero value: it does not wait so.
type Stall struct {
	Reason Reason        `json:"reason"`
	Before time.Duration `json:"before,omitempty"` // until the last interruption
	Since  time.Time     `json:"since,omitzero"`   // since the last interruption; zero: it is interrupted
	Boot   string        `json:"boot,omitempty"`   // of the machine
}

// Lasted returns how long the pod has waited in all.
func (s Stall) Lasted(now time.Time) time.Duration {
	if s.Since.IsZero() {
		return s.Before
	}
	return s.Before + max(0, now.Sub(s.Since))
}

// A Conflict is a device that the state file assigns to several pods.
type Conflict struct {
	Resource ResourceName
	ID       ID
	Pods     []Pod // in the order of the records
}

// Conflicts returns the devices that records assign to several pods, ordered by resource and ID. The cause is a commit that
// failed and is in the file all the same. Containers of one pod may share a device, and so may pods that have it by one claim.
func Conflicts(records []PodRecord) []Conflict {
	type holders struct {
		pods   []Pod
		claim  ClaimUID // of the first
		differ bool     // the pods have it by different claims, or without one
	}
	found := map[Key]holders{}
	for _, r := range records {
		for _, s := range Shares(r.Assignments) {
			for _, id := range s.IDs {
				k := Key{s.Resource, id}
				has, claim := found[k], r.Demand.Claim(s.Resource, id)
				switch n := len(has.pods); {
				case n == 0:
					has.claim = claim
				case has.pods[n-1].UID == r.Demand.Pod.UID:
					continue
				default:
					has.differ = has.differ || claim == "" || claim != has.claim
				}
				has.pods = append(has.pods, r.Demand.Pod)
				found[k] = has
			}
		}
	}
	var all []Conflict
	for k, has := range found {
		if has.differ {
			all = append(all, Conflict{k.Resource, k.ID, has.pods})
		}
	}
	slices.SortFunc(all, func(a, b Conflict) int { return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.ID, b.ID)) })
	return all
}
