package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
)

// localUID is the local user's.
const localUID = 65534

// neighbours attack devmgrd besides the plugin pod: a tenant, and a local user.
type neighbours struct {
	user  *cluster.Process
	pods  atomic.Int64 // the tenant's, so far
	meter meter
}

// addNeighbours starts them.
func (w *world) addNeighbours(ctx context.Context, self string) error {
	own, err := w.delegated()
	if err != nil {
		return err
	}
	w.hostile = &neighbours{user: cluster.NewProcess("local-user", filepath.Join(w.LogDir(), "local-user.log"), []string{self, "local-user", own}, nil), meter: meter{sums: map[string]float64{}}}
	w.keeper.keep(w.hostile.user, true)
	return w.hostile.user.Start(ctx)
}

// delegated makes a cgroup in which the local user may make others, as systemd does for each user that is logged in.
func (w *world) delegated() (string, error) {
	root := "/sys/fs/cgroup/pids" // cgroup v1
	if _, err := os.Stat(root); err != nil {
		root = "/sys/fs/cgroup"
	}
	dir := filepath.Join(root, w.Cgroup(), "user.slice")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return dir, errors.Join(os.Chown(dir, localUID, localUID), os.Chown(filepath.Join(dir, "cgroup.procs"), localUID, localUID))
}

// tenant binds pods to the node by hand that request thousands of resources which no plugin has, and deletes them.
func (w *world) tenant(ctx context.Context) {
	dice := rand.New(rand.NewPCG(w.options.seed, 3))
	pods := w.Client().CoreV1().Pods(metav1.NamespaceSystem)
	for ctx.Err() == nil {
		p := node.Pod(fmt.Sprintf("tenant-%d", w.hostile.pods.Load()), "", 0, "report", "--then-sleep")
		p.Namespace, p.Spec.NodeName = metav1.NamespaceSystem, w.NodeName()
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{}
		for i := range 50 + dice.IntN(5000) {
			p.Spec.Containers[0].Resources.Limits[corev1.ResourceName(fmt.Sprintf("t%d.example/%x", w.hostile.pods.Load(), i))] = resource.MustParse("1")
		}
		if _, err := pods.Create(ctx, p, metav1.CreateOptions{}); err == nil {
			w.hostile.pods.Add(1)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(1000+dice.IntN(4000)) * time.Millisecond):
		}
		now := int64(0)
		_ = pods.Delete(context.WithoutCancel(ctx), p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	}
}

// runLocalUser is the local user, until it is killed. It names cgroups of its own after pods, with processes in them, and has processes
// that exit with much memory to give back, so that it is not known for a while what they have mapped.
func runLocalUser(dir string) error {
	if os.Getenv("CHAOS_RIGHTS") == "" {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
		if err := errors.Join(unix.Setgroups(nil), unix.Setgid(localUID), unix.Setuid(localUID), unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), os.Setenv("CHAOS_RIGHTS", "none")); err != nil {
			return err
		}
		return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
	}
	memory, err := unix.Mmap(-1, 0, 128<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	for i := 0; i < len(memory); i += os.Getpagesize() {
		memory[i] = 1
	}
	for looked := (time.Time{}); ; {
		if time.Since(looked) > 2*time.Second {
			looked = time.Now()
			if err := posesAsPods(dir); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
		if pid := forkAndExit(); pid > 0 {
			_, _ = syscall.Wait4(pid, nil, 0, nil)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// posesAsPods makes a cgroup with a process for each pod whose cgroup can be seen.
func posesAsPods(dir string) error {
	root, _, _ := strings.Cut(dir, "/user.slice")
	return filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		name := filepath.Base(path)
		switch {
		case path == dir:
			return filepath.SkipDir
		case err != nil, !entry.IsDir(), !strings.HasPrefix(name, "pod"):
			return nil
		}
		own := filepath.Join(dir, name)
		if os.Mkdir(own, 0o755) != nil {
			return nil // it is there
		}
		sleeper := exec.Command("/proc/self/exe", "sleep")
		if err := sleeper.Start(); err != nil {
			return err
		}
		go sleeper.Wait()
		return os.WriteFile(filepath.Join(own, "cgroup.procs"), []byte(strconv.Itoa(sleeper.Process.Pid)), 0)
	})
}

// forkAndExit makes a process that has all the memory of this one, and exits at once.
//
//go:norace
//go:nosplit
func forkAndExit() int {
	pid, _, _ := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if pid == 0 {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
	}
	return int(pid)
}
