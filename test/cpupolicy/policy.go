package cpupolicy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/utils/cpuset"
)

// A Machine is what containers may have of each NUMA node, by the node's number.
type Machine map[int64]Node

// A Node is a NUMA node. Memory is the kernel's number of the node, which differs from the node's own in a made-up machine.
type Node struct {
	CPUs   cpuset.CPUSet
	Memory int
}

// Near reports whether each of the CPUs is near each of the devices. A device comes as the NUMA nodes that are near it; one without is near all.
func (m Machine) Near(cpus cpuset.CPUSet, devices [][]int64) bool {
	for _, near := range devices {
		if len(near) > 0 && !cpus.IsSubsetOf(m.cpus(near...)) {
			return false
		}
	}
	return true
}

// cpus returns the CPUs of these NUMA nodes.
func (m Machine) cpus(nodes ...int64) (all cpuset.CPUSet) {
	for _, n := range nodes {
		all = all.Union(m[n].CPUs)
	}
	return all
}

// choose returns so many of the free CPUs: those of NUMA nodes near most of the devices first, and of equal nodes those of the node with most free CPUs.
func (m Machine) choose(free cpuset.CPUSet, devices [][]int64, count int) (chosen cpuset.CPUSet, err error) {
	if count > free.Size() {
		return chosen, fmt.Errorf("choosing %d CPUs: %d are free", count, free.Size())
	}
	near, left := map[int64]int{}, map[int64]cpuset.CPUSet{}
	for n, node := range m {
		left[n] = free.Intersection(node.CPUs)
		for _, d := range devices {
			if slices.Contains(d, n) {
				near[n]++
			}
		}
	}
	best := slices.SortedFunc(maps.Keys(m), func(a, b int64) int {
		return cmp.Or(cmp.Compare(near[b], near[a]), cmp.Compare(left[b].Size(), left[a].Size()), cmp.Compare(a, b))
	})
	for _, n := range best {
		some := left[n].List()
		chosen = chosen.Union(cpuset.New(some[:min(count-chosen.Size(), len(some))]...))
	}
	return chosen, nil
}

// A Policy knows which containers have which CPUs. It is safe for concurrent use. A strict one takes no CPUs that are far from a container's
// devices.
type Policy struct {
	Machine Machine
	Strict  bool

	mu    sync.Mutex
	taken map[string]cpuset.CPUSet // by container
}

// New returns a policy for a machine whose CPUs are all free.
func New(m Machine) *Policy { return &Policy{Machine: m, taken: map[string]cpuset.CPUSet{}} }

// Take returns so many CPUs for a container alone, near its devices where there are enough. mems are the memory nodes of the CPUs, as cpuset.mems
// has them.
func (p *Policy) Take(container string, devices [][]int64, count int) (cpus cpuset.CPUSet, mems string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	cpus, err = p.Machine.choose(p.freeLocked(), devices, count)
	if err != nil {
		return cpus, "", err
	}
	if p.Strict && !p.Machine.Near(cpus, devices) {
		return cpus, "", fmt.Errorf("choosing %d CPUs: too few are free near the devices", count)
	}
	p.taken[container] = cpus
	nodes := map[int]bool{}
	for _, node := range p.Machine {
		if !node.CPUs.Intersection(cpus).IsEmpty() {
			nodes[node.Memory] = true
		}
	}
	var names []string
	for _, n := range slices.Sorted(maps.Keys(nodes)) {
		names = append(names, strconv.Itoa(n))
	}
	return cpus, strings.Join(names, ","), nil
}

// Return takes a container's CPUs back.
func (p *Policy) Return(container string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.taken, container)
}

// Free returns the CPUs that no container has.
func (p *Policy) Free() cpuset.CPUSet {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.freeLocked()
}

func (p *Policy) freeLocked() cpuset.CPUSet {
	free := p.Machine.cpus(slices.Collect(maps.Keys(p.Machine))...)
	for _, cpus := range p.taken {
		free = free.Difference(cpus)
	}
	return free
}
