package device

// A Conflict is a device that the state file assigns to two pods.
type Conflict struct {
	Resource ResourceName
	ID       ID
	Other    Pod
}

// Conflicts returns the pods whose records share a device with another pod's record, with one such device each.
func Conflicts(records []PodRecord) map[PodUID]Conflict {
	type key struct {
		ResourceName
		ID
	}
	found, owners := map[PodUID]Conflict{}, map[key]Pod{}
	for _, r := range records {
		pod := r.Demand.Pod
		for _, as := range r.Assignments {
			for _, s := range as.Shares {
				for _, id := range s.IDs {
					owner, taken := owners[key{s.Resource, id}]
					if !taken {
						owners[key{s.Resource, id}] = pod
					} else if owner.UID != pod.UID {
						found[owner.UID], found[pod.UID] = Conflict{s.Resource, id, pod}, Conflict{s.Resource, id, owner}
					}
				}
			}
		}
	}
	return found
}
