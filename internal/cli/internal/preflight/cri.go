package preflight

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/devmgrd/devmgrd/internal/cri"
	"github.com/devmgrd/devmgrd/internal/socket"
)

// askRuntime asks the runtime that listens on a unix socket.
func askRuntime(ctx context.Context, path string) (Runtime, error) {
	r, err := behind(path)
	if err != nil {
		return Runtime{}, err
	}
	conn, err := cri.Dial(path)
	if err != nil {
		return Runtime{}, err
	}
	defer conn.Close()
	client := v1.NewRuntimeServiceClient(conn)
	version, err := client.Version(ctx, &v1.VersionRequest{})
	if err != nil {
		return Runtime{}, fmt.Errorf("asking the runtime at %s for its version: %w", path, err)
	}
	r.Name, r.Version = version.RuntimeName, version.RuntimeVersion
	config, err := client.RuntimeConfig(ctx, &v1.RuntimeConfigRequest{})
	switch {
	case status.Code(err) == codes.Unimplemented:
	case err != nil:
		return Runtime{}, fmt.Errorf("asking the runtime at %s for its cgroup driver: %w", path, err)
	case config.GetLinux().GetCgroupDriver() == v1.CgroupDriver_CGROUPFS:
		r.CgroupDriver = "cgroupfs"
	case config.GetLinux() != nil:
		r.CgroupDriver = "systemd"
	}
	about, err := client.Status(ctx, &v1.StatusRequest{Verbose: true})
	if err != nil {
		return Runtime{}, fmt.Errorf("asking the runtime at %s for its state: %w", path, err)
	}
	r.OCI, r.Systemd = defaultHandler(about.GetInfo()["config"])
	r.CDI = cri.ReadCDI(about.GetInfo()["config"])
	r.UserNamespaces = slices.ContainsFunc(about.GetRuntimeHandlers(), func(h *v1.RuntimeHandler) bool { // the default one has no name
		return h.GetName() == "" && h.GetFeatures().GetUserNamespaces()
	})
	return r, nil
}

// behind returns the process that listens on a unix socket.
func behind(path string) (Runtime, error) {
	conn, err := net.DialTimeout("unix", path, 2*time.Second)
	if err != nil {
		return Runtime{}, err
	}
	defer conn.Close()
	pid, err := socket.Peer(conn)
	if err != nil {
		return Runtime{}, err
	}
	r := Runtime{}
	// The process may be in another PID namespace. Then its start and arguments are not known.
	if p, err := procfs.NewProc(int(pid)); err == nil {
		r.args, err = p.CmdLine()
		if err != nil {
			return r, nil
		}
		if stat, err := p.Stat(); err == nil {
			if at, err := stat.StartTime(); err == nil {
				r.Started = time.Unix(int64(at), 0)
			}
		}
	}
	return r, nil
}

// defaultHandler reads the default handler from the configuration that containerd reports; zero values: not reported.
func defaultHandler(text string) (oci string, systemd bool) {
	var config struct {
		Containerd struct {
			Default  string `json:"defaultRuntimeName"`
			Runtimes map[string]struct {
				Options struct {
					Binary  string `json:"BinaryName"`
					Systemd bool   `json:"SystemdCgroup"`
				} `json:"options"`
			} `json:"runtimes"`
		} `json:"containerd"`
	}
	if json.Unmarshal([]byte(text), &config) != nil {
		return "", false
	}
	handler, known := config.Containerd.Runtimes[config.Containerd.Default]
	if !known {
		return "", false
	}
	if handler.Options.Binary != "" {
		return filepath.Base(handler.Options.Binary), handler.Options.Systemd
	}
	return config.Containerd.Default, handler.Options.Systemd
}

// configFile returns the configuration file in the process's arguments, if there is one.
func (r Runtime) configFile() string {
	for i, arg := range r.args {
		name, value, inline := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch {
		case i == 0 || !strings.HasPrefix(arg, "-") || name != "config" && name != "c":
		case inline:
			return value
		case i+1 < len(r.args):
			return r.args[i+1]
		}
	}
	return ""
}
