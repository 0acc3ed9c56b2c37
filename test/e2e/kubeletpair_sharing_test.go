//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/cluster/images/report"
	"github.com/devmgrd/devmgrd/test/node"
)

// A sharing is a pod whose containers take devices over from one another. Which ones is drawn by lot in the kubelet; how
// many two containers have in common is not.
type sharing struct {
	name               string
	devices            int            // that the node has: just enough
	init, sidecar, app []int          // how many each container asks for; inits start before sidecars
	common             map[string]int // by two containers: the number of devices that both have
}

var sharings = []sharing{
	{
		name: "sharing-of-init-and-app", devices: 2, init: []int{1, 2}, app: []int{1, 1},
		common: map[string]int{"init-0 init-1": 1, "init-1 app-0": 1, "init-1 app-1": 1, "app-0 app-1": 0},
	},
	{
		name: "sharing-of-init-and-sidecar", devices: 2, init: []int{1}, sidecar: []int{1}, app: []int{1},
		common: map[string]int{"init-0 sidecar-0": 1, "init-0 app-0": 0, "sidecar-0 app-0": 0},
	},
	{
		name: "sharing-of-all", devices: 6, init: []int{3}, sidecar: []int{1, 2}, app: []int{1, 2},
		common: map[string]int{
			"init-0 sidecar-0": 1, "init-0 sidecar-1": 2, "init-0 app-0": 0, "init-0 app-1": 0, "sidecar-0 sidecar-1": 0,
			"sidecar-0 app-0": 0, "sidecar-0 app-1": 0, "sidecar-1 app-0": 0, "sidecar-1 app-1": 0, "app-0 app-1": 0,
		},
	},
}

func (s sharing) make(domain string) *corev1.Pod {
	p := node.Pod(podName(s.name, domain), "", 0)
	image := p.Spec.Containers[0].Image
	container := func(kind string, i, n int, args ...string) corev1.Container {
		return corev1.Container{
			Name: fmt.Sprintf("%s-%d", kind, i), Image: image, Args: append([]string{"report"}, args...),
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
				corev1.ResourceName(domain + "/" + s.name): resource.MustParse(fmt.Sprint(n)),
			}},
		}
	}
	p.Spec.Containers = nil
	for i, n := range s.init {
		p.Spec.InitContainers = append(p.Spec.InitContainers, container("init", i, n))
	}
	always := corev1.ContainerRestartPolicyAlways
	for i, n := range s.sidecar {
		c := container("sidecar", i, n, "--then-sleep")
		c.RestartPolicy = &always
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	for i, n := range s.app {
		p.Spec.Containers = append(p.Spec.Containers, container("app", i, n))
	}
	return p
}

func (b *pair) compareSharing(t *testing.T, s sharing) {
	for _, domain := range []string{byKubelet, byDevmgrd} {
		name := podName(s.name, domain)
		pod, err := b.WaitPhase(b.soon(), name, corev1.PodSucceeded)
		if err != nil {
			t.Fatal(err)
		}
		held, used := map[string][]string{}, map[string]bool{}
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			log := asked(b.in(t), func() (string, error) { return b.PodLogs(b.ctx, metav1.NamespaceDefault, name, c.Name) })
			var got report.Report
			if err := json.Unmarshal([]byte(log), &got); err != nil {
				t.Fatalf("%s of %s said %q: %v", c.Name, name, log, err)
			}
			held[c.Name] = strings.Split(got.Env["DEVICES"], ",")
			for _, id := range held[c.Name] {
				used[id] = true
			}
			want := c.Resources.Limits[corev1.ResourceName(domain+"/"+s.name)]
			if len(held[c.Name]) != int(want.Value()) {
				t.Errorf("with %s, %s has %q and asked for %s", domain, c.Name, held[c.Name], want.String())
			}
		}
		common := map[string]int{}
		for pair := range s.common {
			one, other, _ := strings.Cut(pair, " ")
			common[pair] = 0
			for _, id := range held[one] {
				if slices.Contains(held[other], id) {
					common[pair]++
				}
			}
		}
		if !maps.Equal(common, s.common) {
			t.Errorf("with %s two containers have in common %v, want %v: %v", domain, common, s.common, held)
		}
		if len(used) != s.devices {
			t.Errorf("with %s the pod has %d devices, want %d: %v", domain, len(used), s.devices, held)
		}
	}
}
