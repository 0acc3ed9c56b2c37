//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/devmgrd/devmgrd/test/node"
)

var stateFile = filepath.Join(node.StateDir, "state.db")

// stays starts a pod that stays, and whose container is made again when it ends. It returns the devices that it has.
func (r *harness) stays(name string, count int) string {
	r.t.Helper()
	p := node.Pod(name, gpu, count, "report", "--then-sleep")
	p.Spec.RestartPolicy = corev1.RestartPolicyAlways
	r.must(r.Create(r.ctx, p))
	return r.running(name).Env["DEVICES"]
}

// again has a pod's container made again, and returns the devices that it has then.
func (r *harness) again(name string) string {
	r.t.Helper()
	p, err := r.WaitPhase(r.ctx, name, corev1.PodRunning)
	r.must(err)
	before := p.Status.ContainerStatuses[0]
	r.must(r.Containers.Kill(r.ctx, node.ContainerID(p)))
	r.must(r.WaitPod(r.soon(), "default", name, func(p *corev1.Pod) (bool, error) {
		now := p.Status.ContainerStatuses[0]
		return now.RestartCount > before.RestartCount && now.State.Running != nil, nil
	}))
	return r.running(name).Env["DEVICES"]
}

// states waits until so many devices are free, assigned and quarantined.
func (r *harness) states(free, assigned, quarantined float64) {
	r.t.Helper()
	r.until(fmt.Sprintf("%v devices are free, %v assigned and %v quarantined", free, assigned, quarantined), func() bool {
		return r.inState(gpu, "free") == free && r.inState(gpu, "assigned") == assigned && r.inState(gpu, "quarantined") == quarantined
	})
}

// Whatever becomes of the state file while devmgrd is down, it comes back: the damaged file is set aside, what runs keeps
// its devices, no other pod gets them, and the Node's numbers never move. Only a newer devmgrd's file is left to people.
func TestStateFile_Damaged_IsSetAside(t *testing.T) {
	r := start(t)
	p := r.plugin(gpu, 4)
	before := r.stays("a", 2)
	numbers := r.watchNumbers(gpu)
	// The records say dev-00000X, and no checksum of bbolt's tells. Each one is changed: some may lie in pages that nothing uses
	// any longer.
	flip := func(data []byte) []byte {
		name := []byte("dev-00000")
		for at := 0; bytes.Contains(data[at:], name); {
			at += bytes.Index(data[at:], name) + len(name)
			data[at] ^= 4
		}
		return data
	}
	all := []struct {
		name   string
		damage func([]byte) []byte
	}{
		{"flipped", flip},
		{"cut", func(data []byte) []byte { return data[:len(data)/3] }},
		{"empty", func([]byte) []byte { return nil }},
		{"garbage", func(data []byte) []byte { return bytes.Repeat([]byte("garbage "), len(data)/8) }},
	}
	for i, c := range all {
		r.until("the plugin is remembered", func() bool {
			data, err := os.ReadFile(stateFile)
			return err == nil && bytes.Contains(data, []byte(gpu))
		})
		r.must(r.Devmgrd.Kill())
		data, err := os.ReadFile(stateFile)
		r.must(err)
		data = c.damage(data)
		r.must(os.WriteFile(stateFile, data, 0o600))
		r.must(r.StartDevmgrd(r.ctx))
		aside, err := filepath.Glob(stateFile + ".damaged-*")
		r.must(err)
		if n := r.metric("devmgrd_store_damaged_files"); len(aside) != i+1 || n != float64(i+1) {
			t.Errorf("%s: set aside are %q, and the metric says %v", c.name, aside, n)
		}
		if !slices.ContainsFunc(aside, func(name string) bool {
			kept, err := os.ReadFile(name)
			return err == nil && bytes.Equal(kept, data)
		}) {
			t.Errorf("%s: none of %q is what was there", c.name, aside)
		}
		r.until("the log says so of "+c.name, func() bool {
			log, err := os.ReadFile(r.Devmgrd.LogPath())
			return err == nil && strings.Count(string(log), "state file damaged; replaced by an empty one") > i
		})
		p.MustRegister() // no record of it is left
		r.states(2, 2, 0)
		name := "new-" + c.name
		if got := r.run(name, gpu, 2).Env["DEVICES"]; strings.Contains(got, strings.Split(before, ",")[0]) || strings.Contains(got, strings.Split(before, ",")[1]) {
			t.Errorf("%s: a new pod has %s, and a runs with %s", c.name, got, before)
		}
		r.must(r.Delete(r.ctx, name))
		r.states(2, 2, 0)
	}
	if after := r.again("a"); after != before {
		t.Errorf("a had %s and has %s", before, after)
	}
	for _, n := range numbers() {
		if n != 4 {
			t.Errorf("the Node showed %d meanwhile, want 4 all the time", n)
		}
	}

	// A file that is not damaged, but not for this devmgrd.
	r.must(r.Devmgrd.Stop(stopLimit))
	good, err := os.ReadFile(stateFile)
	r.must(err)
	r.must(os.Remove(stateFile))
	db, err := bolt.Open(stateFile, 0o600, nil)
	r.must(err)
	r.must(db.Update(func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("foreign")); return err }))
	r.must(db.Close())
	foreign, err := os.ReadFile(stateFile)
	r.must(err)
	r.must(r.Devmgrd.Start(r.ctx))
	if err := r.Devmgrd.Wait(r.soon()); err == nil || !strings.Contains(err.Error(), "exit status 1") {
		t.Errorf("with a foreign file it ended with %v, want exit status 1", err)
	}
	if now, err := os.ReadFile(stateFile); err != nil || !bytes.Equal(now, foreign) || !strings.Contains(r.Tail(), "belongs to another program") {
		t.Errorf("the foreign file has changed (%v), or the log has no reason:\n%s", err, r.Tail())
	}
	r.must(os.WriteFile(stateFile, good, 0o600))
	r.must(r.StartDevmgrd(r.ctx))
}

// The state file's disk is full, and then read-only. What is in the state file is served, with a restart of devmgrd too; new pods
// wait, and run when the disk works again, without help.
func TestStateFile_DiskFullOrReadOnly_NewPodsWait(t *testing.T) {
	r := start(t)
	r.must(r.Devmgrd.Stop(stopLimit))
	r.must(unix.Mount("none", node.StateDir, "tmpfs", 0, "size=512k"))
	t.Cleanup(func() {
		if err := r.Devmgrd.Kill(); err != nil {
			t.Error(err)
		}
		if err := unix.Unmount(node.StateDir, 0); err != nil {
			t.Error(err)
		}
	})
	r.must(r.StartDevmgrd(r.ctx))
	r.plugin(gpu, 4)
	before := r.stays("a", 1)

	filler := filepath.Join(node.StateDir, "filler")
	f, err := os.Create(filler)
	r.must(err)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	r.must(f.Close())
	large := func(name string) *corev1.Pod { // its record needs more than what is left in the file
		p := node.Pod(name, gpu, 1, "report", "--then-sleep")
		for i := range 200 {
			p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprintf("%s_%d", strings.Repeat("X", 500), i), Value: "1"})
		}
		return p
	}
	r.must(r.Create(r.ctx, large("b")))
	r.refused("b", "StoreUnavailable")
	// The disk is full at the start, too.
	r.must(r.Devmgrd.Kill())
	r.must(r.Devmgrd.Start(r.ctx))
	r.must(r.WaitReady(r.soon(), func(status int, text string) bool {
		return status == http.StatusServiceUnavailable && strings.Contains(text, "no space left on device") && strings.Contains(text, "nri: ok")
	}))
	if after := r.again("a"); after != before {
		t.Errorf("a had %s and has %s", before, after)
	}
	r.must(os.Remove(filler))
	if b := r.running("b").Env["DEVICES"]; b == before || b == "" {
		t.Errorf("b has %q, and a %q", b, before)
	}
	r.must(r.WaitReady(r.soon(), func(status int, _ string) bool { return status == http.StatusOK }))

	r.must(r.Devmgrd.Kill())
	r.must(unix.Mount("none", node.StateDir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, "size=512k"))
	r.must(r.Devmgrd.Start(r.ctx))
	r.must(r.WaitReady(r.soon(), func(status int, text string) bool {
		return status == http.StatusServiceUnavailable && strings.Contains(text, "read-only file system") && strings.Contains(text, "nri: ok")
	}))
	r.must(r.Create(r.ctx, node.Pod("c", gpu, 1, "report", "--then-sleep")))
	r.refused("c", "StoreUnavailable")
	r.must(unix.Mount("none", node.StateDir, "tmpfs", unix.MS_REMOUNT, "size=512k"))
	r.running("c")
	r.must(r.WaitReady(r.soon(), func(status int, _ string) bool { return status == http.StatusOK }))
	r.states(1, 3, 0)
}

// The state file is gone, and containers run: their stamps name their devices, and no other pod gets them.
func TestStateFile_Lost_RunningContainersKeepDevices(t *testing.T) {
	r := start(t)
	p := r.plugin(gpu, 4)
	before := map[string]string{}
	for _, name := range []string{"a", "b"} {
		pod := node.Pod(name, gpu, 1, "report", "--then-sleep")
		pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
		r.must(r.Create(r.ctx, pod))
		before[name] = r.running(name).Env["DEVICES"]
	}
	r.must(r.Delete(r.ctx, "a")) // so that the lowest is free, and b's is not
	r.must(r.Devmgrd.Kill())
	r.must(os.Remove(filepath.Join(node.StateDir, "state.db")))
	r.must(r.StartDevmgrd(r.ctx))
	p.MustRegister() // no record of it is left
	for _, name := range []string{"c", "d"} {
		if got := r.run(name, gpu, 1).Env["DEVICES"]; got == before["b"] {
			t.Errorf("%s has %s, with which b runs", name, got)
		}
	}
	pod, err := r.WaitPhase(r.ctx, "b", corev1.PodRunning)
	r.must(err)
	r.must(r.Containers.Kill(r.ctx, node.ContainerID(pod)))
	r.must(r.WaitPod(r.soon(), "default", "b", func(now *corev1.Pod) (bool, error) {
		return len(now.Status.ContainerStatuses) > 0 && now.Status.ContainerStatuses[0].RestartCount > 0 &&
			now.Status.ContainerStatuses[0].State.Running != nil, nil
	}))
	if after := r.running("b").Env["DEVICES"]; after != before["b"] {
		t.Errorf("b had %s and has %s", before["b"], after)
	}
	if n := r.metric(`devmgrd_devices{resource_name="` + gpu + `",state="quarantined"}`); n != 0 {
		t.Errorf("%v devices are set aside still", n)
	}
}
