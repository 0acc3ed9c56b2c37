//go:build e2e

package debian

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	n, err := node.StartCluster(u.ctx, cluster.Options{Units: true, Log: t.Output()})
	u.must(err)
	u.Node = n // without devmgrd, which systemd starts
}

// shows waits until the Node shows so many of the sample plugin's devices.
func (u *user) shows(want int64) {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(u.ctx, patience)
	defer cancel()
	u.must(u.WaitShown(ctx, node.SampleResource, want))
}

// runs starts a pod that stays, and returns it with its device.
func (u *user) runs(name string) (*corev1.Pod, string) {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(u.ctx, patience)
	defer cancel()
	pod, device, err := u.RunSample(ctx, name)
	u.must(err)
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

// watchShown follows what the Node shows of a resource. The returned function reports an error if that was ever another number than want.
func (u *user) watchShown(resource string, want int64) func() {
	u.t.Helper()
	stop, err := u.WatchShown(u.ctx, resource)
	u.must(err)
	return func() {
		u.t.Helper()
		if err := node.Steady(stop(), want); err != nil {
			u.t.Error(err)
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
	if u.Node != nil {
		u.t.Log(u.DescribePods(ctx))
	}
}
