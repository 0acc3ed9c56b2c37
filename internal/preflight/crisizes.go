package preflight

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxSized bounds the containers that runtimeSizes reads.
const maxSized = 2048

// runtimeSizes returns the sizes of all containers and sandboxes of the runtime that listens on a unix socket, the largest first.
// It omits containers whose specification the runtime does not show, and containers that have ended, which NRI plugins do not
// see.
func runtimeSizes(ctx context.Context, path string) (containers, sandboxes []Size, err error) {
	conn, err := dial(path)
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
		if one.Bytes = specSize(status.GetInfo()["info"]); one.Bytes > 0 {
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

func dial(path string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///cri", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
}
