//go:build e2e

package debian

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/nspawn"
)

// patience is how long the user waits for what has to come: the limit of a machine that does many things at once, not an expectation.
const patience = 6 * time.Minute

// A user sits at the machine. What goes wrong ends the test.
type user struct {
	*node.Node // from when there is a cluster
	t          *testing.T
	ctx        context.Context
}

func (u *user) must(err error) {
	u.t.Helper()
	if err != nil {
		u.t.Fatal(err)
	}
}

// types runs a command that has to succeed, and returns what it prints.
func (u *user) types(words ...string) string {
	u.t.Helper()
	out, status := u.tries(words...)
	if status != 0 {
		u.t.Fatalf("%s: status %d\n%s", strings.Join(words, " "), status, out)
	}
	return out
}

// tries runs a command that may fail.
func (u *user) tries(words ...string) (out string, status int) {
	u.t.Helper()
	cmd := exec.CommandContext(u.ctx, words[0], words[1:]...)
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		u.t.Fatalf("%s: %v", strings.Join(words, " "), err)
	}
	return b.String(), cmd.ProcessState.ExitCode()
}

// reads wants these words in a text, in this order.
func (u *user) reads(text string, words ...string) {
	u.t.Helper()
	if missing := node.Missing(text, words); missing != "" {
		u.t.Errorf("there is no %q after what came before it in:\n%s", missing, text)
	}
}

// sees runs a command and wants these words in what it prints. A command that changes nothing is repeated until it is so.
func (u *user) sees(command string, words ...string) {
	u.t.Helper()
	if of, is := strings.CutPrefix(command, "devmgrd "); !is || !node.ReadOnly(of) {
		u.reads(u.types(strings.Fields(command)...), words...)
		return
	}
	var out string
	if !u.comes(func() bool {
		var status int
		out, status = u.tries(strings.Fields(command)...)
		return status == 0 && node.Missing(out, words) == ""
	}) {
		u.t.Fatalf("%s does not say %q in this order:\n%s", command, words, out)
	}
}

// until waits for something to hold.
func (u *user) until(what string, condition func() bool) {
	u.t.Helper()
	if !u.comes(condition) {
		u.t.Fatalf("%s: it did not come to that", what)
	}
}

// comes waits for something to hold, and reports whether it does.
func (u *user) comes(condition func() bool) bool {
	ctx, cancel := context.WithTimeout(u.ctx, patience)
	defer cancel()
	return cluster.Poll(ctx, func(context.Context) (bool, error) { return condition(), nil }) == nil
}

// property returns one property of a unit.
func (u *user) property(unit, name string) string {
	u.t.Helper()
	return strings.TrimSpace(u.types("systemctl", "show", "--value", "--property="+name, unit))
}

// installs installs, upgrades or downgrades, and returns what is said meanwhile.
func (u *user) installs(version string) string {
	u.t.Helper()
	return u.types("apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "--allow-downgrades", deb(os.Getenv(packagesVariable), version))
}

// startCluster starts Kubernetes in the machine.
func (u *user) startCluster(t *testing.T) {
	t.Helper()
	u.must(nspawn.Nest())
	tools, err := cluster.Build(u.ctx, os.Stderr)
	u.must(err)
	c, err := cluster.Start(u.ctx, tools, cluster.Options{Units: true, Log: t.Output()})
	u.must(err)
	u.Node = &node.Node{Cluster: c, Tools: tools}
	u.Devmgrd = u.Another("devmgrd") // never started: systemd does that
}

// shows waits until the Node shows so many of the sample plugin's devices.
func (u *user) shows(want int64) {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(u.ctx, patience)
	defer cancel()
	u.must(u.WaitShown(ctx, node.SampleResource, want))
}

// runs starts a pod that stays, and returns what its container looks like.
func (u *user) runs(name string) (*corev1.Pod, string) {
	u.t.Helper()
	pod := node.Pod(name, node.SampleResource, 1, "report", "--then-sleep")
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	ctx, cancel := context.WithTimeout(u.ctx, patience)
	defer cancel()
	u.must(u.Create(ctx, pod))
	pod, err := u.WaitPhase(ctx, name, corev1.PodRunning)
	u.must(err)
	report, err := u.Report(ctx, name)
	u.must(err)
	device, found := strings.CutPrefix(report.Env["CDI_DEVICE"], "CDI-")
	if !found {
		u.t.Fatalf("the container of pod %s has no device: %q", name, report.Env)
	}
	if _, found := report.Mount("/tmp/" + device); !found {
		u.t.Errorf("the container of pod %s has %s, and no mount of it", name, device)
	}
	return pod, device
}

// holder returns the pod that has a device, by devmgrd.
func (u *user) holder(device string) string {
	u.t.Helper()
	var all struct {
		Devices []struct {
			ID     string
			Holder struct{ Name string }
		}
	}
	u.must(json.Unmarshal([]byte(u.types("devmgrd", "devices", "-o", "json")), &all))
	for _, d := range all.Devices {
		if d.ID == device {
			return d.Holder.Name
		}
	}
	return ""
}

// watchNumbers follows what the Node shows; the returned function returns an error for each number but want.
func (u *user) watchNumbers(want int64) func() {
	u.t.Helper()
	w, err := u.Client().CoreV1().Nodes().Watch(u.ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + u.NodeName()})
	u.must(err)
	seen := make(chan []string, 1)
	go func() {
		var all []string
		for e := range w.ResultChan() {
			if n, ok := e.Object.(*corev1.Node); ok && e.Type != watch.Bookmark {
				c, a := n.Status.Capacity[node.SampleResource], n.Status.Allocatable[node.SampleResource]
				all = append(all, fmt.Sprintf("%d/%d", c.Value(), a.Value()))
			}
		}
		seen <- all
	}()
	return func() {
		u.t.Helper()
		w.Stop()
		all := <-seen
		for _, numbers := range all {
			if numbers != fmt.Sprintf("%d/%d", want, want) {
				u.t.Errorf("the Node showed %q meanwhile, want %d all the time", all, want)
				return
			}
		}
		if len(all) == 0 {
			u.t.Error("the watch has seen nothing")
		}
	}
}

func deleteAtOnce() metav1.DeleteOptions {
	now := int64(0)
	return metav1.DeleteOptions{GracePeriodSeconds: &now}
}

// describe tells how things stand at the end of a test that has failed.
func (u *user) describe() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	u.ctx = ctx
	out, _ := u.tries("journalctl", "--no-pager", "--lines=100", "--unit=devmgrd.service", "--unit=devmgrd.socket", "--unit=sample-plugin.service")
	u.t.Logf("the journal:\n%s", out)
	if u.Node == nil {
		return
	}
	pods, err := u.Client().CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		u.t.Log(err)
		return
	}
	for _, p := range pods.Items {
		u.t.Logf("pod %s/%s: %s, to be deleted at %v, containers %+v", p.Namespace, p.Name, p.Status.Phase, p.DeletionTimestamp, p.Status.ContainerStatuses)
		if events, err := u.Client().CoreV1().Events(p.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + p.Name}); err == nil {
			for _, e := range events.Items {
				u.t.Logf("%s %s: %s", e.Type, e.Reason, e.Message)
			}
		}
		if p.Namespace == metav1.NamespaceSystem {
			log, err := u.PodLogs(ctx, p.Namespace, p.Name, p.Spec.Containers[0].Name)
			u.t.Logf("its log: %v\n%s", err, log)
		}
	}
}
