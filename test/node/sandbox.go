package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/cluster/images/report"
)

// ResourcesAnnotation is the annotation by which a pod without Kubernetes requests devices for its container "main".
func ResourcesAnnotation(resource string, count int) map[string]string {
	return map[string]string{"devmgrd.io/resources": fmt.Sprintf(`{"main":{%q:%d}}`, resource, count)}
}

// sampleDirs are the directories of the host that the manifest of Kubernetes' sample device plugin mounts.
var sampleDirs = []string{kubeletDir, "/var/lib/kubelet/plugins_registry", "/dev", "/var/run/cdi"}

// RunSamplePlugin runs Kubernetes' sample device plugin in a pod without Kubernetes, with the mounts of its manifest and with CDI.
func (n *Node) RunSamplePlugin(ctx context.Context) (*cluster.Sandbox, error) {
	mounts := map[string]string{}
	for _, dir := range sampleDirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		mounts[dir] = dir
	}
	s, err := n.RunSandbox(ctx, cluster.PodConfig{Name: "sample-device-plugin", Privileged: true})
	if err != nil {
		return nil, err
	}
	_, err = s.Run(ctx, cluster.ContainerConfig{
		Name: "main", Image: cluster.SampleDevicePluginImage, Mounts: mounts,
		Env: []string{"PLUGIN_SOCK_DIR=" + kubeletDir, "CDI_ENABLED=1"},
	})
	return s, err
}

// SandboxReport returns what the probe in the container "main" of a pod without Kubernetes has written.
func SandboxReport(ctx context.Context, s *cluster.Sandbox) (r report.Report, err error) {
	err = poll(ctx, func() (bool, error) {
		log, err := s.Log("main")
		lines := strings.Split(strings.TrimSpace(log), "\n")
		return err == nil && json.Unmarshal([]byte(lines[len(lines)-1]), &r) == nil, nil
	})
	return r, err
}
