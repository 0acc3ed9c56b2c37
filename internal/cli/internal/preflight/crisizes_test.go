package preflight

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A runtime answers as containerd does about two pods with a container each, one container that has just gone, and one that has ended.
type runtime struct {
	v1.UnimplementedRuntimeServiceServer
	t    *testing.T
	maps bool // its default handler supports user namespaces
}

func (runtime) ListPodSandbox(context.Context, *v1.ListPodSandboxRequest) (*v1.ListPodSandboxResponse, error) {
	return &v1.ListPodSandboxResponse{Items: []*v1.PodSandbox{
		{Id: "s1", Metadata: &v1.PodSandboxMetadata{Namespace: "ns", Name: "small"}},
		{Id: "s2", Metadata: &v1.PodSandboxMetadata{Namespace: "ns", Name: "large"}, Annotations: map[string]string{"a": strings.Repeat("x", 99)}, Labels: map[string]string{"l": "1234567"}},
	}}, nil
}

func (runtime) ListContainers(context.Context, *v1.ListContainersRequest) (*v1.ListContainersResponse, error) {
	return &v1.ListContainersResponse{Containers: []*v1.Container{
		{Id: "c1", PodSandboxId: "s1", Metadata: &v1.ContainerMetadata{Name: "main"}},
		{Id: "gone", PodSandboxId: "s1", Metadata: &v1.ContainerMetadata{Name: "gone"}},
		{Id: "c2", PodSandboxId: "s1", State: v1.ContainerState_CONTAINER_EXITED, Metadata: &v1.ContainerMetadata{Name: "ended"}},
		{Id: "c2", PodSandboxId: "s2", Metadata: &v1.ContainerMetadata{Name: "main"}, Labels: map[string]string{"l": "123"}},
	}}, nil
}

func (r runtime) ContainerStatus(_ context.Context, of *v1.ContainerStatusRequest) (*v1.ContainerStatusResponse, error) {
	if of.ContainerId == "gone" || !of.Verbose {
		return nil, status.Error(codes.NotFound, "it has gone")
	}
	args := []string{"sleep"}
	if of.ContainerId == "c2" {
		args = []string{strings.Repeat("x", 5<<20)}
	}
	info, err := json.Marshal(map[string]any{"pid": 1, "runtimeSpec": map[string]any{
		"process": map[string]any{"args": args, "env": []string{"A=b"}}, "annotations": map[string]string{"k": "v"},
	}})
	if err != nil {
		r.t.Error(err)
	}
	return &v1.ContainerStatusResponse{Info: map[string]string{"info": string(info)}}, nil
}

func (runtime) Version(context.Context, *v1.VersionRequest) (*v1.VersionResponse, error) {
	return &v1.VersionResponse{RuntimeName: "containerd", RuntimeVersion: "v2.4.2"}, nil
}

// Status is containerd's: the default handler is there under its name, and without a name.
func (r runtime) Status(context.Context, *v1.StatusRequest) (*v1.StatusResponse, error) {
	handler := func(name string, userNamespaces bool) *v1.RuntimeHandler {
		return &v1.RuntimeHandler{Name: name, Features: &v1.RuntimeHandlerFeatures{UserNamespaces: userNamespaces}}
	}
	config := `{"enableCDI":false,"cdiSpecDirs":["/etc/cdi","/var/run/cdi"]}`
	return &v1.StatusResponse{Info: map[string]string{"config": config}, RuntimeHandlers: []*v1.RuntimeHandler{handler("kata", !r.maps), handler("runc", r.maps), handler("", r.maps)}}, nil
}

// Of the runtime's handlers the default one counts.
func TestAskRuntime_DefaultHandler_UserNamespacesAreReported(t *testing.T) {
	for _, maps := range []bool{true, false} {
		path := filepath.Join(t.TempDir(), "cri.sock")
		listener, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer()
		v1.RegisterRuntimeServiceServer(s, runtime{t: t, maps: maps})
		go s.Serve(listener)
		t.Cleanup(s.Stop)
		if r, err := askRuntime(t.Context(), path); err != nil || r.UserNamespaces != maps || !r.CDI.Off || len(r.CDI.Dirs) != 2 {
			t.Errorf("%+v, %v, want user namespaces: %v", r, err, maps)
		}
	}
}

func TestSizes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cri.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	v1.RegisterRuntimeServiceServer(server, runtime{t: t})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	containers, sandboxes, err := runtimeSizes(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if want := []Size{{"ns/large:main", 5<<20 + 3 + 2 + 4}, {"ns/small:main", 5 + 3 + 2}}; !slices.Equal(containers, want) {
		t.Errorf("containers %+v, want %+v", containers, want)
	}
	if want := []Size{{"ns/large", 108}, {"ns/small", 0}}; !slices.Equal(sandboxes, want) {
		t.Errorf("sandboxes %+v, want %+v", sandboxes, want)
	}
	if _, _, err := runtimeSizes(t.Context(), path+".none"); err == nil || !strings.Contains(fmt.Sprint(err), "cri.sock.none") {
		t.Errorf("of a runtime that is not there: %v", err)
	}
}
