package preflight

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/devmgrd/devmgrd/internal/cri"
	"github.com/devmgrd/devmgrd/internal/lists"
)

const (
	// syncObjects is the minimum number of pods, and of containers, in one message from the runtime to an NRI plugin.
	syncObjects = 4
	// syncBytes bounds their total size: a message of 4 MiB, less the uncounted fields of each (mounts, names, the cgroup).
	syncBytes = 4<<20 - 512<<10

	maxNamed = 8
)

// sizes looks for pods and containers that the runtime cannot list to NRI plugins. How the runtime groups them into messages is not
// known, so the largest ones count.
func (j *judge) sizes(f Facts) {
	r := f.Runtime
	switch {
	case r.Err != nil:
		return
	case r.SizesErr != nil:
		j.warn("sizes", "check again; crictl inspect shows one container", "the sizes of the runtime's containers are not known: %v", r.SizesErr)
		return
	}
	sum := 0
	var large []Size
	for _, all := range [][]Size{r.Containers, r.Sandboxes} {
		for _, one := range all[:min(len(all), syncObjects)] {
			sum += one.Bytes
		}
		for _, one := range all {
			if one.Bytes > syncBytes/syncObjects/2 && len(large) < maxNamed {
				large = append(large, one)
			}
		}
	}
	if sum <= syncBytes {
		j.ok("sizes", "the runtime can list its %d containers to NRI plugins", len(r.Containers))
		return
	}
	names := lists.Map(large, func(one Size) string { return fmt.Sprintf("%s (%d bytes)", one.Name, one.Bytes) })
	const remedy = "delete these pods, or shorten their arguments, variables and annotations; kubectl apply -f /usr/share/devmgrd/kubernetes/pod-size.yaml keeps such pods out of the cluster"
	text := fmt.Sprintf("four containers and four pods have up to %d bytes together, but the runtime cannot list more than 4 MiB of them to an NRI plugin: %s", sum, strings.Join(names, ", "))
	if f.Daemon != nil && strings.Contains(strings.Join(f.Daemon.Problems, "\n"), "before it has listed its containers") {
		j.fail("sizes", remedy, "%s", text)
		return
	}
	j.warn("sizes", remedy, "%s: devmgrd may not connect after its next start", text)
}

// maxSized bounds the containers that runtimeSizes reads.
const maxSized = 2048

// runtimeSizes returns the sizes of all containers and sandboxes of the runtime that listens on a unix socket, the largest first.
// It omits containers whose specification the runtime does not show, and containers that have ended, which NRI plugins do not
// see.
func runtimeSizes(ctx context.Context, path string) (containers, sandboxes []Size, err error) {
	conn, err := cri.Dial(path)
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close()
	client := v1.NewRuntimeServiceClient(conn)
	pods, err := client.ListPodSandbox(ctx, &v1.ListPodSandboxRequest{})
	if err != nil {
		return nil, nil, fmt.Errorf("asking the runtime at %s for its pods: %w", path, err)
	}
	names := map[string]Size{}
	for _, p := range pods.GetItems() {
		one := Size{Name: p.GetMetadata().GetNamespace() + "/" + p.GetMetadata().GetName()}
		names[p.GetId()] = one
		one.Bytes = texts(p.GetAnnotations()) + texts(p.GetLabels())
		sandboxes = append(sandboxes, one)
	}
	all, err := client.ListContainers(ctx, &v1.ListContainersRequest{})
	if err != nil {
		return nil, nil, fmt.Errorf("asking the runtime at %s for its containers: %w", path, err)
	}
	listed := all.GetContainers()
	for _, c := range listed[:min(len(listed), maxSized)] {
		if c.GetState() == v1.ContainerState_CONTAINER_EXITED || c.GetState() == v1.ContainerState_CONTAINER_UNKNOWN {
			continue
		}
		status, err := client.ContainerStatus(ctx, &v1.ContainerStatusRequest{ContainerId: c.GetId(), Verbose: true})
		if ctx.Err() != nil {
			return nil, nil, fmt.Errorf("asking the runtime at %s for its containers: %w", path, ctx.Err())
		}
		if err != nil {
			continue // the container has gone meanwhile
		}
		one := names[c.GetPodSandboxId()]
		one.Name += ":" + c.GetMetadata().GetName()
		one.Bytes = specSize(status.GetInfo()["info"])
		if one.Bytes > 0 {
			one.Bytes += texts(c.GetLabels())
			containers = append(containers, one)
		}
	}
	for _, sizes := range [][]Size{containers, sandboxes} {
		slices.SortStableFunc(sizes, func(a, b Size) int { return cmp.Compare(b.Bytes, a.Bytes) })
	}
	return containers, sandboxes, nil
}

// specSize returns a container's size from the runtime's verbose status; 0: not reported.
func specSize(info string) (n int) {
	var about struct {
		Spec struct {
			Process struct {
				Args []string `json:"args"`
				Env  []string `json:"env"`
			} `json:"process"`
			Annotations map[string]string `json:"annotations"`
		} `json:"runtimeSpec"`
	}
	if json.Unmarshal([]byte(info), &about) != nil {
		return 0
	}
	for _, text := range slices.Concat(about.Spec.Process.Args, about.Spec.Process.Env) {
		n += len(text)
	}
	return n + texts(about.Spec.Annotations)
}

func texts(all map[string]string) (n int) {
	for k, v := range all {
		n += len(k) + len(v)
	}
	return n
}
