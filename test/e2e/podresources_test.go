//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
)

const (
	ourResources      = "/run/devmgrd/pod-resources/kubelet.sock"
	kubeletsResources = "/var/lib/kubelet/pod-resources/kubelet.sock"
	takeover          = "podResources.takeover=true"
)

// A teller is a PodResources socket, by its two versions.
type teller struct {
	podresources.PodResourcesListerClient
	old v1alpha1.PodResourcesListerClient
}

// teller calls a PodResources socket. The connection is made with the first call, and ends with the test.
func (r *harness) teller(socket string) teller {
	r.t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	r.must(err)
	r.t.Cleanup(func() { conn.Close() })
	return teller{podresources.NewPodResourcesListerClient(conn), v1alpha1.NewPodResourcesListerClient(conn)}
}

// untilTold waits for something that a PodResources socket is asked for. It asks seldom: a hundred questions a second are
// all that such a socket answers, to all clients together.
func (r *harness) untilTold(what string, condition func() bool) {
	r.t.Helper()
	err := wait.PollUntilContextTimeout(r.ctx, 100*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		return condition(), nil
	})
	if err != nil {
		r.t.Fatalf("not within %s: %s", patience, what)
	}
}

// holdings returns the devices of pods: "resource=ID", by the pods' names.
func (tell teller) holdings(ctx context.Context) (map[string][]string, error) {
	answer, err := tell.List(ctx, &podresources.ListPodResourcesRequest{})
	return holdings(answer.GetPodResources()), err
}

func holdings(pods []*podresources.PodResources) map[string][]string {
	all := map[string][]string{}
	for _, p := range pods {
		devices := []string{}
		for _, c := range p.GetContainers() {
			for _, d := range c.GetDevices() {
				for _, id := range d.GetDeviceIds() {
					devices = append(devices, d.GetResourceName()+"="+id)
				}
			}
		}
		slices.Sort(devices)
		all[p.GetName()] = devices
	}
	return all
}

// has returns what holdings returns for a container that sees these devices.
func has(resource, devices string) []string {
	var all []string
	for id := range strings.SplitSeq(devices, ",") {
		all = append(all, resource+"="+id)
	}
	slices.Sort(all)
	return all
}

// consumed is what the program "consumer" prints.
type consumed struct {
	Pods, Got   []*podresources.PodResources
	Allocatable *podresources.AllocatableResourcesResponse
	Old         []*v1alpha1.PodResources
}

// contradicts compares it with what pods have, by their names, and returns what is not so. Others may be there besides.
func (c consumed) contradicts(want map[string][]string, devices int) (wrong []string) {
	var old []*podresources.PodResources
	for _, p := range c.Old {
		o := &podresources.PodResources{Name: p.Name, Namespace: p.Namespace}
		for _, c := range p.Containers {
			container := &podresources.ContainerResources{Name: c.Name}
			for _, d := range c.Devices {
				container.Devices = append(container.Devices, &podresources.ContainerDevices{ResourceName: d.ResourceName, DeviceIds: d.DeviceIds})
			}
			o.Containers = append(o.Containers, container)
		}
		old = append(old, o)
	}
	for question, pods := range map[string][]*podresources.PodResources{"List": c.Pods, "Get": c.Got, "v1alpha1's List": old} {
		told := holdings(pods)
		for name, devices := range want {
			if got, listed := told[name]; !listed || !slices.Equal(got, devices) {
				wrong = append(wrong, fmt.Sprintf("%s says that pod %s has %v (listed: %v), want %v", question, name, got, listed, devices))
			}
		}
	}
	if got := len(c.Allocatable.GetDevices()); got != devices {
		wrong = append(wrong, fmt.Sprintf("GetAllocatableResources has %d devices, want %d: %v", got, devices, c.Allocatable))
	}
	return wrong
}

// A program with Kubernetes' own client reads what devmgrd serves as it reads the kubelet's: with another address, and, if
// devmgrd takes the kubelet's place, in a pod that mounts the kubelet's directory and knows nothing of devmgrd.
func TestPodResources_KubernetesClient_ReadsIt(t *testing.T) {
	r := startWith(t, cluster.Options{}, "--set", takeover)
	r.plugin(gpu, 4)
	want := map[string][]string{
		"one":   has(gpu, r.run("one", gpu, 1).Env["DEVICES"]),
		"two":   has(gpu, r.run("two", gpu, 2).Env["DEVICES"]),
		"plain": {},
	}
	r.run("plain", "", 0)

	// A kubelet that does not answer within 2 s is left out of an answer: then a pod without devices is not in it.
	t.Run("on the node", func(t *testing.T) {
		var wrong []string
		if !r.comes(func() bool {
			cmd := exec.CommandContext(r.ctx, r.tool(cluster.Consumer, "consumer"), "unix://"+ourResources)
			var errs bytes.Buffer
			cmd.Stderr = &errs
			out, err := cmd.Output()
			var seen consumed
			if err = errors.Join(err, json.Unmarshal(out, &seen)); err != nil {
				wrong = []string{err.Error(), errs.String()}
				return false
			}
			wrong = seen.contradicts(want, 4)
			return len(wrong) == 0
		}) {
			t.Error(wrong)
		}
	})
	t.Run("in a pod", func(t *testing.T) {
		r := r.in(t)
		const image, directory = "localhost/consumer:1", "/var/lib/kubelet/pod-resources"
		r.must(r.LoadImage(r.ctx, cluster.Image{
			Name: image, Entrypoint: []string{"/consumer"}, Files: map[string]string{"/consumer": r.tool(cluster.Consumer, "consumer")},
		}))
		var wrong []string
		for try := range 5 {
			p := node.Pod(fmt.Sprint("consumer-", try), "", 0, "unix://"+kubeletsResources)
			p.Spec.Containers[0].Image = image
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "pod-resources", MountPath: directory}}
			p.Spec.Volumes = []corev1.Volume{{Name: "pod-resources", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: directory}}}}
			r.must(r.Create(r.ctx, p))
			_, err := r.WaitPhase(r.soon(), p.Name, corev1.PodSucceeded)
			r.must(err)
			log := asked(r, func() (string, error) { return r.PodLogs(r.ctx, p.Namespace, p.Name, "main") })
			var seen consumed
			r.must(json.Unmarshal([]byte(log), &seen))
			if wrong = seen.contradicts(want, 4); len(wrong) == 0 {
				return
			}
		}
		t.Error(wrong)
	})
}

// The kubelet is stopped, hangs, or has not come back when devmgrd starts: the pods' devices are listed all the same.
func TestPodResources_KubeletAway_PodsAreListed(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 2)
	want := has(gpu, r.run("a", gpu, 1).Env["DEVICES"])
	tell := r.teller(ourResources)
	answers := func(t *testing.T) {
		t.Helper()
		r := r.in(t)
		began := time.Now()
		ctx, cancel := context.WithTimeout(r.ctx, time.Minute) // many times as long as devmgrd waits for a kubelet
		defer cancel()
		all, err := tell.holdings(ctx)
		r.must(err)
		if !slices.Equal(all["a"], want) {
			t.Errorf("List says that the pod has %v, want %v", all["a"], want)
		}
		t.Logf("List took %s", time.Since(began).Round(time.Millisecond))
		one, err := tell.Get(ctx, &podresources.GetPodResourcesRequest{PodNamespace: "default", PodName: "a"})
		r.must(err)
		if got := holdings([]*podresources.PodResources{one.PodResources})["a"]; !slices.Equal(got, want) {
			t.Errorf("Get says that the pod has %v, want %v", got, want)
		}
		allocatable, err := tell.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
		r.must(err)
		if n := len(allocatable.Devices); n != 2 {
			t.Errorf("GetAllocatableResources has %d devices, want 2", n)
		}
	}
	answers(t)
	t.Run("the kubelet hangs", func(t *testing.T) {
		r.in(t).must(r.Kubelet.Signal(syscall.SIGSTOP))
		answers(t)
		r.in(t).must(r.Kubelet.Signal(syscall.SIGCONT))
	})
	t.Run("the kubelet is stopped", func(t *testing.T) {
		r.in(t).must(r.Kubelet.Stop(stopLimit))
		answers(t)
	})
	t.Run("devmgrd starts without it", func(t *testing.T) {
		r := r.in(t)
		r.must(r.Devmgrd.Kill())
		r.must(r.StartDevmgrd(r.soon()))
		answers(t)
	})
}
