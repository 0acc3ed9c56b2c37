//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	r.must(r.KillContainer(r.ctx, node.ContainerID(p)))
	r.must(r.WaitPod(r.soon(2*time.Minute), "default", name, func(p *corev1.Pod) (bool, error) {
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
// its devices, nobody else gets them, and the Node's numbers never move. Only a newer devmgrd's file is left to people.
func TestADamagedStateFile(t *testing.T) {
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
		if !strings.Contains(r.Tail(), "state file damaged; replaced by an empty one") {
			t.Errorf("%s: the log does not say so:\n%s", c.name, r.Tail())
		}
		p.MustRegister() // nobody remembers it
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
	r.must(r.Devmgrd.Stop(10 * time.Second))
	good, err := os.ReadFile(stateFile)
	r.must(err)
	r.must(os.Remove(stateFile))
	db, err := bolt.Open(stateFile, 0o600, nil)
	r.must(err)
	r.must(db.Update(func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("somebody's")); return err }))
	r.must(db.Close())
	foreign, err := os.ReadFile(stateFile)
	r.must(err)
	r.must(r.Devmgrd.Start(r.ctx))
	if err := r.Devmgrd.Wait(r.soon(20 * time.Second)); err == nil || !strings.Contains(err.Error(), "exit status 1") {
		t.Errorf("with somebody else's file it ended with %v, want exit status 1", err)
	}
	if now, err := os.ReadFile(stateFile); err != nil || !bytes.Equal(now, foreign) || !strings.Contains(r.Tail(), "belongs to another program") {
		t.Errorf("somebody else's file has changed (%v), or nobody says why:\n%s", err, r.Tail())
	}
	r.must(os.WriteFile(stateFile, good, 0o600))
	r.must(r.StartDevmgrd(r.ctx))
}

// The state file's disk is full, and then read-only. What is in the state file is served, with a restart of devmgrd too; new pods
// wait, and run when the disk is well again, without anybody's help.
func TestAFullOrReadOnlyDisk(t *testing.T) {
	r := start(t)
	r.must(r.Devmgrd.Stop(10 * time.Second))
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
	r.must(r.WaitReady(r.soon(20*time.Second), func(status int, text string) bool {
		return status == http.StatusServiceUnavailable && strings.Contains(text, "no space left on device") && strings.Contains(text, "nri: ok")
	}))
	if after := r.again("a"); after != before {
		t.Errorf("a had %s and has %s", before, after)
	}
	r.must(os.Remove(filler))
	if b := r.running("b").Env["DEVICES"]; b == before || b == "" {
		t.Errorf("b has %q, and a %q", b, before)
	}
	r.must(r.WaitReady(r.soon(20*time.Second), func(status int, _ string) bool { return status == http.StatusOK }))

	r.must(r.Devmgrd.Kill())
	r.must(unix.Mount("none", node.StateDir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, "size=512k"))
	r.must(r.Devmgrd.Start(r.ctx))
	r.must(r.WaitReady(r.soon(20*time.Second), func(status int, text string) bool {
		return status == http.StatusServiceUnavailable && strings.Contains(text, "read-only file system") && strings.Contains(text, "nri: ok")
	}))
	r.must(r.Create(r.ctx, node.Pod("c", gpu, 1, "report", "--then-sleep")))
	r.refused("c", "StoreUnavailable")
	r.must(unix.Mount("none", node.StateDir, "tmpfs", unix.MS_REMOUNT, "size=512k"))
	r.running("c")
	r.must(r.WaitReady(r.soon(20*time.Second), func(status int, _ string) bool { return status == http.StatusOK }))
	r.states(1, 3, 0)
}

// devmgrd is killed at any moments, while pods come and go and the plugin registers again. Afterwards every pod has what it
// had, and everything else is free. E2E_KILLS=200 kills it 200 times; E2E_SEED chooses the moments.
func TestKillsAtRandom(t *testing.T) {
	kills, seed := times(t, "E2E_KILLS", 12), times(t, "E2E_SEED", int(time.Now().UnixNano()>>10&0xffffff))
	t.Logf("%d kills, E2E_SEED=%d", kills, seed)
	dice := rand.New(rand.NewPCG(uint64(seed), 0))
	r := start(t)
	r.must(r.FailClosed(r.soon(time.Minute))) // containers that ask for devices wait for devmgrd
	p := r.plugin(gpu, 6)
	before := map[string]string{"a": r.stays("a", 1), "b": r.stays("b", 2)}

	ctx, stop := context.WithCancel(r.ctx)
	var load sync.WaitGroup
	served := make([]int, 2)
	for i := range served {
		load.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				name := fmt.Sprintf("load-%d-%d", i, n)
				// Whoever breaks off a creation does not know whether there is a pod to delete now.
				if err := r.Create(context.WithoutCancel(ctx), node.Pod(name, gpu, 1, "report", "--then-sleep")); err != nil {
					continue
				}
				limit, cancel := context.WithTimeout(ctx, 2*time.Minute)
				_, err := r.WaitPhase(limit, name, corev1.PodRunning)
				cancel()
				if err == nil {
					served[i]++
				} else if ctx.Err() == nil {
					t.Error(err)
				}
				if err := r.Delete(context.WithoutCancel(ctx), name); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range kills {
		time.Sleep(time.Duration(dice.IntN(700)) * time.Millisecond) // the moment is the dice's to choose
		if dice.IntN(3) == 0 {
			load.Go(func() { _ = p.Register() }) // devmgrd may die over it
		}
		r.must(r.Devmgrd.Kill())
		r.must(r.Devmgrd.Start(r.ctx))
	}
	r.must(r.WaitReady(r.soon(time.Minute), func(status int, _ string) bool { return status == http.StatusOK }))
	r.until("a pod is served", func() bool { return r.metric(`devmgrd_admission_duration_seconds_count`) > 0 })
	stop()
	load.Wait()
	r.states(3, 3, 0)
	for name, had := range before {
		if has := r.again(name); has != had {
			t.Errorf("%s had %s and has %s", name, had, has)
		}
	}
	if n := r.metric("devmgrd_store_damaged_files"); n != 0 {
		t.Errorf("%v state files were taken for damaged", n)
	}
	if got := r.run("rest", gpu, 3).Env["DEVICES"]; strings.Contains(got, before["a"]) {
		t.Errorf("a has %s, and another pod %s", before["a"], got)
	}
	t.Logf("%d pods were served meanwhile", served[0]+served[1])
}

// A pod that is deleted by force has gone for the API server, and its container lives: whatever becomes of devmgrd and its
// books, nobody else gets its devices before it has ended.
func TestAPodIsDeletedByForce(t *testing.T) {
	r := start(t)
	p := r.plugin(gpu, 2)
	first := r.run("a", gpu, 1).Env["DEVICES"]
	r.must(r.Kubelet.Kill()) // nobody ends the container
	now := int64(0)
	r.must(r.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(r.ctx, "a", metav1.DeleteOptions{GracePeriodSeconds: &now}))
	r.must(r.WaitPod(r.ctx, metav1.NamespaceDefault, "a", func(p *corev1.Pod) (bool, error) { return p == nil, nil }))
	r.must(r.Create(r.ctx, node.Pod("b", gpu, 2, "report", "--then-sleep")))
	r.told("b", "NotEnoughDevices")
	r.states(1, 1, 0)
	r.must(r.Devmgrd.Kill())
	r.must(r.StartDevmgrd(r.ctx))
	r.states(1, 1, 0) // by the state file
	r.must(r.Devmgrd.Kill())
	r.must(os.Remove(stateFile))
	r.must(r.StartDevmgrd(r.ctx))
	p.MustRegister()
	r.states(1, 0, 1) // by its stamp
	r.must(r.Devmgrd.Kill())
	r.must(r.StartDevmgrd(r.ctx))
	r.states(1, 0, 1)
	stamps, err := r.Stamps(r.ctx)
	r.must(err)
	if len(stamps) != 1 || stamps[0].Devices[gpu][0] != first {
		t.Fatalf("there run %+v", stamps)
	}
	r.must(r.Kubelet.Start(r.ctx)) // ends it
	if got := r.running("b").Env["DEVICES"]; !strings.Contains(got, first) {
		t.Errorf("b has %s", got)
	}
	r.states(0, 2, 0)
}

// containerd is away while pods end: by themselves, by somebody's order, and by force. Nothing is lost and nothing leaks.
func TestContainerdRestartsWhilePodsEnd(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 4)
	had := map[string]string{}
	for _, name := range []string{"ends", "deleted", "forced"} {
		had[name] = r.run(name, gpu, 1).Env["DEVICES"]
	}
	had["stays"] = r.stays("stays", 1)
	r.must(r.Containerd.Kill())
	r.must(syscall.Kill(processWith(t, had["ends"]), syscall.SIGKILL))
	soon, now := int64(1), int64(0)
	pods := r.Client().CoreV1().Pods(metav1.NamespaceDefault)
	r.must(pods.Delete(r.ctx, "deleted", metav1.DeleteOptions{GracePeriodSeconds: &soon}))
	r.must(pods.Delete(r.ctx, "forced", metav1.DeleteOptions{GracePeriodSeconds: &now}))
	r.until("devmgrd has noticed", func() bool { return r.metric("devmgrd_nri_connected") == 0 })
	if n := r.inState(gpu, "free"); n != 0 {
		t.Errorf("%v devices are free, and nobody can know what runs", n)
	}
	r.must(r.Containerd.Start(r.ctx))
	r.must(r.WaitContainerd(r.ctx))
	// The pod's end is the kubelet's, which may have to try again; the devices are ours, and are to follow soon.
	r.must(r.WaitPod(r.soon(90*time.Second), "default", "deleted", func(p *corev1.Pod) (bool, error) { return p == nil, nil }))
	r.states(3, 1, 0)
	if got := r.run("next", gpu, 3).Env["DEVICES"]; strings.Contains(got, had["stays"]) {
		t.Errorf("the next pod has %s, and another one runs with %s", got, had["stays"])
	}
	if after := r.again("stays"); after != had["stays"] {
		t.Errorf("it had %s and has %s", had["stays"], after)
	}
}

// The API server is away while pods end. Their devices stay theirs until it says so, and not longer.
func TestPodsEndWithoutTheAPIServer(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 3)
	had := map[string]string{}
	for _, name := range []string{"ends", "deleted"} {
		had[name] = r.run(name, gpu, 1).Env["DEVICES"]
	}
	r.stays("stays", 1)
	long := int64(300)
	r.must(r.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(r.ctx, "deleted", metav1.DeleteOptions{GracePeriodSeconds: &long}))
	r.must(r.APIServer.Kill())
	for _, name := range []string{"ends", "deleted"} {
		if pid := processWith(t, had[name]); pid > 0 { // it may have ended at the order
			r.must(syscall.Kill(pid, syscall.SIGKILL))
		}
	}
	r.until("both have ended", func() bool { ids, err := r.RunningContainers(r.ctx, "main"); return err == nil && len(ids) == 1 })
	if n := r.inState(gpu, "assigned"); n != 3 {
		t.Errorf("%v devices are assigned, want 3: the containers may be made again", n)
	}
	r.must(r.APIServer.Start(r.ctx))
	r.must(r.WaitAPIServer(r.ctx))
	r.states(2, 1, 0)
	r.run("next", gpu, 2)
}

// processWith returns a process that has this device, or 0.
func processWith(t *testing.T, device string) (pid int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		if env, err := os.ReadFile(name); err == nil && bytes.Contains(env, []byte("DEVICES="+device+"\x00")) {
			_, _ = fmt.Sscanf(name, "/proc/%d/", &pid)
			return pid
		}
	}
	return 0
}
