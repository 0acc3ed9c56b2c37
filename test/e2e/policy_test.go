//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/plugin"
	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/node"
)

const required = node.RequiredPlugins

// needs returns the plugins that containerd's validator wants for a container, as it reads them.
func needs(p *corev1.Pod, container string) (names []string, err error) {
	value, _ := plugin.GetEffectiveAnnotation(&api.PodSandbox{Annotations: p.Annotations}, plugin.RequiredPluginsAnnotation, container)
	return names, yaml.Unmarshal([]byte(value), &names)
}

// thePolicy says of the right pods that they need devmgrd, and leaves all others as they are.
func (r *harness) thePolicy() {
	limit := func(p *corev1.Pod, list *[]corev1.Container, name, count string) {
		if len(*list) == 0 {
			*list = append(*list, corev1.Container{Name: "first", Image: "x"})
		}
		last := &(*list)[len(*list)-1]
		if last.Resources.Limits == nil {
			last.Resources.Limits = corev1.ResourceList{}
		}
		last.Resources.Limits[corev1.ResourceName(name)] = resource.MustParse(count)
	}
	asks := func(name, count string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { limit(p, &p.Spec.Containers, name, count) }
	}
	mounts := func(path string, change ...func(*corev1.VolumeMount)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}})
			m := corev1.VolumeMount{Name: "v", MountPath: "/v"}
			for _, f := range change {
				f(&m)
			}
			p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, m)
		}
	}
	readOnly := func(m *corev1.VolumeMount) { m.ReadOnly = true }
	spread := func(mode corev1.MountPropagationMode) func(*corev1.VolumeMount) {
		return func(m *corev1.VolumeMount) { m.MountPropagation = &mode }
	}
	privileged := func(p *corev1.Pod) {
		yes := true
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
	}
	uses := func(in func(*corev1.Pod) *[]corev1.Container) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			claim := "own"
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "mine", ResourceClaimName: &claim}}
			if in == nil {
				return
			}
			list := in(p)
			if len(*list) == 0 {
				*list = []corev1.Container{{Name: "first", Image: "x"}}
			}
			(*list)[0].Resources.Claims = []corev1.ResourceClaim{{Name: "mine"}}
		}
	}
	annotated := func(key, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, key, value) }
	}
	const kubelet = "/var/lib/kubelet"
	const plugins = kubelet + "/device-plugins"
	for name, test := range map[string]struct {
		pod   []func(*corev1.Pod)
		needs bool
	}{
		"nothing":                         {nil, false},
		"CPU and memory":                  {[]func(*corev1.Pod){asks("cpu", "1"), asks("memory", "1Gi"), asks("ephemeral-storage", "1Gi"), asks("hugepages-2Mi", "2Mi")}, false},
		"a device":                        {[]func(*corev1.Pod){asks(gpu, "1")}, true},
		"a device and CPU":                {[]func(*corev1.Pod){asks("cpu", "1"), asks(gpu, "2k")}, true},
		"no device":                       {[]func(*corev1.Pod){asks(gpu, "0")}, false},
		"no device, spelled out":          {[]func(*corev1.Pod){asks(gpu, "0e3")}, false},
		"one of Kubernetes' own":          {[]func(*corev1.Pod){asks("sub.kubernetes.io/x", "1")}, false},
		"a device without a dot":          {[]func(*corev1.Pod){asks("vendor/x", "1")}, true},
		"an annotation of its own":        {[]func(*corev1.Pod){annotated("a/b", "c")}, false},
		"another plugin":                  {[]func(*corev1.Pod){annotated(required+"/pod", `["other"]`)}, false},
		"a device, and an annotation":     {[]func(*corev1.Pod){annotated("a/b", "c"), asks(gpu, "1")}, true},
		"an init container with a device": {[]func(*corev1.Pod){func(p *corev1.Pod) { limit(p, &p.Spec.InitContainers, gpu, "1") }}, true},
		"a sidecar with a device": {[]func(*corev1.Pod){func(p *corev1.Pod) {
			limit(p, &p.Spec.InitContainers, gpu, "1")
			always := corev1.ContainerRestartPolicyAlways
			p.Spec.InitContainers[0].RestartPolicy = &always
		}}, true},
		"a second container with a device": {[]func(*corev1.Pod){func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "second", Image: "x"})
		}, asks(gpu, "1")}, true},

		"a claim":                        {[]func(*corev1.Pod){uses(func(p *corev1.Pod) *[]corev1.Container { return &p.Spec.Containers })}, true},
		"a claim of an init container":   {[]func(*corev1.Pod){uses(func(p *corev1.Pod) *[]corev1.Container { return &p.Spec.InitContainers })}, true},
		"a claim that no container uses": {[]func(*corev1.Pod){uses(nil)}, false},

		"an empty volume":                 {[]func(*corev1.Pod){func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "v"}} }}, false},
		"the plugins' directory":          {[]func(*corev1.Pod){mounts(plugins)}, true},
		"the same, spelled differently":   {[]func(*corev1.Pod){mounts("//var/lib/./kubelet//device-plugins/")}, true},
		"the socket":                      {[]func(*corev1.Pod){mounts(plugins + "/kubelet.sock")}, true},
		"the kubelet's directory":         {[]func(*corev1.Pod){mounts(kubelet + "/")}, true},
		"the same with the host's mounts": {[]func(*corev1.Pod){mounts(kubelet, spread(corev1.MountPropagationHostToContainer))}, true},
		"the same, to read":               {[]func(*corev1.Pod){mounts(kubelet, readOnly)}, false},
		"the same, shared":                {[]func(*corev1.Pod){privileged, mounts(kubelet, spread(corev1.MountPropagationBidirectional))}, false},
		"the same, shared and not":        {[]func(*corev1.Pod){privileged, mounts(kubelet, spread(corev1.MountPropagationBidirectional)), mountsAgain}, true},
		"the plugins' directory, shared":  {[]func(*corev1.Pod){privileged, mounts(plugins, spread(corev1.MountPropagationBidirectional))}, true},
		"the whole host":                  {[]func(*corev1.Pod){mounts("/")}, false},
		"another directory":               {[]func(*corev1.Pod){mounts(kubelet + "/pods")}, false},
		"what is below":                   {[]func(*corev1.Pod){mounts(plugins + "/vendor.sock")}, false},
		"what begins alike":               {[]func(*corev1.Pod){mounts(plugins + "-2")}, false},
		"another host's":                  {[]func(*corev1.Pod){mounts("/opt" + plugins)}, false},
		"no redirect":                     {[]func(*corev1.Pod){mounts(plugins), annotated("devmgrd.io/redirect", "false")}, false},
		"no redirect, and a device":       {[]func(*corev1.Pod){mounts(plugins), annotated("devmgrd.io/redirect", "false"), asks(gpu, "1")}, true},
		"the registry":                    {[]func(*corev1.Pod){mounts(kubelet + "/plugins_registry")}, false},
		"the registry, redirected":        {[]func(*corev1.Pod){mounts(kubelet + "/plugins_registry"), annotated("devmgrd.io/redirect", "plugins_registry")}, true},

		"very much of everything": {[]func(*corev1.Pod){huge}, false},
		"very much, and a device": {[]func(*corev1.Pod){huge, asks(gpu, "1")}, true},
	} {
		p := node.Pod("a", "", 0)
		for _, f := range test.pod {
			f(p)
		}
		got, err := r.Admitted(r.ctx, p)
		if err != nil {
			r.t.Errorf("%s: %v", name, err)
			continue
		}
		want := maps.Clone(p.Annotations)
		if test.needs {
			if want == nil {
				want = map[string]string{}
			}
			want[required+"/pod"] = `["devmgrd"]`
		}
		if !maps.Equal(got.Annotations, want) {
			r.t.Errorf("%s: the annotations are %q, want %q", name, got.Annotations, want)
		}
	}

	// What the pod has said itself is kept, and nothing that it says lets it start without devmgrd.
	for value, own := range map[string][]string{
		``: nil, `[]`: nil, ` [ ] `: nil, `null`: nil, `~`: nil, `["devmgrd"]`: nil, `['devmgrd']`: nil, "- devmgrd\n": nil,
		`["other"]`: {"other"}, "\n[other, 05-devmgrd ]\n": {"other", "05-devmgrd"}, `["devmgrd", "other"]`: {"other"}, `["devmgrd","other"]`: {"other"},
		"- a\n- b": {"a", "b"}, "- \"devmgrd\"\n- b": {"b"}, "[a, # ]\n b]": {"a", "b"}, "[a]\n---\n[b]": {"a"},
		"- devmgrd\n  x": {"devmgrd x"}, `["x, devmgrd"]`: {"x, devmgrd"},
		// No list, or one that is not read. No pod starts with that.
		"[": nil, "{}": nil, "other": nil, "# nothing": nil, "--- []": nil, "---\n- a": nil, "!!seq []": nil, "&a [b]": nil, "NULL": nil, "%YAML 1.1\n---\n[]": nil,
		"  - a\n  - b": nil, `["devmgrd"]: [x]`: nil, "- \"devmgrd\"\n  x": nil, "- - devmgrd": nil, "? []": nil, "...": nil, "...\n[]": nil,
	} {
		for _, key := range []string{required, required + "/pod", required + "/container.main", required + "/container.other"} {
			p := node.Pod("a", gpu, 1)
			p.Annotations = map[string]string{key: value}
			got, err := r.Admitted(r.ctx, p)
			if err != nil {
				r.t.Errorf("%s: %q: %v", key, value, err)
				continue
			}
			container := "main"
			if strings.HasSuffix(key, ".other") {
				container = "other"
			}
			names, err := needs(got, container)
			if err == nil && (!slices.Contains(names, "devmgrd") || len(own) > 0 && !slices.Equal(own, names[len(names)-len(own):])) {
				r.t.Errorf("%s: %q has become %q, which needs %q; want devmgrd and then %q", key, value, got.Annotations, names, own)
			}
			if err != nil && own != nil {
				r.t.Errorf("%s: %q has become %q: %v", key, value, got.Annotations, err)
			}
			// Looked at again, as with each update, it stays.
			again := node.Pod("a", gpu, 1)
			again.Annotations = got.Annotations
			if twice, err := r.Admitted(r.ctx, again); err != nil || !maps.Equal(twice.Annotations, got.Annotations) {
				r.t.Errorf("%s: %q has become %q, and then %q (%v)", key, value, got.Annotations, twice.Annotations, err)
			}
		}
	}

	// A pod from which the annotation is taken away has it again.
	gated := node.Pod("gated", gpu, 1)
	gated.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "test/never"}}
	r.must(r.Create(r.ctx, gated))
	gated, err := r.Client().CoreV1().Pods(gated.Namespace).Get(r.ctx, gated.Name, metav1.GetOptions{})
	r.must(err)
	gated.Annotations, gated.ResourceVersion = nil, ""
	gated, err = r.Client().CoreV1().Pods(gated.Namespace).Update(r.ctx, gated, metav1.UpdateOptions{})
	r.must(err)
	if names, err := needs(gated, "main"); err != nil || !slices.Equal(names, []string{"devmgrd"}) {
		r.t.Errorf("after an update the pod needs %q (%v), want devmgrd", names, err)
	}
	r.must(r.Delete(r.ctx, gated.Name))

	// The list of resources that are not devmgrd's.
	set := func(expression string) { r.must(r.SetIgnored(r.ctx, expression)) }
	set("['" + gpu + "', 'slots.example/*']")
	began := time.Now()
	r.until("the list is in force", func() bool {
		p, err := r.Admitted(r.ctx, node.Pod("a", gpu, 1))
		return err == nil && p.Annotations[required+"/pod"] == ""
	})
	r.t.Logf("a change of the policy is in force after %s", time.Since(began).Round(time.Millisecond))
	for name, want := range map[string]bool{"slots.example/a": false, "more.slots.example/a": true, nic: true} {
		p, err := r.Admitted(r.ctx, node.Pod("a", name, 1))
		if err != nil || (p.Annotations[required+"/pod"] != "") != want {
			r.t.Errorf("%s: the annotations are %q (%v); should it need devmgrd: %v", name, p.Annotations, err, want)
		}
	}
	set("[]")
	r.until("the list is empty again", func() bool {
		p, err := r.Admitted(r.ctx, node.Pod("a", gpu, 1))
		return err == nil && p.Annotations[required+"/pod"] != ""
	})
}

// mountsAgain has a second container mount the same volume in the usual way.
func mountsAgain(p *corev1.Pod) {
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "second", Image: "x", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}})
}

// huge returns a pod as much as the API server takes in one piece, or nearly, and nothing that is devmgrd's.
func huge(p *corev1.Pod) {
	for i := range 500 {
		name := fmt.Sprint("x-", i)
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/kubelet/pods/" + strings.Repeat(name+"/", 20)}}})
		c := corev1.Container{Name: name, Image: "x", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
			"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi"), "sub.kubernetes.io/x": resource.MustParse("1"), "sub.kubernetes.io/y": resource.MustParse("1"),
		}}}
		for j := range 10 {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: fmt.Sprint("x-", (i+j)%500), MountPath: fmt.Sprint("/v/", j)})
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, "test/"+name, strings.Repeat("v", 300))
	}
	slices.Reverse(p.Spec.Containers) // so that the first one is the last
}
