package main

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// implicitName is the name by which pods request devices of the class.
const implicitName = "deviceclass.resource.kubernetes.io/" + className

// A way is how a container asks for devices: so many by the resource's name, by the class's, and by the pod's claim.
type way struct{ name, class, claim int }

func (y way) sum() int { return y.name + y.class + y.claim }

// A shape is how a pod asks for devices.
type shape struct {
	containers []way
	claim      kind // of the pod; requests: none
}

// draws returns how the next pod asks for so many devices.
func (w *world) draws(devices int) shape {
	s := shape{claim: w.drawKind(devices)}
	if s.claim == requests {
		s.containers = []way{{name: devices}}
	} else {
		s.containers = []way{{claim: devices}}
	}
	if w.ways == nil || devices == 0 || s.claim == own || s.claim == shared {
		return s
	}
	if !w.offered {
		return w.joins(s, devices)
	}
	n, first := w.ways.IntN(9), 1
	if devices > 2 {
		first = 1 + w.ways.IntN(devices-1)
	}
	rest := devices - first
	switch {
	case n < 2 || n < 4 && rest == 0:
		return shape{containers: []way{{class: devices}}}
	case rest == 0 || n > 6:
		return w.joins(s, devices)
	case n == 2:
		return shape{containers: []way{{name: first, class: rest}}}
	case n == 3:
		return shape{containers: []way{{name: first}, {class: rest}}}
	case n == 4:
		return shape{containers: []way{{name: first, claim: rest}}, claim: template}
	case n == 5:
		return shape{containers: []way{{claim: first}, {name: rest}}, claim: template}
	}
	return shape{containers: []way{{claim: first, class: rest}}, claim: template}
}

// joins has some pods that request the resource use the claim of an earlier pod as well.
func (w *world) joins(s shape, devices int) shape {
	sizes := slices.DeleteFunc([]int{1, 2}, func(n int) bool { return len(w.claimed[n]) == 0 })
	if s.claim != requests || len(sizes) == 0 || w.ways.IntN(2) == 0 {
		return s
	}
	n, both := sizes[w.ways.IntN(len(sizes))], w.ways.IntN(2) == 0 && w.offered
	s = shape{containers: []way{{claim: n}, {name: devices}}, claim: shared}
	if both {
		s.containers = []way{{name: devices, claim: n}}
	}
	return s
}

// claimed returns how many devices the pod's claim has.
func (s shape) claimed() (n int) {
	for _, y := range s.containers {
		n += y.claim
	}
	return n
}

// String returns the shape for the sequence's story.
func (s shape) String() string {
	if len(s.containers) == 1 && s.containers[0].class == 0 && (s.containers[0].name == 0 || s.claim == requests) {
		return "" // as most pods do
	}
	var containers []string
	for _, y := range s.containers {
		var ways []string
		for _, one := range []struct {
			n    int
			what string
		}{{y.name, "the resource's name"}, {y.class, "the class's name"}, {y.claim, "the claim"}} {
			if one.n > 0 {
				ways = append(ways, fmt.Sprintf("%d by %s", one.n, one.what))
			}
		}
		containers = append(containers, strings.Join(ways, " and "))
	}
	return ": " + strings.Join(containers, "; another container: ")
}

// mixes reports whether a container of a bound pod asks for the Node's number and has devices of a claim. It waits: a pod whose container asks
// so needs the scheduler's claim for its request, too.
func mixes(p *corev1.Pod) bool {
	return p.Status.ExtendedResourceClaimStatus == nil && slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool {
		return len(c.Resources.Claims) > 0 && !c.Resources.Limits.Name(resourceName, "").IsZero()
	})
}

// shapes changes a pod's only container into those of a shape, by which the judge knows them.
func (s shape) shapes(pod *corev1.Pod) {
	main := pod.Spec.Containers[0]
	pod.Spec.Containers = nil
	for i, y := range s.containers {
		c := main.DeepCopy()
		c.Name = []string{"main", "side"}[i]
		c.Env = []corev1.EnvVar{{Name: podVariable, Value: pod.Name}, {Name: containerVariable, Value: c.Name}, {Name: wantsVariable, Value: fmt.Sprint(y.sum())}}
		c.Resources = corev1.ResourceRequirements{Limits: corev1.ResourceList{}}
		for name, n := range map[corev1.ResourceName]int{resourceName: y.name, implicitName: y.class} {
			if n > 0 {
				c.Resources.Limits[name] = *resource.NewQuantity(int64(n), resource.DecimalSI)
			}
		}
		if y.claim > 0 {
			c.Resources.Claims = []corev1.ResourceClaim{{Name: claimName}}
		}
		pod.Spec.Containers = append(pod.Spec.Containers, *c)
	}
}
