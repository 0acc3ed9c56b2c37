package node

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/test/cluster"
)

// kubeletDir is the kubelet's own directory for device plugins.
const kubeletDir = "/var/lib/kubelet/device-plugins"

// Vacate removes what a test has made on a node whose devmgrd has ended, so that [Node.Again] can use the cluster. It returns an error
// where the cluster is not as it was at its start; then [Node.Renew] may help.
func (n *Node) Vacate(ctx context.Context) error {
	if err := n.programs(ctx); err != nil {
		return err
	}
	if err := n.removePods(ctx, 1, func() bool { return len(Processes(n.Containers.Shim())) == 0 }); err != nil {
		return fmt.Errorf("remove the pods: %w", err)
	}
	if err := n.removeObjects(ctx); err != nil {
		return fmt.Errorf("remove what tests have made: %w", err)
	}
	kept := filepath.Join(kubeletDir, "devmgrd.txt") // devmgrd puts it there for the kubelet's next start
	if err := errors.Join(empty(StateDir), empty(runDir), removeDriver(), os.RemoveAll(n.Devmgrd.LogPath()), os.RemoveAll(kept), n.RealBoot()); err != nil {
		return err
	}
	if err := n.removeCapacity(ctx); err != nil {
		return fmt.Errorf("remove the resources from the Node: %w", err)
	}
	return n.asNew(ctx)
}

// Again starts devmgrd on the cluster of a node that is vacated, and returns when devmgrd is ready.
func (n *Node) Again(ctx context.Context, args ...string) (*Node, error) {
	return on(ctx, n.Cluster, n.Tools, nil, args)
}

// Renew replaces the node, whose devmgrd has ended, by a new one with these options, so that [Node.Again] can use the cluster. It keeps
// the control plane, from which it removes what tests make: pods and what makes them, admission policies, namespaces, and ConfigMaps and
// ServiceAccounts in the namespace default. After an error [Node.Stop] is all that is left to do.
func (n *Node) Renew(ctx context.Context, o cluster.Options) error {
	if err := n.refresh(ctx, n.Scheduler, n.ControllerManager); err != nil {
		return err
	}
	_ = n.Kubelet.Signal(syscall.SIGCONT)                    // a frozen process cannot stop
	if err := n.Kubelet.Stop(20 * time.Second); err != nil { // it would make static pods' mirrors again
		return err
	}
	if err := n.removePods(ctx, 0, func() bool { return true }); err != nil {
		return fmt.Errorf("remove the pods: %w", err)
	}
	if err := n.removePolicies(ctx); err != nil {
		return fmt.Errorf("remove the admission policies: %w", err)
	}
	if err := n.removeObjects(ctx); err != nil {
		return fmt.Errorf("remove what tests have made: %w", err)
	}
	if err := errors.Join(empty(StateDir), empty(runDir), removeDriver(), os.RemoveAll(n.Devmgrd.LogPath())); err != nil {
		return err
	}
	return n.Cluster.Renew(ctx, o)
}

// programs returns an error unless all programs of the cluster run, with the configuration that they began with.
func (n *Node) programs(ctx context.Context) error {
	if err := running(n.Etcd, n.APIServer, n.Scheduler, n.ControllerManager, n.Runtime, n.Kubelet); err != nil {
		return err
	}
	if err := n.refresh(ctx, n.Scheduler, n.ControllerManager, n.Kubelet); err != nil {
		return err
	}
	now, err := configuration()
	if err != nil {
		return err
	}
	if now != n.began {
		return errors.New("the configuration of the cluster has changed")
	}
	return nil
}

// controlPlane returns the process IDs of the control plane, which a container runtime that is alone does not have.
func controlPlane(c *cluster.Cluster) (pids [4]int) {
	for i, p := range []*cluster.Process{c.Etcd, c.APIServer, c.Scheduler, c.ControllerManager} {
		if p != nil {
			pids[i] = p.Pid()
		}
	}
	return pids
}

// refresh starts these clients of the API server again if a part of the control plane runs no longer as at the start of devmgrd: after a
// restart of the API server their watches are broken for up to a minute. The scheduler has been seen to lose a pod, and the kubelet
// rejects pods by what the Node showed before.
func (n *Node) refresh(ctx context.Context, clients ...*cluster.Process) error {
	if err := running(n.Etcd, n.APIServer, n.Scheduler, n.ControllerManager); err != nil {
		return err
	}
	if controlPlane(n.Cluster) == n.plane {
		return nil
	}
	for _, p := range clients {
		if err := errors.Join(p.Stop(20*time.Second), p.Start(ctx)); err != nil {
			return err
		}
	}
	n.plane = controlPlane(n.Cluster)
	return nil
}

// removeDriver removes what devmgrd has left in the kubelet's directories as a DRA driver. Without a state file it would go on serving claims.
func removeDriver() error {
	return errors.Join(os.RemoveAll("/var/lib/kubelet/plugins/devmgrd.io"), os.RemoveAll("/var/lib/kubelet/plugins_registry/devmgrd.io-reg.sock"))
}

// running returns an error unless all of them do.
func running(all ...*cluster.Process) error {
	for _, p := range all {
		if !p.Running() {
			return fmt.Errorf("%s does not run", p.Name)
		}
	}
	return nil
}

// configuration returns a sum over all files that the cluster's programs are configured with.
func configuration() (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	for _, dir := range []string{"/etc/containerd", "/etc/crio", "/etc/cni", "/etc/kubernetes"} {
		files := os.DirFS(dir)
		err := fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			text, err := fs.ReadFile(files, path)
			fmt.Fprintf(h, "%s/%s %d\n%s", dir, path, len(text), text)
			return err
		})
		if err != nil {
			return sum, err
		}
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// removePods deletes all pods with so many seconds of grace, what makes pods, and their events. It returns when the pods are gone and the
// condition holds.
func (n *Node) removePods(ctx context.Context, grace int64, gone func() bool) error {
	background := metav1.DeletePropagationBackground
	remove := metav1.DeleteOptions{GracePeriodSeconds: &grace, PropagationPolicy: &background}
	err := poll(ctx, func() (bool, error) {
		sets, err := n.Client().AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for _, s := range sets.Items {
			_ = n.Client().AppsV1().DaemonSets(s.Namespace).Delete(ctx, s.Name, remove)
		}
		jobs, err := n.Client().BatchV1().Jobs("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for _, j := range jobs.Items {
			_ = n.Client().BatchV1().Jobs(j.Namespace).Delete(ctx, j.Name, remove)
		}
		return len(sets.Items)+len(jobs.Items) == 0, nil
	})
	if err != nil {
		return err
	}
	asked := map[types.UID]bool{}
	err = poll(ctx, func() (bool, error) {
		pods, err := n.Client().CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for _, p := range pods.Items {
			if !asked[p.UID] {
				asked[p.UID] = n.Client().CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, remove) == nil
			}
		}
		if len(pods.Items) > 0 {
			return false, nil
		}
		return gone(), nil
	})
	if err != nil {
		return err
	}
	for _, namespace := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem} {
		if err := n.Client().CoreV1().Events(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// removeObjects removes the namespaces that are not the cluster's own, and from default what the cluster has not put there.
func (n *Node) removeObjects(ctx context.Context) error {
	core := n.Client().CoreV1()
	but := func(name string) metav1.ListOptions {
		return metav1.ListOptions{FieldSelector: "metadata.name!=" + name}
	}
	err := errors.Join(
		core.ConfigMaps(metav1.NamespaceDefault).DeleteCollection(ctx, metav1.DeleteOptions{}, but("kube-root-ca.crt")),
		core.ServiceAccounts(metav1.NamespaceDefault).DeleteCollection(ctx, metav1.DeleteOptions{}, but("default")))
	if err != nil {
		return err
	}
	// devmgrd leaves its slices for its next start, and the kubelet removes them 30 s after devmgrd's end.
	slices := n.Client().ResourceV1().ResourceSlices()
	if err := slices.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil && !apierrors.IsNotFound(err) { // older releases have no such API
		return err
	}
	return poll(ctx, func() (done bool, err error) {
		all, err := core.Namespaces().List(ctx, metav1.ListOptions{})
		done = true
		for _, space := range all.Items {
			if space.Name == metav1.NamespaceDefault || strings.HasPrefix(space.Name, "kube-") {
				continue
			}
			done = false
			if space.DeletionTimestamp == nil {
				_ = core.Namespaces().Delete(ctx, space.Name, metav1.DeleteOptions{})
			}
		}
		return done, err
	})
}

// removeCapacity removes every extended resource from the Node.
func (n *Node) removeCapacity(ctx context.Context) error {
	names, err := n.extended(ctx)
	if err != nil || len(names) == 0 {
		return err
	}
	null := map[string]any{}
	for _, name := range names {
		null[name] = nil
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"capacity": null, "allocatable": null}})
	if err != nil {
		return err
	}
	_, err = n.Client().CoreV1().Nodes().Patch(ctx, n.NodeName(), types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// extended returns the names of the extended resources that the Node shows.
func (n *Node) extended(ctx context.Context) (names []string, err error) {
	node, err := n.Client().CoreV1().Nodes().Get(ctx, n.NodeName(), metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	for name := range node.Status.Capacity {
		if strings.Contains(string(name), "/") {
			names = append(names, string(name))
		}
	}
	return names, nil
}

// asNew returns an error unless nothing is left that a test can leave besides pods.
func (n *Node) asNew(ctx context.Context) error {
	if err := kubeletHasNoDevices(); err != nil {
		return err
	}
	policies, err := n.policies(ctx)
	if err != nil {
		return err
	}
	if policies > 0 {
		return errors.New("there is an admission policy")
	}
	names, err := n.extended(ctx)
	if err != nil {
		return err
	}
	if len(names) > 0 {
		return fmt.Errorf("the Node shows %v", names)
	}
	return n.WaitNodeReady(ctx)
}

// kubeletHasNoDevices returns an error if the kubelet manages devices itself, or its directory for that has been used.
func kubeletHasNoDevices() error {
	entries, err := os.ReadDir(kubeletDir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch e.Name() {
		case "kubelet.sock":
		case checkpoint.Name:
			data, err := os.ReadFile(filepath.Join(kubeletDir, checkpoint.Name))
			if err != nil {
				return err
			}
			f, err := checkpoint.Decode(data)
			if err != nil {
				return err
			}
			if len(f.Healthy)+len(f.Entries) > 0 {
				return errors.New("the kubelet has managed devices")
			}
		default:
			return fmt.Errorf("%s is in the kubelet's directory for device plugins", e.Name())
		}
	}
	return nil
}
