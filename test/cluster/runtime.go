package cluster

import (
	"context"
	"os"
)

// ContainerRuntime is what a cluster's node has for its runtime: containerd, or CRI-O.
type ContainerRuntime interface {
	// Socket is the address of the runtime's CRI.
	Socket() string

	// LoadImage brings an image to where the kubelet finds it.
	LoadImage(ctx context.Context, image Image) error
	// Running returns the IDs of the running containers. Those of sandboxes may be among them.
	Running(ctx context.Context) ([]string, error)
	// Container returns what the runtime keeps of a container until the container is removed.
	Container(ctx context.Context, id string) (Container, error)
	// Kill ends the processes of a running container with SIGKILL.
	Kill(ctx context.Context, id string) error
	// Shim is the program between the runtime and a container. It lives as long as its containers.
	Shim() string

	process() (name string, argv []string)
	files() (map[string]string, error) // the configuration, by path
	dirs() []string                    // of the configuration and the state
}

// A Container is what a runtime keeps of a container.
type Container struct {
	ID, Name, Sandbox      string
	Namespace, Pod, PodUID string
	Annotations            map[string]string
	Spec                   map[string]any // the OCI specification that the container was made from
}

// CRIOVariable names a directory with a build of CRI-O, its programs crio and pinns in it or in its directory bin: the cluster then
// has CRI-O for its runtime. conmon is in the same directory or in PATH.
const CRIOVariable = "TESTCLUSTER_CRIO"

// runtimeOf returns the runtime that the environment chooses.
func runtimeOf(o Options, tools Tools) ContainerRuntime {
	if UsesCRIO() {
		return crio{options: o, tools: tools, dir: os.Getenv(CRIOVariable)}
	}
	return containerd{options: o, tools: tools}
}

// annotationsOf returns the annotations of an OCI specification.
func annotationsOf(spec map[string]any) map[string]string {
	all := map[string]string{}
	annotations, _ := spec["annotations"].(map[string]any)
	for k, v := range annotations {
		all[k], _ = v.(string)
	}
	return all
}

// UsesCRIO reports whether clusters have CRI-O for their runtime.
func UsesCRIO() bool { return os.Getenv(CRIOVariable) != "" }
