package machine

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/devmgrd/devmgrd/test/cluster"
)

// A Node is a cluster whose node is a machine.
type Node struct {
	*cluster.Cluster
	*Machine
}

// NodeOptions are the peculiarities of both.
type NodeOptions struct {
	Cluster cluster.Options
	Machine Options
}

// StartNode brings up the control plane and a machine, has the machine join it, and returns when the node is Ready.
func StartNode(ctx context.Context, o NodeOptions) (_ *Node, err error) {
	tools, err := cluster.Build(ctx, os.Stderr)
	if err != nil {
		return nil, err
	}
	o.Cluster.Machine = cluster.MachineAddress
	n := &Node{}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Stop())
		}
	}()
	n.Cluster, err = cluster.Start(ctx, tools, o.Cluster)
	if err != nil {
		return nil, err
	}
	n.Machine, err = Start(ctx, o.Machine)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := n.join(ctx, tools); err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second) // its own may be over
		defer cancel()
		said, _ := n.Run(ctx, "sh", "-c", "journalctl --no-pager --output=cat --lines=40 --unit=containerd --unit=kubelet; dmesg | grep -E 'avc: |DENIED' | tail -n 40")
		return nil, fmt.Errorf("joining the machine to the cluster: %w\n%s", err, said)
	}
	fmt.Fprintf(n.options.Log, "the node is Ready after another %s\n", time.Since(began).Round(100*time.Millisecond))
	return n, nil
}

func (n *Node) join(ctx context.Context, tools cluster.Tools) error {
	files, err := n.NodeFiles()
	if err != nil {
		return err
	}
	files["/etc/default/kubelet"] = "KUBELET_ARGS=" + strings.Join(n.KubeletArgs()[1:], " ") + "\n"
	if err := n.Put(ctx, files); err != nil {
		return err
	}
	if _, err := n.Run(ctx, "systemctl", "enable", "--now", "containerd.service"); err != nil {
		return err
	}
	for _, image := range cluster.BuiltinImages(tools) {
		if err := n.LoadImage(ctx, image); err != nil {
			return err
		}
	}
	if _, err := n.Run(ctx, "systemctl", "enable", "--now", "kubelet.service"); err != nil {
		return err
	}
	if err := n.WaitNodeReady(ctx); err != nil {
		return err
	}
	return n.ShareKubeconfig()
}

// LoadImage brings an image to containerd in the machine, in the namespace where the kubelet finds it.
func (n *Node) LoadImage(ctx context.Context, image cluster.Image) error {
	archive, err := image.Archive()
	if err != nil {
		return err
	}
	_, err = n.Pipe(ctx, bytes.NewReader(archive), "ctr", "--namespace=k8s.io", "image", "import", "-")
	return err
}

// Put writes files in the machine, by their paths. They are root's alone.
func (m *Machine) Put(ctx context.Context, files map[string]string) error {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, path := range slices.Sorted(maps.Keys(files)) {
		header := &tar.Header{Name: strings.TrimPrefix(path, "/"), Mode: 0o600, Size: int64(len(files[path])), ModTime: time.Now()}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		if _, err := w.Write([]byte(files[path])); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	_, err := m.Pipe(ctx, &b, "tar", "--extract", "--directory=/", "--no-same-owner")
	return err
}

// Stop ends the machine and the control plane.
func (n *Node) Stop() error {
	var errs []error
	if n.Machine != nil {
		errs = append(errs, n.Machine.Stop())
	}
	if n.Cluster != nil {
		errs = append(errs, n.Cluster.Stop())
	}
	return errors.Join(errs...)
}
