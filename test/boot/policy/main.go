// Command policy is the CPU policy of test/cpupolicy as a service of the node that boots. It pins containers to the kernel's own CPUs and
// memory nodes, strictly.
//
//	policy INDEX
//
// INDEX orders it among the runtime's NRI plugins. It notifies systemd when the runtime synchronizes it: from then on the runtime creates
// no container without asking it. Of each container that it pins, before it answers, it prints what PodResources has said:
//
//	POD has IDS near NODES, and devmgrd was asked FIRST
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	systemd "github.com/coreos/go-systemd/v22/daemon"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/cpuset"

	"github.com/devmgrd/devmgrd/test/cpupolicy"
)

func main() {
	err := errors.New("the argument is not INDEX")
	if len(os.Args) == 2 {
		err = run(os.Args[1])
	}
	fmt.Fprintln(os.Stderr, "policy:", err)
	os.Exit(1)
}

// run serves until the runtime closes the connection.
func run(index string) error {
	machine, err := kernels()
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix:///run/devmgrd/pod-resources/kubelet.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	p := policy{cpupolicy.NewPlugin(machine, podresources.NewPodResourcesListerClient(conn))}
	p.Strict = true
	s, err := stub.New(p, stub.WithPluginName("policy"), stub.WithPluginIdx(index))
	if err != nil {
		return err
	}
	return errors.Join(s.Run(context.Background()), errors.New("the runtime has closed the connection"))
}

// kernels returns the kernel's NUMA nodes.
func kernels() (cpupolicy.Machine, error) {
	lists, err := filepath.Glob("/sys/devices/system/node/node*/cpulist")
	machine := cpupolicy.Machine{}
	for _, list := range lists {
		var node int
		if _, err := fmt.Sscanf(list, "/sys/devices/system/node/node%d/", &node); err != nil {
			return nil, fmt.Errorf("%s: %w", list, err)
		}
		text, err := os.ReadFile(list)
		if err != nil {
			return nil, err
		}
		cpus, err := cpuset.Parse(strings.TrimSpace(string(text)))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", list, err)
		}
		machine[int64(node)] = cpupolicy.Node{CPUs: cpus, Memory: node}
	}
	return machine, err
}

type policy struct{ *cpupolicy.Plugin }

// Synchronize is the runtime's last request before containers are created with this plugin. The runtime creates none meanwhile.
func (policy) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	_, err := systemd.SdNotify(false, systemd.SdNotifyReady)
	return nil, err
}

// CreateContainer pins the container, and prints what the choice is made of. The runtime asks of one container at a time.
func (p policy) CreateContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	adjustment, updates, err := p.Plugin.CreateContainer(ctx, pod, c)
	if adjustment != nil {
		answers := p.Answers()
		devices := answers[len(answers)-1].Devices
		var ids []string
		for _, d := range devices {
			ids = append(ids, d.DeviceIds...)
		}
		first := slices.ContainsFunc(c.GetEnv(), func(v string) bool { return strings.HasPrefix(v, "DEVICES=") }) // the grant
		fmt.Printf("%s has %v near %v, and devmgrd was asked first: %t\n", pod.Name, ids, cpupolicy.Places(devices), first)
	}
	return adjustment, updates, err
}
