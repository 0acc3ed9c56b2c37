package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sandboxLogs is where the logs of containers are that are made by [Sandbox.Run].
const sandboxLogs = "/var/log/pods"

// A PodConfig describes a pod that is made without Kubernetes. Pods are on the network of the host.
type PodConfig struct {
	Name        string
	Annotations map[string]string
	Privileged  bool
}

// A ContainerConfig describes a container of such a pod.
type ContainerConfig struct {
	Name, Image string
	Args, Env   []string          // Env: "NAME=value"
	Mounts      map[string]string // path in the container → path on the host
}

// A Sandbox is a pod that was made by CRI, the runtime's own API, as crictl does. Its namespace is "plain".
type Sandbox struct {
	ID, UID string

	config  *cri.PodSandboxConfig
	pod     PodConfig
	runtime cri.RuntimeServiceClient
	conn    *grpc.ClientConn
}

// RunSandbox makes a pod without containers.
func (c *Cluster) RunSandbox(ctx context.Context, p PodConfig) (*Sandbox, error) {
	conn, err := grpc.NewClient("unix://"+c.Containers.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	uid := "uid-of-" + p.Name
	s := &Sandbox{UID: uid, pod: p, conn: conn, runtime: cri.NewRuntimeServiceClient(conn), config: &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: p.Name, Uid: uid, Namespace: "plain"},
		Annotations:  p.Annotations,
		LogDirectory: filepath.Join(sandboxLogs, p.Name),
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: c.run.cgroup() + "/pod" + uid,
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE}, Privileged: p.Privileged,
			},
		},
	}}
	if err := os.MkdirAll(s.config.LogDirectory, 0o755); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	made, err := s.runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: s.config})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("run the sandbox of pod %s: %w", p.Name, err), conn.Close())
	}
	s.ID = made.PodSandboxId
	return s, nil
}

// Run creates and starts a container, and returns its ID. The error is the runtime's, with what an NRI plugin has to say.
func (s *Sandbox) Run(ctx context.Context, c ContainerConfig) (id string, err error) {
	config := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: c.Name}, Image: &cri.ImageSpec{Image: c.Image}, Args: c.Args,
		LogPath: c.Name + ".log",
		Linux:   &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{Privileged: s.pod.Privileged}},
	}
	for _, pair := range c.Env {
		name, value, _ := strings.Cut(pair, "=")
		config.Envs = append(config.Envs, &cri.KeyValue{Key: name, Value: []byte(value)})
	}
	for inside, host := range c.Mounts {
		config.Mounts = append(config.Mounts, &cri.Mount{ContainerPath: inside, HostPath: host})
	}
	made, err := s.runtime.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: s.ID, SandboxConfig: s.config, Config: config})
	if err != nil {
		return "", err
	}
	_, err = s.runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: made.ContainerId})
	return made.ContainerId, err
}

// RemoveContainer ends a container with SIGKILL and removes it.
func (s *Sandbox) RemoveContainer(ctx context.Context, id string) error {
	if _, err := s.runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id}); err != nil {
		return err
	}
	_, err := s.runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: id})
	return err
}

// Log returns what the container of that name has written, without the runtime's time stamps.
func (s *Sandbox) Log(container string) (string, error) {
	text, err := os.ReadFile(filepath.Join(s.config.LogDirectory, container+".log"))
	if err != nil {
		return "", err
	}
	var log strings.Builder
	for line := range strings.Lines(string(text)) { // TIME STREAM F or P, for a line or a part of one, and the text
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		if len(fields) < 4 {
			continue
		}
		log.WriteString(fields[3])
		if fields[2] == "F" {
			log.WriteByte('\n')
		}
	}
	return log.String(), nil
}

// Remove ends the pod's containers, and removes them and the pod.
func (s *Sandbox) Remove(ctx context.Context) error {
	_, err := s.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: s.ID})
	if err == nil {
		_, err = s.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.ID})
	}
	return errors.Join(err, os.RemoveAll(s.config.LogDirectory))
}

// Close ends the connection to the runtime. The pod stays.
func (s *Sandbox) Close() error { return s.conn.Close() }
