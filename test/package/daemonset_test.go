//go:build e2e

package debian

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/nspawn"
)

// The other way to have devmgrd: the container image and the Helm chart, on the node that the package has left. What the chart
// makes by default is what the shipped manifests make: packaging/helm holds the two together.
func (u *user) daemonSet() {
	u.must(u.Delete(u.ctx, "holder"))
	dir := os.Getenv(packagesVariable)
	u.types(u.Tools.Path("ctr"), "--namespace=k8s.io", "image", "import", filepath.Join(dir, "devmgrd.image.tar"))

	// With what keeps pods that need devmgrd from starting without it. It must not wait for itself.
	u.must(u.FailClosed(u.ctx))
	u.helm("install", "devmgrd", u.chart(), "--values="+u.values())
	set, err := u.Client().AppsV1().DaemonSets(metav1.NamespaceSystem).Get(u.ctx, "devmgrd", metav1.GetOptions{})
	u.must(err)
	u.onlyItsOwnNode(u.lendsKubeconfig())
	u.until("its pod is ready", func() bool { return u.isReady(set, "") })
	u.until("all parts are ready", func() bool {
		status, _, err := u.Get("/readyz")
		return err == nil && status == http.StatusOK
	})
	for _, pid := range node.Processes("/usr/bin/devmgrd") {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		u.must(err)
		u.reads(string(text), "CapEff:\t0000000000000004\n", "CapBnd:\t0000000000000004\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n")
	}
	u.reads(u.helm("test", "devmgrd", "--logs"), "Succeeded", "COMPONENT", "nri", "ok")

	binary := filepath.Join(dir, "devmgrd")
	u.must(u.ApplySampleCDI(u.ctx))
	serves := func() bool {
		out, _ := u.tries(binary, "plugins")
		return strings.Contains(out, "serving")
	}
	u.until("the plugin serves", serves)
	u.shows(2)
	pod, device := u.runs("first")

	// An upgrade with another configuration and with one more right: a new pod of it, and nothing is interrupted.
	stayed := u.watchShown(2)
	old := u.podOf(set)
	u.helm("upgrade", "devmgrd", u.chart(), "--reuse-values", "--set=config.log.level=debug,rbac.eviction=true", "--wait")
	u.until("its next pod is ready", func() bool { return u.isReady(set, old.Name) })
	u.until("the plugin serves again", serves)
	u.runs("later")
	u.runsOn(pod)
	stayed()

	// It may do all that it is meant to: the events are there, and a drain may evict.
	u.until("the pod has the event", func() bool { return strings.Contains(u.Events(u.ctx, "first"), "DevicesAssigned") })
	u.types(binary, "drain", node.SampleResource+"/"+device, "--reason", "dust")
	now := u.podOf(set)
	log, err := u.PodLogs(u.ctx, now.Namespace, now.Name, "devmgrd")
	if err != nil || strings.Contains(log, "forbidden") || !strings.Contains(log, "level=DEBUG") {
		u.t.Errorf("it may not do what it has to, or has the old configuration: %v\n%s", err, log)
	}

	u.types(binary, "uncordon", node.SampleResource+"/"+device)
	u.throughClaims(binary, set, device)

	// Its end leaves what the documents say: who runs, runs on, and the Node keeps its numbers.
	later, err := u.WaitPhase(u.ctx, "later", corev1.PodRunning)
	u.must(err)
	shown, err := u.Client().CoreV1().Nodes().Get(u.ctx, u.NodeName(), metav1.GetOptions{})
	u.must(err)
	u.helm("uninstall", "devmgrd", "--wait")
	u.until("its processes end", func() bool { return len(node.Processes("/usr/bin/devmgrd")) == 0 })
	u.runsOn(later)
	after, err := u.Client().CoreV1().Nodes().Get(u.ctx, u.NodeName(), metav1.GetOptions{})
	u.must(err)
	for _, list := range [][2]corev1.ResourceList{{shown.Status.Capacity, after.Status.Capacity}, {shown.Status.Allocatable, after.Status.Allocatable}} {
		if was, is := list[0][node.SampleResource], list[1][node.SampleResource]; !was.Equal(is) {
			u.t.Errorf("the Node has shown %s devices and shows %s", &was, &is)
		}
	}
	for _, path := range []string{"/var/lib/devmgrd/state.db", "/run/devmgrd", "/var/lib/kubelet/device-plugins/devmgrd.txt"} {
		if _, err := os.Stat(path); err != nil {
			u.t.Error(err)
		}
	}
	for _, role := range []string{"devmgrd", "devmgrd-own-node"} {
		if _, err := u.Client().RbacV1().ClusterRoles().Get(u.ctx, role, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			u.t.Errorf("cluster role %s: %v", role, err)
		}
	}
}

// throughClaims moves the resource to Dynamic Resource Allocation and back, with the service account's rights, while a pod runs. device is the
// free one.
func (u *user) throughClaims(binary string, set *appsv1.DaemonSet, device string) {
	u.t.Helper()
	class := &resourceapi.DeviceClass{}
	u.must(yaml.UnmarshalStrict([]byte(u.types(binary, "deviceclass", node.SampleResource)), class))
	classes := u.Client().ResourceV1().DeviceClasses()
	_, err := classes.Create(u.ctx, class, metav1.CreateOptions{})
	u.must(err)
	next := func(resources string) {
		old := u.podOf(set)
		u.helm("upgrade", "devmgrd", u.chart(), "--reuse-values", "--set-json=config.dra.resources="+resources, "--wait")
		u.until("its next pod is ready", func() bool { return u.isReady(set, old.Name) })
	}
	next(`["` + node.SampleResource + `"]`)
	u.shows(-1)
	if _, got := u.runs("claims"); got != device {
		u.t.Errorf("the pod has %s, and %s is free", got, device)
	}
	claims, err := u.Client().ResourceV1().ResourceClaims(metav1.NamespaceDefault).List(u.ctx, metav1.ListOptions{})
	u.must(err)
	if len(claims.Items) != 1 || claims.Items[0].Status.Allocation == nil || len(claims.Items[0].Status.ReservedFor) != 1 {
		u.t.Errorf("the claims are %+v", claims.Items)
	}
	u.must(u.Delete(u.ctx, "claims"))
	next("[]")
	u.shows(2)
	u.until("no slice is left", func() bool {
		all, err := u.Client().ResourceV1().ResourceSlices().List(u.ctx, metav1.ListOptions{})
		return err == nil && len(all.Items) == 0
	})
	u.must(classes.Delete(u.ctx, class.Name, metav1.DeleteOptions{}))
}

// helm runs a command of Helm in the namespace of the release.
func (u *user) helm(words ...string) string {
	u.t.Helper()
	tools, err := cluster.Build(u.ctx, u.t.Output(), cluster.Helm)
	u.must(err)
	return u.types(append([]string{tools.Path("helm"), "--kubeconfig=" + u.Kubeconfig(), "--namespace=" + metav1.NamespaceSystem}, words...)...)
}

func (u *user) chart() string { return filepath.Join(nspawn.Source(), "packaging/helm/devmgrd") }

const kubeconfigSecret = "kubeconfig"

// values writes the chart's values for this cluster. It has no Services, so the API server is not where a pod looks for it: a
// kubeconfig comes with an address. And the sample plugin grants files of /tmp.
func (u *user) values() string {
	u.t.Helper()
	file := filepath.Join(u.t.TempDir(), "values.yaml")
	name, tag, _ := strings.Cut(image, ":")
	u.must(os.WriteFile(file, fmt.Appendf(nil, `image: {repository: %s, tag: %q, pullPolicy: Never}
config: {kubernetes: {kubeconfig: /kubeconfig/config}}
dra: {enabled: true}
hostPaths: [/tmp]
extraVolumes: [{name: kubeconfig, secret: {secretName: %s}}]
extraVolumeMounts: [{name: kubeconfig, mountPath: /kubeconfig, readOnly: true}]
`, name, tag, kubeconfigSecret), 0o600))
	return file
}

// runsOn wants a pod's container to be the one that it was.
func (u *user) runsOn(pod *corev1.Pod) {
	u.t.Helper()
	after, err := u.WaitPhase(u.ctx, pod.Name, corev1.PodRunning)
	u.must(err)
	if was, is := node.ContainerID(pod), node.ContainerID(after); was != is {
		u.t.Errorf("the container of pod %s was %s and is %s", pod.Name, was, is)
	}
}

// lendsKubeconfig makes the Secret of which the values speak: a token of devmgrd's own service account, which says like a pod's
// own on which node it is used.
func (u *user) lendsKubeconfig() (token string) {
	u.t.Helper()
	bound := &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: u.NodeName()}
	answer, err := u.Client().CoreV1().ServiceAccounts(metav1.NamespaceSystem).CreateToken(u.ctx, "devmgrd",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound}}, metav1.CreateOptions{})
	u.must(err)
	token = answer.Status.Token
	config := u.RESTConfig()
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"clusters": [{"name": "c", "cluster": {"server": %q, "certificate-authority-data": %q}}],
"users": [{"name": "c", "user": {"token": %q}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]}`,
		config.Host, base64.StdEncoding.EncodeToString(config.CAData), token)
	_, err = u.Client().CoreV1().Secrets(metav1.NamespaceSystem).Create(u.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: kubeconfigSecret}, StringData: map[string]string{"config": text},
	}, metav1.CreateOptions{})
	u.must(err)
	return token
}

// onlyItsOwnNode tries what a thief of the token could do.
func (u *user) onlyItsOwnNode(token string) {
	u.t.Helper()
	nodes := u.Client().CoreV1().Nodes()
	_, err := nodes.Create(u.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{})
	u.must(err)
	config := rest.AnonymousClientConfig(u.RESTConfig())
	config.BearerToken = token
	client, err := clientset.NewForConfig(config)
	u.must(err)
	send := func(node string, kind types.PatchType, text string) error {
		_, err := client.CoreV1().Nodes().Patch(u.ctx, node, kind, []byte(text),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, "status")
		return err
	}
	patch := func(node, text string) error { return send(node, types.MergePatchType, text) }
	condition := func(kind string) error {
		return send(u.NodeName(), types.StrategicMergePatchType, fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":"False","reason":"X"}]}}`, kind))
	}
	change := func(node string) error { return patch(node, `{"status":{"capacity":{"vendor.example/x":"1"}}}`) }
	u.until("the policy is in force", func() bool {
		err := change("other")
		return err != nil && strings.Contains(err.Error(), "its own node only")
	})
	u.must(change(u.NodeName()))
	u.must(patch(u.NodeName(), `{"status":{"capacity":{"vendor.example/x":"1"},"allocatable":{"vendor.example/x":"1"}}}`))
	u.must(condition("DevicesHealthy"))
	for _, kind := range []string{"Ready", "KernelDeadlock"} {
		if err := condition(kind); err == nil || !strings.Contains(err.Error(), "its own conditions only") {
			u.t.Errorf("condition %s of the own node is changed: %v", kind, err)
		}
	}
	own, err := nodes.Get(u.ctx, u.NodeName(), metav1.GetOptions{})
	u.must(err)
	var foreign []int
	for i, c := range own.Status.Conditions {
		if c.Type != "DevicesHealthy" && c.Type != "DeviceManagerReady" {
			foreign = append(foreign, i)
		}
	}
	for _, change := range []string{ // another copy, the last of which some readers believe; and another order
		fmt.Sprintf(`[{"op":"copy","from":"/status/conditions/%d","path":"/status/conditions/-"}]`, foreign[0]),
		fmt.Sprintf(`[{"op":"move","from":"/status/conditions/%d","path":"/status/conditions/%d"}]`, foreign[0], foreign[1]),
	} {
		if err := send(u.NodeName(), types.JSONPatchType, change); err == nil || !strings.Contains(err.Error(), "its own conditions only") {
			u.t.Errorf("%s: %v", change, err)
		}
	}
	for what, text := range map[string]string{
		"an address":                `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}`,
		"a condition":               `{"status":{"conditions":[]}}`,
		"a field that was not set":  `{"status":{"phase":"Terminated"}}`,
		"a field that is taken off": `{"status":{"nodeInfo":{"kubeletVersion":""}}}`,
		"CPUs":                      `{"status":{"capacity":{"cpu":"1000"}}}`,
		"memory":                    `{"status":{"allocatable":{"memory":null}}}`,
		"a resource of Kubernetes":  `{"status":{"capacity":{"example.kubernetes.io/x":"1"}}}`,
		"a label":                   `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`,
		"an annotation":             `{"metadata":{"annotations":{"vendor.example/x":"1"}}}`,
	} {
		if err := patch(u.NodeName(), text); err == nil || !strings.Contains(err.Error(), "devmgrd may ") {
			u.t.Errorf("%s of the own node is changed: %v", what, err)
		}
	}
	err = client.CoreV1().Pods(metav1.NamespaceDefault).EvictV1(u.ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: "holder", Namespace: metav1.NamespaceDefault}, DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
	})
	if !apierrors.IsForbidden(err) {
		u.t.Errorf("an eviction: %v, want it forbidden", err)
	}
	if _, err := client.CoreV1().Secrets(metav1.NamespaceSystem).List(u.ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		u.t.Errorf("listing secrets: %v, want it forbidden", err)
	}
	u.onlyItsOwnSlices(client)
	u.must(nodes.Delete(u.ctx, "other", metav1.DeleteOptions{}))
}

// onlyItsOwnSlices tries what a thief of the token could do with ResourceSlices.
func (u *user) onlyItsOwnSlices(client clientset.Interface) {
	u.t.Helper()
	slice := func(name, node, driver, pool string) *resourceapi.ResourceSlice {
		return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: 1},
		}}
	}
	own, slices, all := u.NodeName(), client.ResourceV1().ResourceSlices(), u.Client().ResourceV1().ResourceSlices()
	dry := []string{metav1.DryRunAll}
	create := func(s *resourceapi.ResourceSlice) error {
		_, err := slices.Create(u.ctx, s, metav1.CreateOptions{DryRun: dry})
		return err
	}
	u.until("the policy for slices is in force", func() bool {
		err := create(slice("x", "other", "devmgrd.io", "other/vendor.example/x/0"))
		return err != nil && strings.Contains(err.Error(), "of its own node only")
	})
	u.must(create(slice("x", own, "devmgrd.io", own+"/vendor.example/x/0")))
	for what, s := range map[string]*resourceapi.ResourceSlice{
		"another driver's":           slice("x", own, "driver.example", own+"/vendor.example/x/0"),
		"one in another node's pool": slice("x", own, "devmgrd.io", "other/vendor.example/x/0"),
	} {
		if err := create(s); err == nil || !strings.Contains(err.Error(), "devmgrd may write ResourceSlices ") {
			u.t.Errorf("%s slice is created: %v", what, err)
		}
	}
	for _, s := range []*resourceapi.ResourceSlice{
		slice("x-node", "other", "devmgrd.io", "other/vendor.example/x/0"), slice("x-driver", own, "driver.example", own+"/vendor.example/x/0"),
	} {
		made, err := all.Create(u.ctx, s, metav1.CreateOptions{})
		u.must(err)
		made.Labels = map[string]string{"x": "x"}
		if _, err := slices.Update(u.ctx, made, metav1.UpdateOptions{DryRun: dry}); err == nil || !strings.Contains(err.Error(), "devmgrd may write ") {
			u.t.Errorf("slice %s is changed: %v", s.Name, err)
		}
		if err := slices.Delete(u.ctx, s.Name, metav1.DeleteOptions{DryRun: dry}); err == nil || !strings.Contains(err.Error(), "devmgrd may write ") {
			u.t.Errorf("slice %s is deleted: %v", s.Name, err)
		}
		u.must(all.Delete(u.ctx, s.Name, metav1.DeleteOptions{}))
	}
}

// podOf returns the DaemonSet's pod on the only node, or nil.
func (u *user) podOf(set *appsv1.DaemonSet) *corev1.Pod {
	u.t.Helper()
	var pods *corev1.PodList
	u.until("the API server lists the pods", func() (listed bool) {
		var err error
		pods, err = u.Client().CoreV1().Pods(set.Namespace).List(u.ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(set.Spec.Selector)})
		return err == nil
	})
	if len(pods.Items) != 1 {
		return nil
	}
	return &pods.Items[0]
}

// isReady says whether the DaemonSet has a pod other than that one, and it is ready.
func (u *user) isReady(set *appsv1.DaemonSet, other string) bool {
	u.t.Helper()
	pod := u.podOf(set)
	if pod == nil || pod.Name == other {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}
