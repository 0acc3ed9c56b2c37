//go:build e2e

package debian

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/devmgrd/devmgrd/packaging/kubernetes"
	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
)

// The other way to have devmgrd: as the DaemonSet that is shipped, with the rights that are shipped, on the node that the
// package has left.
func (u *user) daemonSet() {
	u.must(u.Delete(u.ctx, "holder"))
	binary := filepath.Join(os.Getenv(packagesVariable), "devmgrd")
	const image = "localhost/devmgrd:1"
	u.must(u.LoadImage(u.ctx, cluster.Image{Name: image, Entrypoint: []string{"/usr/bin/devmgrd"}, Files: map[string]string{"/usr/bin/devmgrd": binary}}))

	// With what keeps pods that need devmgrd from starting without it. It must not wait for itself.
	u.must(u.FailClosed(u.ctx))
	set := u.applies(kubernetes.RBAC + "\n---\n" + kubernetes.DaemonSet)

	// This cluster has no Services, so the API server is not where a pod looks for it: the token comes with an address.
	set.Spec.Template.Spec.Containers[0].Image = image
	token := u.lendsKubeconfig(set)
	u.onlyItsOwnNode(token)
	u.applies(kubernetes.RBACEviction) // for the drain below
	u.addsHostPath(set, "/tmp")        // as the manifest says: this plugin grants files there
	set, err := u.Client().AppsV1().DaemonSets(set.Namespace).Create(u.ctx, set, strictly)
	u.must(err)
	u.until("its pod is ready", func() bool { return u.isReady(set, "") })
	if status, text, err := u.Get("/readyz"); err != nil || status != http.StatusOK {
		u.t.Errorf("/readyz: status %d, %v\n%s", status, err, text)
	}
	for _, pid := range u.processes() {
		text, err := os.ReadFile("/proc/" + pid + "/status")
		u.must(err)
		u.reads(string(text), "CapEff:\t0000000000000004\n", "CapBnd:\t0000000000000004\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n")
	}

	plugin, err := u.SamplePlugin()
	u.must(err)
	main := &plugin.Spec.Template.Spec.Containers[0]
	main.Env = append(main.Env, corev1.EnvVar{Name: "CDI_ENABLED", Value: "1"})
	u.must(u.Apply(u.ctx, plugin))
	u.until("the plugin serves", func() bool {
		out, _ := u.tries(binary, "plugins")
		return strings.Contains(out, "serving")
	})
	u.shows(2)
	pod, device := u.runs("first")

	// A new pod of it, as at a roll-out: nothing is interrupted.
	stayed := u.watchNumbers(2)
	old := u.podOf(set)
	u.must(u.Client().CoreV1().Pods(old.Namespace).Delete(u.ctx, old.Name, metav1.DeleteOptions{}))
	u.until("its next pod is ready", func() bool { return u.isReady(set, old.Name) })
	u.until("the plugin serves again", func() bool {
		out, _ := u.tries(binary, "plugins")
		return strings.Contains(out, "serving")
	})
	u.runs("later")
	after, err := u.WaitPhase(u.ctx, "first", corev1.PodRunning)
	u.must(err)
	if was, is := node.ContainerID(pod), node.ContainerID(after); was != is {
		u.t.Errorf("the pod's container was %s and is %s", was, is)
	}
	stayed()

	// It may do all that it is meant to: the events are there, and a drain may evict.
	u.until("the pod has the event", func() bool { return strings.Contains(u.Events(u.ctx, "first"), "DevicesAssigned") })
	u.types(binary, "drain", node.SampleResource+"/"+device, "--reason", "dust")
	now := u.podOf(set)
	log, err := u.PodLogs(u.ctx, now.Namespace, now.Name, "devmgrd")
	if err != nil || strings.Contains(log, "forbidden") {
		u.t.Errorf("it may not do what it has to: %v\n%s", err, log)
	}
}

// applies makes what is in manifests, but a DaemonSet, which it returns.
func (u *user) applies(manifests string) (set *appsv1.DaemonSet) {
	u.t.Helper()
	for _, object := range u.decodes(manifests) {
		var err error
		switch o := object.(type) {
		case *corev1.ServiceAccount:
			_, err = u.Client().CoreV1().ServiceAccounts(o.Namespace).Create(u.ctx, o, strictly)
		case *rbacv1.ClusterRole:
			_, err = u.Client().RbacV1().ClusterRoles().Create(u.ctx, o, strictly)
		case *rbacv1.ClusterRoleBinding:
			_, err = u.Client().RbacV1().ClusterRoleBindings().Create(u.ctx, o, strictly)
		case *admissionv1.ValidatingAdmissionPolicy:
			_, err = u.Client().AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(u.ctx, o, strictly)
		case *admissionv1.ValidatingAdmissionPolicyBinding:
			_, err = u.Client().AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(u.ctx, o, strictly)
		case *appsv1.DaemonSet:
			set = o
		default:
			err = fmt.Errorf("there is a %T in the manifests", o)
		}
		u.must(err)
	}
	return set
}

var strictly = metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}

// decodes reads manifests as strictly as the API server would.
func (u *user) decodes(manifests string) (objects []any) {
	u.t.Helper()
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		object, _, err := decoder.Decode([]byte(document), nil, nil)
		u.must(err)
		objects = append(objects, object)
	}
	return objects
}

// lendsKubeconfig has the DaemonSet use a token of its own service account, by way of the ConfigMap that the manifest knows.
func (u *user) lendsKubeconfig(set *appsv1.DaemonSet) (token string) {
	u.t.Helper()
	pod := &set.Spec.Template.Spec
	// Like a pod's own, it says on which node it is used.
	bound := &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: u.NodeName()}
	answer, err := u.Client().CoreV1().ServiceAccounts(set.Namespace).CreateToken(u.ctx, pod.ServiceAccountName,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound}}, metav1.CreateOptions{})
	u.must(err)
	token = answer.Status.Token
	config := u.RESTConfig()
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"clusters": [{"name": "c", "cluster": {"server": %q, "certificate-authority-data": %q}}],
"users": [{"name": "c", "user": {"token": %q}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]}`,
		config.Host, base64.StdEncoding.EncodeToString(config.CAData), token)
	const name = "kubeconfig"
	_, err = u.Client().CoreV1().Secrets(set.Namespace).Create(u.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"config": text},
	}, metav1.CreateOptions{})
	u.must(err)
	_, err = u.Client().CoreV1().ConfigMaps(set.Namespace).Create(u.ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "devmgrd"}, Data: map[string]string{"config.yaml": "kubernetes:\n  kubeconfig: /kubeconfig/config\n"},
	}, metav1.CreateOptions{})
	u.must(err)
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}})
	pod.Containers[0].VolumeMounts = append(pod.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/kubeconfig", ReadOnly: true})
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
	patch := func(node, text string) error {
		_, err := client.CoreV1().Nodes().Patch(u.ctx, node, types.MergePatchType, []byte(text),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, "status")
		return err
	}
	change := func(node string) error { return patch(node, `{"status":{"capacity":{"vendor.example/x":"1"}}}`) }
	u.until("the policy is in force", func() bool {
		err := change("other")
		return err != nil && strings.Contains(err.Error(), "its own node only")
	})
	u.must(change(u.NodeName()))
	u.must(patch(u.NodeName(), `{"status":{"capacity":{"vendor.example/x":"1"},"allocatable":{"vendor.example/x":"1"}}}`))
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
	u.must(nodes.Delete(u.ctx, "other", metav1.DeleteOptions{}))
}

// addsHostPath has the DaemonSet see a directory of the host.
func (u *user) addsHostPath(set *appsv1.DaemonSet, path string) {
	pod := &set.Spec.Template.Spec
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "granted", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}})
	pod.Containers[0].VolumeMounts = append(pod.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "granted", MountPath: path})
}

// podOf returns the DaemonSet's pod on the only node, or nil.
func (u *user) podOf(set *appsv1.DaemonSet) *corev1.Pod {
	u.t.Helper()
	pods, err := u.Client().CoreV1().Pods(set.Namespace).List(u.ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(set.Spec.Selector)})
	u.must(err)
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
