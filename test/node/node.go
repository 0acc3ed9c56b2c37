package node

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/cluster"
)

// Where devmgrd keeps its things by default.
const (
	StateDir  = "/var/lib/devmgrd"
	SocketDir = runDir + "/device-plugins"
	runDir    = "/run/devmgrd"
	address   = "127.0.0.1:9464"
)

// SampleResource is what Kubernetes' sample device plugin offers: two devices, Dev-1 and Dev-2.
const SampleResource = "example.com/resource"

// Options are a node's peculiarities. The zero value is a good node.
type Options struct {
	Cluster cluster.Options
	Args    []string // more arguments for "devmgrd run"
	Under   []string // a command that runs devmgrd, up to devmgrd's own; nil: none
}

// A Node is a cluster of one node with devmgrd on it.
type Node struct {
	*cluster.Cluster
	Devmgrd *cluster.Process
	Tools   cluster.Tools

	began [sha256.Size]byte // the cluster's configuration at the start of devmgrd
	plane [4]int            // the processes of the control plane then
}

// Start brings up a cluster and devmgrd, and returns when devmgrd is ready.
func Start(ctx context.Context, o Options) (*Node, error) {
	kit := cluster.Kubernetes
	if o.Cluster.Alone {
		kit = cluster.Containers
		o.Args = append([]string{"--set", "kubernetes.mode=none"}, o.Args...)
	}
	tools, err := cluster.Build(ctx, os.Stderr, kit)
	if err != nil {
		return nil, err
	}
	c, err := cluster.Start(ctx, tools, o.Cluster)
	if err != nil {
		return nil, err
	}
	return on(ctx, c, tools, o.Under, o.Args)
}

// StartCluster brings up a cluster with a control plane, and leaves it to the caller to have devmgrd started there by another program.
func StartCluster(ctx context.Context, o cluster.Options) (*Node, error) {
	tools, err := cluster.Build(ctx, os.Stderr, cluster.Kubernetes)
	if err != nil {
		return nil, err
	}
	c, err := cluster.Start(ctx, tools, o)
	if err != nil {
		return nil, err
	}
	n := &Node{Cluster: c, Tools: tools}
	n.Devmgrd = n.Another("devmgrd")
	return n, nil
}

// on starts devmgrd on a cluster.
func on(ctx context.Context, c *cluster.Cluster, tools cluster.Tools, under, args []string) (*Node, error) {
	began, err := configuration()
	if err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	n := &Node{Cluster: c, Tools: tools, began: began, plane: controlPlane(c)}
	n.Devmgrd = n.process("devmgrd", under, args)
	if err := n.StartDevmgrd(ctx); err != nil {
		return nil, errors.Join(err, n.Stop())
	}
	return n, nil
}

// Another is one more devmgrd, not started.
func (n *Node) Another(name string, args ...string) *cluster.Process {
	return n.process(name, nil, args)
}

func (n *Node) process(name string, under, args []string) *cluster.Process {
	argv := slices.Concat(under, []string{os.Getenv(binaryVariable), "run"}, args)
	return cluster.NewProcess(name, filepath.Join(n.LogDir(), name+".log"), argv, nil)
}

// Command is one of devmgrd's commands, such as "devices".
func (n *Node) Command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, os.Getenv(binaryVariable), args...)
}

// StartDevmgrd starts devmgrd and returns when all of its parts are ready.
func (n *Node) StartDevmgrd(ctx context.Context) error {
	if err := n.Devmgrd.Start(ctx); err != nil {
		return err
	}
	return n.WaitReady(ctx, func(status int, _ string) bool { return status == http.StatusOK })
}

// Stop ends devmgrd and the cluster, and removes what devmgrd keeps, so that the next one starts afresh.
func (n *Node) Stop() error {
	return errors.Join(n.Devmgrd.Stop(20*time.Second), n.Cluster.Stop(), empty(StateDir), empty(runDir))
}

// empty removes what is in a directory, which may be a mount point.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}

// WaitReady returns when the condition holds for what /readyz says.
func (n *Node) WaitReady(ctx context.Context, condition func(status int, text string) bool) error {
	last := ""
	err := poll(ctx, func() (bool, error) {
		if !n.Devmgrd.Running() {
			return false, errors.New("devmgrd has ended")
		}
		status, text, err := n.Get("/readyz")
		if err != nil {
			last = err.Error()
			return false, nil
		}
		last = text
		return condition(status, text), nil
	})
	if err != nil {
		return fmt.Errorf("waiting for devmgrd: %w; last heard: %s\n%s", err, last, n.Tail())
	}
	return nil
}

// Tail returns the last lines of devmgrd's log.
func (n *Node) Tail() string {
	text, err := os.ReadFile(n.Devmgrd.LogPath())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-40):], "\n")
}

// Get reads a page of devmgrd's.
func (n *Node) Get(path string) (status int, text string, err error) {
	client := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get("http://" + address + path)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body), err
}

// Metric returns the value of one series as /metrics writes it, for instance `devmgrd_node_capacity{resource_name="a/b"}`.
// A series that is not there is 0.
func (n *Node) Metric(series string) (float64, error) {
	_, text, err := n.Get("/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			var v float64
			_, err := fmt.Sscan(rest, &v)
			return v, err
		}
	}
	return 0, nil
}

// Shown returns what the Node object shows of a resource: capacity and allocatable, -1 for one that is not there.
func (n *Node) Shown(ctx context.Context, name string) (capacity, allocatable int64, err error) {
	node, err := n.Client().CoreV1().Nodes().Get(ctx, n.NodeName(), metav1.GetOptions{})
	if err != nil {
		return 0, 0, err
	}
	return quantity(node.Status.Capacity, name), quantity(node.Status.Allocatable, name), nil
}

func quantity(list corev1.ResourceList, name string) int64 {
	q, ok := list[corev1.ResourceName(name)]
	if !ok {
		return -1
	}
	return q.Value()
}

// WaitShown returns when the Node shows want as capacity and as allocatable.
func (n *Node) WaitShown(ctx context.Context, name string, want int64) error {
	err := n.WaitNode(ctx, func(node *corev1.Node) (bool, error) {
		return quantity(node.Status.Capacity, name) == want && quantity(node.Status.Allocatable, name) == want, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for %d %s on the Node: %w\n%s", want, name, err, n.Tail())
	}
	return nil
}

// poll asks until the answer is yes, an error comes, or ctx ends.
func poll(ctx context.Context, ask func() (bool, error)) error {
	return cluster.Poll(ctx, func(context.Context) (bool, error) { return ask() })
}
