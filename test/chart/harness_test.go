//go:build e2e

package chart

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
)

// patience is how long the tests wait for what has to come: the limit of a machine that does many things at once, not an expectation.
const patience = 6 * time.Minute

// release is the name of the release, and so of the DaemonSet and the service account.
const release = "devmgrd"

// program is devmgrd's path in the image.
const program = "/usr/bin/devmgrd"

// kubeconfigSecret is the Secret that the chart's values mount.
const kubeconfigSecret = "kubeconfig"

// A harness is a cluster for one test, with the chart installed. An error ends the test.
type harness struct {
	*node.Node
	t    *testing.T
	ctx  context.Context
	set  *appsv1.DaemonSet
	home string // Helm's
}

// install starts a cluster with the policy that keeps pods that need devmgrd from starting without it, for which devmgrd's own pod must not
// wait, and installs the chart. devmgrd's pod then waits for the Secret of lendKubeconfig.
func install(t *testing.T) *harness {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	t.Cleanup(cancel)
	n, err := node.StartCluster(ctx, cluster.Options{Log: t.Output(), Processors: 1})
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{Node: n, t: t, ctx: ctx, home: t.TempDir()}
	t.Cleanup(func() {
		if t.Failed() {
			h.describe()
		}
		if err := h.stop(); err != nil {
			t.Error(err)
		}
	})
	h.run(n.Tools.Path("ctr"), "--namespace=k8s.io", "image", "import", os.Getenv(archiveVariable))
	h.must(h.FailClosed(ctx))
	h.helm("install", release, chart(t), "--values="+h.values())
	h.set, err = h.Client().AppsV1().DaemonSets(metav1.NamespaceSystem).Get(ctx, release, metav1.GetOptions{})
	h.must(err)
	return h
}

// start installs the chart, and returns when devmgrd is ready and serves the sample plugin's two devices.
func start(t *testing.T) *harness {
	t.Helper()
	h := install(t)
	h.lendKubeconfig(h.token())
	h.until("the pod is ready", func() bool { return h.readyBut("") })
	h.until("all parts are ready", func() bool {
		status, _, err := h.Get("/readyz")
		return err == nil && status == http.StatusOK
	})
	for _, device := range []string{"Dev-1", "Dev-2"} { // the plugin grants mounts of them, and devmgrd's pod has /tmp read-only
		h.must(os.MkdirAll(filepath.Join("/tmp", device), 0o755))
	}
	h.must(h.ApplySampleCDI(h.ctx))
	h.until("the plugin serves", h.pluginServes)
	h.shows(2)
	return h
}

// stop ends devmgrd first, which the kubelet would start again: the API server's end would wait a minute for its connections.
func (h *harness) stop() error {
	err := h.Kubelet.Stop(time.Minute)
	for _, pid := range node.Processes(program) {
		if killing := syscall.Kill(pid, syscall.SIGKILL); !errors.Is(killing, syscall.ESRCH) {
			err = errors.Join(err, killing)
		}
	}
	return errors.Join(err, h.Stop())
}

func (h *harness) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// until waits for a condition.
func (h *harness) until(what string, condition func() bool) {
	h.t.Helper()
	if cluster.Poll(h.soon(), func(context.Context) (bool, error) { return condition(), nil }) != nil {
		h.t.Fatalf("not within %s: %s", patience, what)
	}
}

// soon is a context for what has to come.
func (h *harness) soon() context.Context {
	ctx, cancel := context.WithTimeout(h.ctx, patience)
	h.t.Cleanup(cancel)
	return ctx
}

// run runs a program that has to succeed, and returns what it prints.
func (h *harness) run(words ...string) string {
	h.t.Helper()
	return h.succeeds(exec.CommandContext(h.ctx, words[0], words[1:]...))
}

// devmgrd runs one of devmgrd's commands on the node.
func (h *harness) devmgrd(words ...string) string {
	h.t.Helper()
	return h.succeeds(h.Command(h.ctx, words...))
}

func (h *harness) succeeds(cmd *exec.Cmd) string {
	h.t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		h.t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return string(out)
}

// helm runs a command of Helm in the namespace of the release.
func (h *harness) helm(words ...string) string {
	h.t.Helper()
	tools, err := cluster.Build(h.ctx, h.t.Output(), cluster.Helm)
	h.must(err)
	cmd := exec.CommandContext(h.ctx, tools.Path("helm"), append([]string{"--kubeconfig=" + h.Kubeconfig(), "--namespace=" + metav1.NamespaceSystem}, words...)...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+h.home, "HELM_CONFIG_HOME="+h.home, "HELM_DATA_HOME="+h.home)
	return h.succeeds(cmd)
}

// upgrade upgrades the release, and returns when another pod than before is ready.
func (h *harness) upgrade(words ...string) {
	h.t.Helper()
	old := h.pod()
	h.helm(append([]string{"upgrade", release, chart(h.t), "--reset-then-reuse-values", "--wait"}, words...)...)
	h.until("the next pod is ready", func() bool { return h.readyBut(old.Name) })
}

// chart returns the chart's directory.
func chart(t *testing.T) string {
	t.Helper()
	root, err := source()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "packaging/helm/devmgrd")
}

// values writes the chart's values for this cluster. There are no Services, so a pod does not find the API server at the Service's
// address, and a kubeconfig has the address of the server itself. The sample plugin grants files of /tmp.
func (h *harness) values() string {
	h.t.Helper()
	file := filepath.Join(h.t.TempDir(), "values.yaml")
	h.must(os.WriteFile(file, fmt.Appendf(nil, `image: {repository: %s, tag: %q, pullPolicy: Never}
config: {kubernetes: {kubeconfig: /kubeconfig/config}}
dra: {enabled: true}
hostPaths: [/tmp]
extraVolumes: [{name: kubeconfig, secret: {secretName: %s}}]
extraVolumeMounts: [{name: kubeconfig, mountPath: /kubeconfig, readOnly: true}]
`, repository, tag, kubeconfigSecret), 0o600))
	return file
}

// token returns a token of devmgrd's service account, which is bound to the node as the token of a pod is.
func (h *harness) token() string {
	h.t.Helper()
	bound := &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: h.NodeName()}
	answer, err := h.Client().CoreV1().ServiceAccounts(metav1.NamespaceSystem).CreateToken(h.ctx, release,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound}}, metav1.CreateOptions{})
	h.must(err)
	return answer.Status.Token
}

// lendKubeconfig makes the Secret that the values mount, with a token of devmgrd's service account.
func (h *harness) lendKubeconfig(token string) {
	h.t.Helper()
	config := h.RESTConfig()
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"clusters": [{"name": "c", "cluster": {"server": %q, "certificate-authority-data": %q}}],
"users": [{"name": "c", "user": {"token": %q}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]}`,
		config.Host, base64.StdEncoding.EncodeToString(config.CAData), token)
	_, err := h.Client().CoreV1().Secrets(metav1.NamespaceSystem).Create(h.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: kubeconfigSecret}, StringData: map[string]string{"config": text},
	}, metav1.CreateOptions{})
	h.must(err)
}

// pod returns the DaemonSet's pod on the only node.
func (h *harness) pod() *corev1.Pod {
	h.t.Helper()
	var only *corev1.Pod
	h.until("the DaemonSet has one pod", func() bool {
		pods := h.pods()
		if len(pods) == 1 {
			only = &pods[0]
		}
		return only != nil
	})
	return only
}

// pods returns the DaemonSet's pods; none if the API server does not list them.
func (h *harness) pods() []corev1.Pod {
	list, err := h.Client().CoreV1().Pods(h.set.Namespace).List(h.ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(h.set.Spec.Selector)})
	if err != nil {
		return nil
	}
	return list.Items
}

// readyBut reports whether the DaemonSet has one pod, which is ready and has another name than this.
func (h *harness) readyBut(other string) bool {
	pods := h.pods()
	return len(pods) == 1 && pods[0].Name != other && slices.ContainsFunc(pods[0].Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// pluginServes reports whether devmgrd has a plugin that serves.
func (h *harness) pluginServes() bool {
	out, _ := h.Command(h.ctx, "plugins").CombinedOutput()
	return strings.Contains(string(out), "serving")
}

// shows waits until the Node shows so many of the sample plugin's devices.
func (h *harness) shows(want int64) {
	h.t.Helper()
	h.must(h.WaitShown(h.soon(), node.SampleResource, want))
}

// runs starts a pod that stays, and returns it with its device.
func (h *harness) runs(name string) (*corev1.Pod, string) {
	h.t.Helper()
	pod, device, err := h.RunSample(h.soon(), name)
	h.must(err)
	return pod, device
}

// runsOn checks that the container of a pod is the one that it was.
func (h *harness) runsOn(pod *corev1.Pod) {
	h.t.Helper()
	after, err := h.WaitPhase(h.soon(), pod.Name, corev1.PodRunning)
	h.must(err)
	if was, is := node.ContainerID(pod), node.ContainerID(after); was != is {
		h.t.Errorf("the container of pod %s was %s and is %s", pod.Name, was, is)
	}
}

// prints checks that a text has these words, in this order.
func (h *harness) prints(text string, words ...string) {
	h.t.Helper()
	if missing := node.Missing(text, words); missing != "" {
		h.t.Errorf("there is no %q after what came before it in:\n%s", missing, text)
	}
}

// describe logs the state of the cluster after a failure.
func (h *harness) describe() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	h.t.Log(h.DescribePods(ctx))
	for _, command := range []string{"status", "plugins", "devices", "assignments"} {
		out, err := h.Command(ctx, command).CombinedOutput()
		h.t.Logf("devmgrd %s: %v\n%s", command, err, out)
	}
}
