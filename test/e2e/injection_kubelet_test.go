//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// The domains of the resources whose plugins register with the kubelet itself, and with devmgrd.
const (
	byKubelet = "kubelet.example"
	byDevmgrd = "devmgrd.example"
)

// podName names the pod of a pair whose devices come from the plugins of that domain.
func podName(pair, domain string) string {
	side, _, _ := strings.Cut(domain, ".")
	return pair + "-" + side
}

// A twin is a pair of containers that differ in who serves their devices. Both plugins give the same answer, so both
// containers have to be the same.
type twin struct {
	name    string               // of the container and the resource; the second resource's has -2 after it
	answers []*plugintest.Answer // one for each resource that the container asks for
	open    []string             // what the container tries to open
	pod     func(*corev1.Pod)    // what the container, the only one of this pod, and the pod have besides
	// differs is what is not the same, as differences returns it. The stamp never is.
	differs []string
	// fails is what the kubelet says of devmgrd's pod where it cannot start at all.
	fails string
	// needs are features without which devmgrd refuses its pod.
	needs []cluster.Feature
	// lot is how lines begin that the kubelet draws by lot. They are not compared.
	lot []string
	// has is what devmgrd's container has to have, so that two containers without anything are not taken for a success.
	has []string
}

// A container gets through devmgrd what it would have had through the kubelet and containerd.
func TestInjection_SamePodAndPlugin_SameAsKubelet(t *testing.T) { sameAsTheKubelet(t, false) }

// The same pods, whose devices the scheduler chooses.
func TestDRA_SamePodAndPlugin_SameAsKubelet(t *testing.T) { sameAsTheKubelet(t, true) }

// The runtime maps the owners of granted mounts into a pod's user namespace, and those of a plugin's mount that is redirected.
func TestInjection_PodHasUserNamespace_SameAsKubelet(t *testing.T) {
	r := &pair{harness: start(t, "--set", "plugins.ignoredResources=["+byKubelet+"/*]")}
	if r.lacks(cluster.UserNamespaces) {
		return
	}
	makeHost(t)
	apart := func(p *corev1.Pod) { p.Spec.HostUsers = new(bool) }
	twins := []twin{
		{
			name: "user-namespace-mount", pod: apart, answers: grantsMounts(mount("/opt/secret", "secret"), mountReadOnly("/opt/file", "secret/file"), mountReadOnly("/opt/driver", "driver")),
			open: []string{"/opt/secret/file", "/opt/file"}, has: []string{"open /opt/secret/file for rw: opened", "open /opt/file for r: opened", "mount /opt/driver ["},
		},
		{
			name: "user-namespace-cdi", pod: apart, needs: []cluster.Feature{cluster.CDI},
			answers: []*plugintest.Answer{{CdiDevices: []*pluginapi.CDIDevice{{Name: "vendor.example/cdi=secret"}}}},
			open:    []string{"/opt/secret/file"}, has: []string{"mount /opt/secret ["}, // the runtime's CDI library decides
		},
	}
	r.serveTwins(twins)
	r.waitBoth()
	r.compareTwins(t, twins)
	t.Run("user-namespace-plugin", func(t *testing.T) {
		r := r.in(t)
		p := neighbour("plugin", false, "kubelet.sock") // what a plugin mounts is replaced
		apart(p)
		r.must(r.Create(r.ctx, p))
		for _, o := range r.running("plugin").Opened {
			if !strings.HasSuffix(o.Error, unix.ENXIO.Error()) {
				t.Errorf("opening %s for %s: %q, want what any process gets that opens a socket as a file", o.Path, o.How, o.Error)
			}
		}
	})
}

func sameAsTheKubelet(t *testing.T, claims bool) {
	args := []string{"--set", "plugins.ignoredResources=[" + byKubelet + "/*]"}
	if claims {
		args = append(args, "--set", "dra.resources="+byDevmgrd+"/*")
	}
	r := &pair{harness: start(t, args...), claims: claims}
	makeHost(t)
	r.must(r.LoadImage(r.ctx, cluster.Image{
		Name: imageWithEnv, Entrypoint: []string{"/probe"}, Env: []string{"PATH=/bin", "IMAGE=the image's", "TWO=the image's", "THREE=the image's"},
		Files: map[string]string{"/probe": r.Tools.Path("probe")},
	}))
	_, err := r.Client().CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(r.ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"FROM": "the pod's"},
	}, metav1.CreateOptions{})
	r.must(err)

	var all []twin
	for _, more := range [][]twin{variables(), mounts(), nodes(), permissions(), cdi(), others()} {
		all = append(all, more...)
	}
	r.serveTwins(all)
	for _, s := range sharings {
		r.serveBoth(s.name, s.devices, nil)
	}
	r.waitBoth()
	for _, s := range sharings {
		r.must(r.Create(r.ctx, s.make(byKubelet)))
		r.must(r.Create(r.ctx, s.make(byDevmgrd)))
	}
	r.compareTwins(t, all)
	for _, s := range sharings {
		t.Run(s.name, func(t *testing.T) { r.compareSharing(t, s) })
	}
	if claims {
		t.Run("while devmgrd is away", func(t *testing.T) { r.compareAlone(t, all) })
	}
}

// guarded are the twins whose containers are not created while devmgrd is away: a CDI file cannot say what they get.
var guarded = []string{
	"device-twice", "env-in-arguments", "env-in-arguments-by-detour", "everything", "mount-of-dev", "mount-of-sys", "mount-twice-at-one-place",
	"mount-where-the-runtime-mounts", "two-resources-in-conflict",
}

// compareAlone compares the containers of twins that are created while devmgrd is away. Those that need it wait until it is back.
func (b *pair) compareAlone(t *testing.T, all []twin) {
	b = &pair{harness: b.in(t), plugins: b.plugins, claims: b.claims}
	const dir = "/run/hold"
	b.must(os.MkdirAll(dir, 0o755))
	t.Cleanup(func() { os.RemoveAll(dir) })
	groups := share(slices.DeleteFunc(slices.Clone(all), func(w twin) bool { return w.fails != "" || w.lacks() != "" }))
	name := func(g twins) string { return podName(g[0].name, byDevmgrd) + "-alone" }
	pods := map[string]*corev1.Pod{}
	for _, g := range groups {
		_ = b.Delete(b.ctx, podName(g[0].name, byDevmgrd))
		p := g.make(byDevmgrd)
		p.Name = name(g)
		hold := node.Pod("", "", 0, "wait-file", dir+"/go").Spec.Containers[0]
		hold.Name, hold.VolumeMounts = "hold", []corev1.VolumeMount{{Name: "hold", MountPath: dir}}
		p.Spec.InitContainers = append([]corev1.Container{hold}, p.Spec.InitContainers...)
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "hold", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}})
		b.must(b.Create(b.ctx, p))
	}
	see := func(g twins, enough func(corev1.PodStatus) bool) {
		b.must(b.WaitPod(b.soon(), metav1.NamespaceDefault, name(g), func(p *corev1.Pod) (bool, error) {
			pods[name(g)] = p
			return enough(p.Status), nil
		}))
	}
	for _, g := range groups {
		see(g, func(s corev1.PodStatus) bool {
			return len(s.InitContainerStatuses) > 0 && s.InitContainerStatuses[0].State.Running != nil
		})
	}
	b.must(b.Devmgrd.Kill())
	b.must(os.WriteFile(dir+"/go", nil, 0o644))
	alone := map[string]bool{}
	var waiting []string
	for _, g := range groups {
		see(g, func(s corev1.PodStatus) bool {
			return !slices.ContainsFunc(s.ContainerStatuses, func(c corev1.ContainerStatus) bool {
				return c.State.Terminated == nil && (c.State.Waiting == nil || c.State.Waiting.Reason != "CreateContainerError")
			})
		})
		for _, c := range pods[name(g)].Status.ContainerStatuses {
			alone[c.Name] = c.State.Terminated != nil
			if !alone[c.Name] {
				waiting = append(waiting, c.Name)
			}
		}
	}
	slices.Sort(waiting)
	if !slices.Equal(waiting, guarded) {
		t.Errorf("these wait for devmgrd: %q, want %q", waiting, guarded)
	}
	b.must(b.StartDevmgrd(b.soon()))
	for _, g := range groups {
		see(g, func(s corev1.PodStatus) bool { return s.Phase == corev1.PodSucceeded || s.Phase == corev1.PodFailed })
		kubelets, err := b.WaitPhase(b.soon(), podName(g[0].name, byKubelet), corev1.PodSucceeded)
		b.must(err)
		for _, w := range g {
			t.Run(w.name, func(t *testing.T) {
				theirs, err := b.look(b.ctx, kubelets, w.name)
				b.must(err)
				ours, err := b.look(b.ctx, pods[name(g)], w.name)
				b.must(err)
				b.same(t, w, theirs, ours, !alone[w.name])
			})
		}
	}
}

// A pair is a node on which the kubelet and devmgrd serve devices side by side.
type pair struct {
	*harness
	plugins []*plugintest.Plugin
	claims  bool // devmgrd offers its devices through claims
}

// serveBoth starts the same plugin twice, one for each manager.
func (b *pair) serveBoth(name string, devices int, prepare func(*plugintest.Plugin)) {
	b.t.Helper()
	for domain, dir := range map[string]string{byKubelet: "/var/lib/kubelet/device-plugins", byDevmgrd: node.SocketDir} {
		p := plugintest.New(b.t, dir, domain+"/"+name, plugintest.Devices(devices)...)
		if prepare != nil {
			prepare(p)
		}
		p.Serve()
		p.MustRegister()
		b.plugins = append(b.plugins, p)
	}
}

// serveTwins starts the plugins of these twins.
func (b *pair) serveTwins(all []twin) {
	b.t.Helper()
	for _, w := range all {
		for i, answer := range w.answers {
			b.serveBoth(w.resource(i), 1, func(p *plugintest.Plugin) { p.OnAllocate = plugintest.Grants(answer) })
		}
	}
}

// compareTwins creates the pods of these twins, and compares each pair in a test of its own.
func (b *pair) compareTwins(t *testing.T, all []twin) {
	t.Helper()
	groups := share(all)
	for _, g := range groups {
		b.must(b.Create(b.ctx, g.make(byKubelet)))
		b.must(b.Create(b.ctx, g.make(byDevmgrd)))
	}
	for _, g := range groups {
		for _, w := range g {
			t.Run(w.name, func(t *testing.T) { b.compare(t, g[0].name, w) })
		}
	}
}

// twins are those whose containers are in one pod on each side. The first one's name is the pair of pods' too.
type twins []twin

// most is how many containers share a pod: a pod costs the node more than a container.
const most = 10

// share divides twins into pods. A twin with a peculiar pod, or with a container that does not start, has its own.
func share(all []twin) []twins {
	var alone, shared []twins
	for _, w := range all {
		spec := w.make(byDevmgrd).Spec
		switch {
		case spec.SecurityContext != nil || spec.HostUsers != nil || w.fails != "" || w.lacks() != "":
			alone = append(alone, twins{w})
		case len(shared) == 0 || len(shared[len(shared)-1]) == most:
			shared = append(shared, twins{w})
		default:
			shared[len(shared)-1] = append(shared[len(shared)-1], w)
		}
	}
	return append(alone, shared...)
}

// make makes the pod whose devices come from the plugins of that domain.
func (g twins) make(domain string) *corev1.Pod {
	p := g[0].make(domain)
	for _, w := range g[1:] {
		spec := w.make(domain).Spec
		p.Spec.Containers = append(p.Spec.Containers, spec.Containers...)
		p.Spec.Volumes = append(p.Spec.Volumes, spec.Volumes...)
	}
	return p
}

// lacks returns a feature that the twin needs and the releases under test do not have, or "".
func (w twin) lacks() cluster.Feature {
	for _, f := range w.needs {
		if !cluster.Has(f) {
			return f
		}
	}
	return ""
}

// waitBoth waits until the Node, or its ResourceSlices, shows some of each resource: then its scheduler knows of it.
func (b *pair) waitBoth() {
	b.t.Helper()
	counted := b.plugins
	if b.claims {
		var classes []string
		counted = nil
		for _, p := range b.plugins {
			if strings.HasPrefix(p.Resource, byKubelet) {
				counted = append(counted, p)
			} else {
				classes = append(classes, p.Resource)
			}
		}
		b.class(classes...)
		b.until("each resource has a slice", func() bool {
			list, err := b.Client().ResourceV1().ResourceSlices().List(b.ctx, metav1.ListOptions{})
			return err == nil && len(list.Items) == len(classes)
		})
	}
	b.must(b.WaitNode(b.soon(), func(n *corev1.Node) (bool, error) {
		return !slices.ContainsFunc(counted, func(p *plugintest.Plugin) bool {
			shown := n.Status.Allocatable[corev1.ResourceName(p.Resource)]
			return shown.IsZero()
		}), nil
	}))
}

// resource names the i-th resource, without a domain.
func (w twin) resource(i int) string {
	if i == 0 {
		return w.name
	}
	return fmt.Sprintf("%s-%d", w.name, i+1)
}

// make makes a pod of the twin alone.
func (w twin) make(domain string) *corev1.Pod {
	args := []string{"report"}
	for _, path := range w.open {
		args = append(args, "--open", path)
	}
	p := node.Pod(podName(w.name, domain), "", 0, args...)
	main := &p.Spec.Containers[0]
	main.Name = w.name
	main.Resources.Limits = corev1.ResourceList{}
	for i := range w.answers {
		main.Resources.Limits[corev1.ResourceName(domain+"/"+w.resource(i))] = resource.MustParse("1")
	}
	if w.pod != nil {
		w.pod(p)
	}
	return p
}

// compare compares the containers of a twin in the pods of a pair.
func (b *pair) compare(t *testing.T, pair string, w twin) {
	see := func(domain string) view {
		pod, err := b.WaitPhase(b.soon(), podName(pair, domain), corev1.PodSucceeded)
		if err != nil {
			t.Fatal(err)
		}
		seen, err := b.look(b.ctx, pod, w.name)
		if err != nil {
			t.Fatal(err)
		}
		return seen
	}
	if f := w.lacks(); f != "" {
		b.in(t).lacks(f)
		b.refused(podName(pair, byDevmgrd), "PluginError")
		b.must(b.Delete(b.ctx, podName(pair, byDevmgrd)))
		return
	}
	kubelets := see(byKubelet)
	if w.fails != "" {
		plugintest.Eventually(t, "devmgrd's pod waits: "+w.fails, func() bool {
			return strings.Contains(b.Events(b.ctx, podName(pair, byDevmgrd)), w.fails)
		})
		return
	}
	b.same(t, w, kubelets, see(byDevmgrd), true)
}

// same compares what a container has by the kubelet with what it has by devmgrd.
func (b *pair) same(t *testing.T, w twin, kubelets, ours view, stamped bool) {
	t.Helper()
	var held []string
	for i := range w.answers {
		held = append(held, fmt.Sprintf(`"DOMAIN/%s":["dev-000000"]`, w.resource(i)))
	}
	want := slices.Clone(w.differs)
	if stamped {
		want = append(want, "+annotation devmgrd.io/assignment={"+strings.Join(held, ",")+"}")
	}
	got := slices.DeleteFunc(differences(kubelets, ours), func(d string) bool {
		return slices.ContainsFunc(w.lot, func(begin string) bool { return strings.HasPrefix(d[1:], begin) })
	})
	slices.Sort(want)
	slices.Sort(got)
	for _, d := range differences(want, got) {
		if strings.HasPrefix(d, "-") {
			t.Errorf("this difference is gone: %s", d[1:])
		} else {
			t.Errorf("not as with the kubelet: %s", d[1:])
		}
	}
	for _, line := range w.has {
		if !slices.ContainsFunc(ours, func(l string) bool { return strings.HasPrefix(l, line) }) {
			t.Errorf("the container has no %q", line)
		}
	}
}
