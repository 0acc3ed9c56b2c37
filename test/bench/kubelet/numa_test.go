package kubelet

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"k8s.io/utils/cpuset"

	"github.com/devmgrd/devmgrd/test/cpupolicy"
)

const (
	guests   = 500
	devices  = 16 // of each machine
	longStay = 10 // steps for which a pod runs at most
)

// BenchmarkNUMA counts the pods whose CPUs are all near all of their devices. The same 500 random pods come and go on made-up machines. A
// pod comes at each step, requests 1 to 4 of 16 devices and 1 to 8 CPUs, and ends 1 to 10 steps after its start. It is bound when its requests fit into
// what the pods on the node leave, for a scheduler counts no NUMA nodes; until then it is tried at each step.
//
//	policy          devmgrd's allocator (single-numa-node) and the CPU policy of test/cpupolicy
//	strict          likewise, and a container waits while the policy has too few CPUs near its devices
//	kubelet         the kubelet's topology manager (single-numa-node), static CPU manager, static memory manager and device manager
//	static          devmgrd's allocator; the CPUs are the choice of the kubelet's static managers (best-effort), which do not know the devices
//	static-followed likewise, and the devices are near the CPUs that the kubelet has chosen, where enough of them are free
//
// It fails if the strict policy, which refuses no pod for ever, has fewer pods near their devices than the kubelet.
func BenchmarkNUMA(b *testing.B) {
	klog.SetLogger(logr.Discard())
	ways := []struct {
		name string
		make func(*testing.B, machine) placer
	}{{"policy", newPolicy}, {"strict", newStrict}, {"kubelet", newKubelet}, {"static", newStatic}, {"static-followed", newFollowed}}
	for _, m := range []machine{{2, 32}, {4, 32}, {2, 64}, {4, 64}} {
		results := map[string]result{}
		for _, way := range ways {
			b.Run(fmt.Sprintf("nodes=%d/cpus=%d/%s", m.nodes, m.cpus, way.name), func(b *testing.B) {
				var r result
				for b.Loop() {
					r = play(b, m, way.make(b, m))
				}
				results[way.name] = r
				b.ReportMetric(0, "ns/op") // it is no measure
				b.ReportMetric(float64(r.aligned), "aligned")
				b.ReportMetric(float64(r.apart), "apart")
				b.ReportMetric(float64(r.failed), "failed")
				b.ReportMetric(float64(r.waited)/float64(r.aligned+r.apart), "steps-waited")
			})
		}
		if strict := results["strict"]; len(results) == len(ways) && (strict.failed > 0 || strict.aligned < results["kubelet"].aligned) {
			b.Errorf("%+v: the strict policy has %+v, the kubelet %+v", m, strict, results["kubelet"])
		}
	}
}

// A machine is a made-up one. Its devices and CPUs are spread evenly over its NUMA nodes. Each node has one more CPU, for the system.
type machine struct{ nodes, cpus int }

// cpusOf returns the CPUs of a NUMA node, and the system's.
func (m machine) cpusOf(node int) (free cpuset.CPUSet, system int) {
	count := m.cpus / m.nodes
	system = node * (count + 1)
	var all []int
	for i := range count {
		all = append(all, system+1+i)
	}
	return cpuset.New(all...), system
}

// near returns the machine as the CPU policy sees it.
func (m machine) near() cpupolicy.Machine {
	all := cpupolicy.Machine{}
	for n := range m.nodes {
		cpus, _ := m.cpusOf(n)
		all[int64(n)] = cpupolicy.Node{CPUs: cpus, Memory: n}
	}
	return all
}

// A guest is a pod, with a container.
type guest struct {
	name                string
	devices, cpus, stay int
	came, ends          int // steps
}

// A placer is what manages a node's devices and CPUs.
type placer interface {
	// accept has the node accept a pod that is bound to it, and reports whether it does. A refused pod has failed.
	accept(*guest) bool
	// start starts an accepted pod unless it waits. It returns the pod's CPUs, and the NUMA nodes of its devices.
	start(*guest) (cpus cpuset.CPUSet, devices [][]int64, started bool)
	// end ends pods.
	end([]*guest)
}

// A result counts pods: CPUs near the devices, not near, and refused. waited is the sum of the steps from coming to starting.
type result struct{ aligned, apart, failed, waited int }

// play has the pods come and go.
func play(b *testing.B, m machine, p placer) (r result) {
	random, near := rand.New(rand.NewPCG(1, 2)), m.near()
	freeDevices, freeCPUs := devices, m.cpus
	var pending, waiting, running, ended []*guest
	start := func(step int, g *guest) bool {
		cpus, places, started := p.start(g)
		if !started {
			return false
		}
		if cpus.Size() != g.cpus || len(places) != g.devices {
			b.Fatalf("%+v has CPUs %s and devices near %v", *g, cpus, places)
		}
		r.waited += step - g.came
		g.ends = step + g.stay
		running = append(running, g)
		if near.Near(cpus, places) {
			r.aligned++
		} else {
			r.apart++
		}
		return true
	}
	for step := 0; step < guests || len(pending)+len(waiting)+len(running) > 0; step++ {
		ended = nil
		running = slices.DeleteFunc(running, func(g *guest) bool {
			if g.ends > step {
				return false
			}
			ended = append(ended, g)
			freeDevices, freeCPUs = freeDevices+g.devices, freeCPUs+g.cpus
			return true
		})
		p.end(ended)
		waiting = slices.DeleteFunc(waiting, func(g *guest) bool { return start(step, g) })
		if step < guests {
			pending = append(pending, &guest{
				name: fmt.Sprintf("guest-%03d", step), devices: 1 + random.IntN(4), cpus: 1 + random.IntN(8), stay: 1 + random.IntN(longStay), came: step,
			})
		}
		pending = slices.DeleteFunc(pending, func(g *guest) bool {
			if g.devices > freeDevices || g.cpus > freeCPUs {
				return false
			}
			if !p.accept(g) {
				r.failed++
				return true
			}
			freeDevices, freeCPUs = freeDevices-g.devices, freeCPUs-g.cpus
			if !start(step, g) {
				waiting = append(waiting, g)
			}
			return true
		})
	}
	return r
}
