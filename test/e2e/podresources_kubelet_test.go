//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// staticMemory is for the kubelet: with a static memory manager its answers have memory too. What is reserved is what it
// keeps free of pods, see evictionHard in the cluster's configuration.
const staticMemory = "memoryManagerPolicy: Static\nreservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]\n"

// whole names a resource of which all devices are asked for at once, so that there is no choice.
func whole(name string) string { return "whole.example/" + name }

// offered are the devices of the plugins, by resource.
func offered() map[string][]*plugintest.Device {
	one := func(id string, numa ...int64) []*plugintest.Device {
		return []*plugintest.Device{plugintest.Dev(id, plugintest.Healthy, numa...)}
	}
	return map[string][]*plugintest.Device{
		whole("everywhere"): {
			plugintest.Dev("near-0", plugintest.Healthy, 0), plugintest.Dev("near-1", plugintest.Healthy, 1),
			plugintest.Dev("near-both", plugintest.Healthy, 0, 1), plugintest.Dev("near-none", plugintest.Healthy),
			plugintest.Dev("unhealthy", plugintest.Unhealthy, 0),
		},
		whole("one"):     one("one"),
		whole("first"):   one("first", 1),
		whole("second"):  {plugintest.Dev("a", plugintest.Healthy), plugintest.Dev("b", plugintest.Healthy)},
		whole("chain"):   one("chain", 0, 1),
		whole("sidecar"): one("sidecar", 0),
		whole("left"):    one("left", 0),
		whole("right"):   one("right"),
		whole("cpu"):     one("cpu", 0),
		whole("static"):  one("static", 0),
		whole("image"):   one("image"),
		whole("over"):    one("over"),
		whole("goes-on"): one("goes-on"),
		whole("going"):   one("going", 1),
		whole("brief"):   one("brief"),
		whole("nobodys"): one("nobodys", 0),
		whole("nowhere"): {{ID: "nowhere", Health: plugintest.Healthy, Topology: &pluginapi.TopologyInfo{}}},
	}
}

// cast are the pods, without the static one. All are in the namespace default but "elsewhere".
func cast() []*corev1.Pod {
	container := func(name string, limits map[string]string) corev1.Container {
		c := corev1.Container{Name: name, Image: cluster.ProbeImage, Args: []string{"sleep"}, Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{}}}
		for r, n := range limits {
			c.Resources.Limits[corev1.ResourceName(r)] = resource.MustParse(n)
		}
		return c
	}
	pod := func(name string, containers ...corev1.Container) *corev1.Pod {
		p := node.Pod(name, "", 0)
		p.Spec.Containers = containers
		return p
	}
	elsewhere := pod("elsewhere", container("main", nil))
	elsewhere.Namespace = "other"

	chain := pod("chain", container("app", map[string]string{whole("chain"): "1"}))
	init, sidecar := container("init", map[string]string{whole("chain"): "1"}), container("sidecar", map[string]string{whole("sidecar"): "1"})
	init.Args = []string{"exit", "0"}
	always := corev1.ContainerRestartPolicyAlways
	sidecar.RestartPolicy = &always
	chain.Spec.InitContainers = []corev1.Container{init, sidecar}

	image := pod("image", container("main", map[string]string{whole("image"): "1"}))
	image.Spec.Containers[0].Image = "localhost/there-is-none:1"
	image.Spec.Containers[0].ImagePullPolicy = corev1.PullNever

	brief := pod("brief", container("main", map[string]string{whole("brief"): "1"}))
	brief.Spec.Containers[0].Args = []string{"exit", "0"}

	half := pod("half", container("over", map[string]string{whole("over"): "1"}), container("goes-on", map[string]string{whole("goes-on"): "1"}))
	half.Spec.Containers[0].Args = []string{"exit", "0"}

	going := pod("going", container("main", map[string]string{whole("going"): "1"}))
	long := int64(600)
	going.Spec.TerminationGracePeriodSeconds = &long
	going.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: long}}}

	return []*corev1.Pod{
		pod("plain", container("main", nil)),
		elsewhere,
		pod("everywhere", container("main", map[string]string{whole("everywhere"): "4"})),
		pod("one", container("main", map[string]string{whole("one"): "1"})),
		pod("two", container("main", map[string]string{whole("first"): "1", whole("second"): "2"})),
		chain,
		pod("pair", container("right", map[string]string{whole("right"): "1"}), container("none", nil), container("left", map[string]string{whole("left"): "1"})),
		pod("nowhere", container("main", map[string]string{whole("nowhere"): "1"})),
		half,
		going,
		pod("guaranteed", container("main", map[string]string{whole("cpu"): "1", "cpu": "1", "memory": "64Mi"})),
		image,
		brief,
	}
}

// inOrder answers an Allocate with the devices in the order of their names, in whatever order they were asked for.
func inOrder(_ context.Context, request *plugintest.AllocateRequest) (*plugintest.AllocateResponse, error) {
	answer := &plugintest.AllocateResponse{}
	for _, c := range request.ContainerRequests {
		answer.ContainerResponses = append(answer.ContainerResponses, &plugintest.Answer{
			Envs: map[string]string{"DEVICES": strings.Join(slices.Sorted(slices.Values(c.DevicesIds)), ",")},
		})
	}
	return answer, nil
}

// scenes are the moments at which both are asked.
var scenes = []string{"no pods", "all pods", "a device in use is unhealthy, a plugin and a pod are gone, and one is going"}

// meant are the differences that devmgrd makes on purpose: it does not leave out a device whose plugin says that it is near
// no node, nor at once those of a plugin that is away, and it answers Get as kubelets do since 1.35.
func meant(scene string) []string {
	all := []string{`v1 GetAllocatableResources: +devices whole.example/nowhere ["nowhere"] near nothing`}
	if scene == scenes[2] {
		all = append(all, `v1 GetAllocatableResources: +devices whole.example/nobodys ["nobodys"] near [0]`)
		if cluster.Has(cluster.PodGet) && cluster.KubernetesBefore("1.35") {
			all = append(all, "v1 Get default/brief: -default/brief 0:main is there", "v1 Get default/brief: -pod default/brief has 1 containers",
				"v1 Get default/brief: +error Unknown: pod brief in namespace default not found")
		}
	}
	return all
}

// A stage is a node with the plugins and the pods, at the kubelet or at devmgrd.
type stage struct {
	*harness
	sockets string // the directory where plugins register
	tell    teller
	plugins map[string]*plugintest.Plugin
	static  string // the name of the static pod
}

func (s *stage) scene(name string) {
	s.t.Helper()
	switch name {
	case scenes[0]:
		s.plugins = map[string]*plugintest.Plugin{}
		for name, devices := range offered() {
			p := plugintest.New(s.t, s.sockets, name, devices...)
			p.OnAllocate = inOrder
			p.Serve()
			p.MustRegister()
			s.plugins[name] = p
		}
		for name, devices := range offered() {
			healthy := int64(len(devices))
			for _, d := range devices {
				if d.Health != plugintest.Healthy {
					healthy--
				}
			}
			s.must(s.WaitNode(s.soon(), func(n *corev1.Node) (bool, error) {
				q := n.Status.Allocatable[corev1.ResourceName(name)]
				return q.Value() == healthy, nil
			}))
		}
	case scenes[1]:
		static := node.Pod("static", whole("static"), 1, "sleep")
		s.static = s.harness.static(static)
		_, err := s.Client().CoreV1().Namespaces().Create(s.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{})
		s.must(err)
		for _, p := range cast() {
			s.must(s.Create(s.ctx, p))
		}
		for _, p := range append(cast(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: static.Namespace, Name: s.static}}) {
			s.must(s.WaitPod(s.soon(), p.Namespace, p.Name, func(p *corev1.Pod) (bool, error) { return settled(p), nil }))
		}
	case scenes[2]:
		s.plugins[whole("everywhere")].SetHealth("near-1", plugintest.Unhealthy)
		s.untilTold("the unhealthy device is no longer allocatable", func() bool {
			return !strings.Contains(fmt.Sprint(s.ask()["v1 GetAllocatableResources"]), "near-1")
		})
		s.plugins[whole("nobodys")].Stop()
		s.must(s.Delete(s.ctx, "one"))
		s.must(s.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(s.ctx, "going", metav1.DeleteOptions{}))
	}
}

// settled reports whether a pod is as it will stay.
func settled(p *corev1.Pod) bool {
	if p == nil {
		return false
	}
	switch p.Name {
	case "brief":
		return p.Status.Phase == corev1.PodSucceeded
	case "half":
		return slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Terminated != nil })
	case "image":
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			p.Status.ContainerStatuses[0].State.Waiting.Reason == "ErrImageNeverPull"
	}
	return p.Status.Phase == corev1.PodRunning
}

// What devmgrd tells about pods and their devices is what the kubelet would tell, and CPUs and memory are what it tells:
// the same plugins and the same pods, once with the kubelet's own device manager and once with devmgrd. Where a pod could
// have other devices too they would differ, so each asks for all that there are.
func TestPodResources_SamePods_SameAsKubelet(t *testing.T) {
	kubelets := map[string]saying{}
	var kubeletsFile view
	shape := cluster.Options{KubeletConfig: staticCPUs + staticMemory + "staticPodPath: " + manifests}
	begin := func(t *testing.T, args ...string) *stage {
		t.Helper()
		if err := os.MkdirAll(manifests, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(manifests) })
		return &stage{harness: startWith(t, shape, args...)}
	}
	told := t.Run("the kubelet", func(t *testing.T) {
		s := begin(t)
		s.lacks(cluster.PodGet)
		s.withoutDevmgrd()
		s.sockets, s.tell = kubeletDir, s.teller(kubeletsResources)
		for _, scene := range scenes {
			s.scene(scene)
			if scene == scenes[2] {
				s.untilTold("the devices of the plugin that is gone are gone too", func() bool {
					return !strings.Contains(fmt.Sprint(s.ask()["v1 GetAllocatableResources"]), "nobodys")
				})
			}
			kubelets[scene] = s.ask()
			if scene == scenes[1] {
				var err error
				kubeletsFile, err = s.file()
				s.must(err)
			}
		}
		for _, question := range []string{"v1 List", "v1 GetAllocatableResources"} {
			t.Logf("the kubelet tells, %s:\n  %s", question, strings.Join(kubelets[scenes[1]][question], "\n  "))
		}
		t.Logf("the kubelet's file:\n  %s", strings.Join(kubeletsFile, "\n  "))
	})
	if !told {
		return
	}
	// Without these nothing would have been compared.
	for _, want := range []string{"default/guaranteed 0:main cpus [1]", "default/guaranteed 0:main memory memory 67108864 near [0]"} {
		if !slices.Contains(kubelets[scenes[1]]["v1 List"], want) {
			t.Fatalf("the kubelet does not tell %q", want)
		}
	}

	t.Run("devmgrd", func(t *testing.T) {
		s := begin(t)
		s.sockets, s.tell = node.SocketDir, s.teller(ourResources)
		compare := func(moment, scene string) {
			t.Helper()
			began := time.Now()
			var differs []string
			s.comes(func() bool { // some of it comes from the kubelet and the API server
				differs = nil
				ours := s.ask()
				for _, question := range slices.Sorted(maps.Keys(kubelets[scene])) {
					for _, d := range differences(kubelets[scene][question], ours[question]) {
						differs = append(differs, question+": "+d)
					}
				}
				differs = differences(meant(scene), differs)
				return len(differs) == 0
			})
			for _, d := range differs {
				if d[0] == '-' {
					t.Errorf("%s, this difference is gone: %s", moment, d[1:])
				} else {
					t.Errorf("%s, not as the kubelet: %s", moment, d[1:])
				}
			}
			t.Logf("%s: compared for %s", moment, time.Since(began).Round(time.Millisecond))
		}
		for _, scene := range scenes {
			s.scene(scene)
			compare(scene, scene)
			if scene != scenes[1] {
				continue
			}
			var last view
			var err error
			s.comes(func() bool {
				last, err = s.file()
				return err == nil && len(differences(kubeletsFile, last)) == 0
			})
			s.must(err)
			for _, d := range differences(kubeletsFile, last) {
				t.Errorf("the file is not as the kubelet's: %s", d)
			}
		}
		s.must(s.Devmgrd.Kill())
		s.must(s.StartDevmgrd(s.ctx))
		compare("devmgrd was killed and is back", scenes[len(scenes)-1])
	})
}
