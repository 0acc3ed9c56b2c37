package cluster

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	shipped "github.com/devmgrd/devmgrd/packaging/containerd"
)

const (
	containerdFile   = "/etc/containerd/config.toml"
	containerdSocket = "/run/containerd/containerd.sock"
)

// containerd is the runtime of a cluster unless the environment chooses another one.
type containerd struct {
	options Options
	tools   Tools
}

func (c containerd) Socket() string { return containerdSocket }
func (c containerd) Shim() string   { return c.tools.Path("containerd-shim-runc-v2") }

func (c containerd) process() (name string, argv []string) {
	return "containerd", []string{c.tools.Path("containerd"), "--config=" + containerdFile}
}

func (c containerd) dirs() []string {
	return []string{"/run/containerd", "/var/lib/containerd", "/etc/containerd"}
}

// LoadImage imports an image into the namespace of Kubernetes.
func (c containerd) LoadImage(ctx context.Context, image Image) error {
	archive, err := image.Archive()
	if err != nil {
		return fmt.Errorf("make the image %s: %w", image.Name, err)
	}
	cmd := c.ctr(ctx, "image", "import", "-")
	cmd.Stdin = bytes.NewReader(archive)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("load the image %s: %w\n%s", image.Name, err, output)
	}
	return nil
}

// Running asks the shims, by way of containerd.
func (c containerd) Running(ctx context.Context) ([]string, error) {
	out, err := c.ctr(ctx, "tasks", "list").Output()
	if err != nil {
		return nil, fmt.Errorf("list containerd's tasks: %w", err)
	}
	var ids []string
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 3 && f[2] == "RUNNING" {
			ids = append(ids, f[0])
		}
	}
	return ids, nil
}

func (c containerd) Container(ctx context.Context, id string) (Container, error) {
	out, err := c.ctr(ctx, "containers", "info", id).Output()
	if err != nil {
		return Container{}, fmt.Errorf("ask containerd for container %s: %w", id, err)
	}
	var info struct{ Spec map[string]any }
	if err := json.Unmarshal(out, &info); err != nil {
		return Container{}, fmt.Errorf("ask containerd for container %s: %w", id, err)
	}
	annotations := annotationsOf(info.Spec)
	of := func(key string) string { return annotations["io.kubernetes.cri."+key] }
	return Container{
		ID: id, Name: of("container-name"), Sandbox: of("sandbox-id"),
		Namespace: of("sandbox-namespace"), Pod: of("sandbox-name"), PodUID: of("sandbox-uid"),
		Annotations: annotations, Spec: info.Spec,
	}, nil
}

func (c containerd) Kill(ctx context.Context, id string) error {
	if out, err := c.ctr(ctx, "tasks", "kill", "--signal", "SIGKILL", id).CombinedOutput(); err != nil {
		return fmt.Errorf("kill container %s: %w: %s", id, err, out)
	}
	return nil
}

func (c containerd) ctr(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, c.tools.Path("ctr"), append([]string{"--address=" + containerdSocket, "--namespace=k8s.io"}, args...)...)
}

// files returns containerd's configuration: ours, and drop-ins that containerd merges into it in the order
// of their names: what devmgrd ships, the caller's, a file of its own, and the options.
func (c containerd) files() (map[string]string, error) {
	const dropIns = "/etc/containerd/conf.d"
	programs := []string{strconv.Quote(CNIDir)} // where there is nothing if the runtime is alone: pods are on the host's network
	if !c.options.Alone {
		programs[0] = strconv.Quote(filepath.Dir(c.tools.Path("ptp")))
	}
	cgroups := "restrict_oom_score_adj = true # there may be no CAP_SYS_RESOURCE"
	if c.options.Machine != "" {
		programs = []string{strconv.Quote(CNIDir)}
		cgroups = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\n    SystemdCgroup = true"
	}
	for _, p := range c.options.CNI {
		programs = append(programs, strconv.Quote(filepath.Dir(p.Path)))
	}
	release := containerdRelease()
	switch o := c.options; {
	case (release == "1.7" || release == "2.0") && o.CNI != nil:
		return nil, fmt.Errorf("containerd %s cannot have Options.CNI", release)
	case release == "1.7" && (o.ContainerdConfig != "" || o.Machine != ""):
		return nil, errors.New("containerd 1.7 can have neither Options.ContainerdConfig nor Options.Machine")
	}
	if release == "1.7" {
		return map[string]string{containerdFile: c.oldConfig(programs[0])}, nil
	}
	binaries := "bin_dirs = [" + strings.Join(programs, ", ") + "]"
	if release == "2.0" {
		binaries = "bin_dir = " + programs[0]
	}
	config := fmt.Sprintf(`version = 3
imports = ["%s/*.toml"]

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = %q

[plugins.'io.containerd.cri.v1.runtime']
  %s
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    %s
    conf_dir = %q
`, dropIns, PauseImage, cgroups, binaries, filepath.Dir(cniFile))

	options := "version = 3\n[plugins.'io.containerd.nri.v1.nri']\n" + c.nriTimeouts(0)
	return map[string]string{
		containerdFile:            config,
		dropIns + "/devmgrd.toml": shipped.Config,
		dropIns + "/extra.toml":   "version = 3\n" + c.options.ContainerdConfig,
		dropIns + "/options.toml": options,
	}, nil
}

// nriTimeouts returns the options for NRI, and the default for a request if there is one.
func (c containerd) nriTimeouts(request time.Duration) (text string) {
	if t := c.options.NRIRegistrationTimeout; t > 0 {
		text += fmt.Sprintf("  plugin_registration_timeout = %q\n", t.Round(time.Millisecond))
	}
	if t := cmp.Or(c.options.NRIRequestTimeout, request); t > 0 {
		text += fmt.Sprintf("  plugin_request_timeout = %q\n", t.Round(time.Millisecond))
	}
	return text
}

// oldConfig is the configuration of containerd 1.7, which reads version 2 and has NRI and CDI off.
func (c containerd) oldConfig(binaries string) string {
	return fmt.Sprintf(`version = 2

[plugins."io.containerd.nri.v1.nri"]
  disable = false
%s
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  enable_cdi = true
  restrict_oom_score_adj = true # there may be no CAP_SYS_RESOURCE
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %s
    conf_dir = %q
`, c.nriTimeouts(10*time.Second), PauseImage, binaries, filepath.Dir(cniFile))
}
