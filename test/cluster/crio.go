package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	shipped "github.com/devmgrd/devmgrd/packaging/crio"
)

const (
	crioDir     = "/etc/crio"
	crioFile    = crioDir + "/crio.conf"
	crioSocket  = "/run/crio/crio.sock"
	crioStorage = "/var/lib/containers/storage"
	crioRunc    = "/run/runc"                   // where runc keeps the state of CRI-O's containers
	realRunc    = crioDir + "/runc"             // a file with the path of runc, for fitrunc
	imageRules  = "/etc/containers/policy.json" // what signatures images need
	registries  = "/etc/containers/registries.conf"
)

// crio is CRI-O, built by the person who runs the tests: its sources are no Go module that others can build.
type crio struct {
	options Options
	tools   Tools
	dir     string
}

func (c crio) Socket() string { return crioSocket }
func (c crio) Shim() string   { return c.program("conmon") }

func (c crio) process() (name string, argv []string) {
	return "crio", []string{c.program("crio"), "--config=" + crioFile, "--config-dir=" + crioFile + ".d"}
}

func (c crio) dirs() []string {
	return []string{"/run/crio", "/run/containers", crioRunc, crioStorage, crioDir, "/var/lib/crio", "/etc/containers"}
}

// program returns the path of one of CRI-O's programs as /proc shows it; its name if there is none.
func (c crio) program(name string) string {
	for _, candidate := range []string{filepath.Join(c.dir, name), filepath.Join(c.dir, "bin", name), name} {
		path, err := exec.LookPath(candidate)
		if err != nil {
			continue
		}
		if path, err = filepath.Abs(path); err != nil {
			continue
		}
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return path
		}
	}
	return name
}

// files returns CRI-O's configuration: ours, what devmgrd ships, and the options.
func (c crio) files() (map[string]string, error) {
	programs := []string{strconv.Quote(filepath.Dir(c.tools.Path("ptp")))}
	for _, p := range c.options.CNI {
		programs = append(programs, strconv.Quote(filepath.Dir(p.Path)))
	}
	if c.options.ContainerdConfig != "" || c.options.Machine != "" {
		return nil, errors.New("Options.ContainerdConfig and Options.Machine are for containerd, and this is CRI-O")
	}
	for _, name := range []string{"crio", "pinns", "conmon"} {
		if !filepath.IsAbs(c.program(name)) {
			return nil, fmt.Errorf("%s is neither in %s=%s, nor in its directory bin, nor in PATH", name, CRIOVariable, c.dir)
		}
	}
	config := fmt.Sprintf(`[crio]
root = %q
runroot = "/run/containers/storage"
storage_driver = "overlay"
log_dir = "/var/log/crio/pods"
version_file = "/run/crio/version"
clean_shutdown_file = "/var/lib/crio/clean.shutdown"

[crio.api]
listen = %q

[crio.runtime]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
pinns_path = %q
namespaces_dir = "/run/crio/ns"
drop_infra_ctr = false # a test ends a sandbox by its container
disable_hostport_mapping = true # it needs iptables or nftables

[crio.runtime.runtimes.runc]
runtime_path = %q
runtime_root = %q
monitor_path = %q
monitor_cgroup = "pod"

[crio.image]
pause_image = %q
signature_policy = %q

[crio.network]
network_dir = %q
plugin_dirs = [%s]
`, crioStorage, crioSocket, c.program("pinns"), c.tools.Path("fitrunc"), crioRunc, c.program("conmon"), PauseImage, imageRules,
		filepath.Dir(cniFile), strings.Join(programs, ", "))

	options := "[crio.nri]\n"
	if t := c.options.NRIRegistrationTimeout; t > 0 {
		options += fmt.Sprintf("nri_plugin_registration_timeout = %q\n", t.Round(time.Millisecond))
	}
	if t := c.options.NRIRequestTimeout; t > 0 {
		options += fmt.Sprintf("nri_plugin_request_timeout = %q\n", t.Round(time.Millisecond))
	}
	var mirrors strings.Builder
	for _, host := range []string{"localhost", "registry.k8s.io"} {
		fmt.Fprintf(&mirrors, "[[registry]]\nprefix = %q\nlocation = %q\ninsecure = true\n", host, registryAddress+"/"+host)
	}
	return map[string]string{
		crioFile:                        config,
		crioFile + ".d/50-devmgrd.conf": shipped.Config,
		crioFile + ".d/60-options.conf": options,
		realRunc:                        c.tools.Path("runc"),
		imageRules:                      `{"default": [{"type": "insecureAcceptAnything"}]}`,
		registries:                      mirrors.String(),
	}, nil
}

// LoadImage has CRI-O pull the image from a registry that is there for this image.
func (c crio) LoadImage(ctx context.Context, image Image) error {
	stop, err := serveImage(image)
	if err != nil {
		return fmt.Errorf("serve the image %s: %w", image.Name, err)
	}
	defer func() { _ = stop() }()
	conn, err := grpc.NewClient("unix://"+crioSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, name := range image.names() {
		if _, err := cri.NewImageServiceClient(conn).PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: name}}); err != nil {
			return fmt.Errorf("load the image %s: %w", name, err)
		}
	}
	return nil
}

// Running asks runc, which looks at the processes.
func (c crio) Running(ctx context.Context) ([]string, error) {
	out, err := c.runc(ctx, "list", "--format=json").Output()
	if err != nil {
		return nil, fmt.Errorf("list runc's containers: %w", err)
	}
	var all []struct{ ID, Status string }
	if err := json.Unmarshal(out, &all); err != nil {
		return nil, fmt.Errorf("list runc's containers: %w", err)
	}
	var ids []string
	for _, c := range all {
		if c.Status == "running" {
			ids = append(ids, c.ID)
		}
	}
	return ids, nil
}

func (c crio) Container(_ context.Context, id string) (Container, error) {
	text, err := os.ReadFile(filepath.Join(crioStorage, "overlay-containers", id, "userdata", "config.json"))
	if err != nil {
		return Container{}, fmt.Errorf("read what CRI-O keeps of container %s: %w", id, err)
	}
	found := Container{ID: id}
	var metadata struct{ Name string }
	if err := json.Unmarshal(text, &found.Spec); err != nil {
		return Container{}, fmt.Errorf("read what CRI-O keeps of container %s: %w", id, err)
	}
	found.Annotations = annotationsOf(found.Spec)
	of := func(key string) string { return found.Annotations["io.kubernetes.cri-o."+key] }
	if err := json.Unmarshal([]byte(of("Metadata")), &metadata); err != nil {
		return Container{}, fmt.Errorf("read the metadata of container %s: %w", id, err)
	}
	found.Name, found.Sandbox = metadata.Name, of("SandboxID")
	if name := strings.Split(of("SandboxName"), "_"); len(name) == 5 { // k8s, pod, namespace, UID, attempt
		found.Pod, found.Namespace, found.PodUID = name[1], name[2], name[3]
	}
	return found, nil
}

func (c crio) Kill(ctx context.Context, id string) error {
	if out, err := c.runc(ctx, "kill", id, "KILL").CombinedOutput(); err != nil {
		return fmt.Errorf("kill container %s: %w: %s", id, err, out)
	}
	return nil
}

func (c crio) runc(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, c.tools.Path("runc"), append([]string{"--root=" + crioRunc}, args...)...)
}

// CRIOVersion returns the version of the CRI-O that the environment chooses.
func CRIOVersion() (string, error) {
	out, err := exec.Command(crio{dir: os.Getenv(CRIOVariable)}.program("crio"), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask crio for its version: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		if _, version, found := strings.Cut(line, "crio version "); found {
			return strings.TrimSpace(version), nil
		}
		if _, version, found := strings.Cut(line, "Version:"); found {
			return strings.TrimSpace(version), nil
		}
	}
	return "", fmt.Errorf("crio --version names none: %s", out)
}
