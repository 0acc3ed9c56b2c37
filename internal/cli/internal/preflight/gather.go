package preflight

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/client"
	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/dra"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/nri"
	"github.com/devmgrd/devmgrd/internal/podresources"
	"github.com/devmgrd/devmgrd/internal/pods"
	"github.com/devmgrd/devmgrd/internal/reclaim/openers"
	"github.com/devmgrd/devmgrd/internal/socket"
	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
	"github.com/devmgrd/devmgrd/internal/store"
	"github.com/devmgrd/devmgrd/internal/version"
)

const (
	lookLimit = 5 * time.Second  // for each component that may not answer
	apiLimit  = 15 * time.Second // for all calls to the API server, which may be far away
)

// A Node names what is examined.
type Node struct {
	Config           config.Config
	ConfigFile       string // empty: there is none
	Runtime          string // the CRI socket; empty: the kubelet's
	KubeletConfig    string // its file
	ContainerdConfig string // its file; empty: the one that the process names, or the default
	Log              *slog.Logger
}

// Gather collects the facts about this node. It changes nothing.
func Gather(ctx context.Context, n Node) Facts {
	l := gatherer{n, ctx}
	f := Facts{
		Root:       os.Geteuid() == 0,
		ConfigFile: n.ConfigFile,
		Conditions: l.Config.Kubernetes.PodConditions,
		Evicts:     l.Config.Health.OnDeviceFailure == config.Evict || l.Config.Health.OnMissingDevices == config.Evict || len(l.Config.Wait.GiveUpAfter) > 0,
		Takeover:   l.Config.PodResources.Takeover,
		State:      l.state(),
		NRI:        l.nri(),
		Host:       host(),
		Openers:    l.openers(),
		Commands:   l.commands(),
	}
	daemon := l.daemon(&f)
	if f.Daemon == nil {
		f.Sockets = l.sockets()
	}
	kubelet, err := readKubeletConfig(l.KubeletConfig)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // its settings may be on its command line
	}
	f.Kubelet.CgroupDriver, f.Kubelet.ConfigErr = kubelet.CgroupDriver, err
	l.readRuntime(&f, kubelet)
	l.readAPI(&f)
	l.readKubelet(&f, daemon)
	if f.Claims != nil {
		f.Claims.Resources = claimed(l.Config.DRA, f)
	}
	return f
}

// A gatherer is a Node that is examined while ctx lasts.
type gatherer struct {
	Node
	ctx context.Context
}

func (l gatherer) state() State {
	s := State{Dir: l.Config.StateDir}
	books, schema, err := store.ReadFile(filepath.Join(s.Dir, store.FileName), l.Log)
	switch {
	case errors.As(err, new(*store.InUseError)):
		s.InUse = true
		return s
	case errors.As(err, new(*store.DamagedError)):
		s.Damaged, s.Err = true, err
		return s
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		s.Err = err
		return s
	case err == nil:
		s.Version = schema
	}
	for _, p := range books.Pods {
		if len(p.Assignments) > 0 {
			s.Pods++
		}
	}
	s.Err = writable(s.Dir)
	return s
}

// writable checks the directory or, if it does not exist yet, the nearest existing one above it.
func writable(dir string) error {
	at := dir
	for {
		err := unix.Access(at, unix.W_OK)
		switch {
		case errors.Is(err, unix.ENOENT) && at != "/":
			at = filepath.Dir(at)
		case err != nil:
			return fmt.Errorf("%s cannot be written: %s: %w", dir, at, err)
		default:
			return nil
		}
	}
}

// daemon asks a running devmgrd for its status, and returns its process; 0: none is running.
func (l gatherer) daemon(f *Facts) int {
	at := l.Config.Admin.Socket
	pid := 0
	if conn, err := net.DialTimeout("unix", at, time.Second); err == nil {
		if peer, err := socket.Peer(conn); err == nil {
			pid = int(peer)
		}
		conn.Close()
	}
	if pid == 0 {
		return 0
	}
	status, err := l.status(at)
	if err != nil {
		f.Daemon = &Daemon{Version: "of unknown version", Problems: []string{err.Error()}}
		return pid
	}
	f.Daemon = &Daemon{Version: status.Version, Serves: map[device.ResourceName]bool{}, Devices: map[device.ResourceName]int{}}
	for _, p := range status.Components {
		if !p.Ready {
			f.Daemon.Problems = append(f.Daemon.Problems, p.Problem)
		}
	}
	for _, r := range status.Resources {
		f.Daemon.Devices[device.ResourceName(r.Name)] = int(r.Free + r.Assigned + r.Unhealthy + r.Cordoned + r.Suspended + r.Refused + r.Stale + r.Quarantined + r.Withheld + r.Releasing + r.Busy)
		f.Daemon.Serves[device.ResourceName(r.Name)] = r.Plugin == device.Serving.String() || r.Plugin == device.StatusConnected
	}
	return pid
}

// status asks the devmgrd that listens at a socket.
func (l gatherer) status(at string) (*adminv1.GetStatusResponse, error) {
	c, err := client.New(at)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(l.ctx, lookLimit)
	defer cancel()
	answer, err := c.GetStatus(ctx, &adminv1.GetStatusRequest{})
	return answer, c.Diagnose(err)
}

// lookAtSocket reports whether systemd listens at path. If not, err is the reason why devmgrd cannot listen there.
func lookAtSocket(ctx context.Context, path string) (init bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if conn, err := socket.Dial(ctx, path); err == nil {
		pid, err := socket.Peer(conn)
		conn.Close()
		if err == nil && pid == 1 {
			return true, nil
		}
	}
	d, name, err := shareddir.Split(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // devmgrd makes the directory
	}
	if err != nil {
		return false, err
	}
	defer d.Close()
	_, err = socket.Vacant(d, name)
	return false, err
}

func (l gatherer) sockets() []Socket {
	c := l.Config
	all := []Socket{
		{Key: "plugins.socketDir", At: filepath.Join(c.Plugins.SocketDir, "kubelet.sock")},
		{Key: "podResources.socket", At: c.PodResources.Socket},
		{Key: "admin.socket", At: c.Admin.Socket},
	}
	if len(c.DRA.Resources) > 0 {
		for _, at := range dra.Sockets(c.Plugins.KubeletRegistryDir(), filepath.Join(filepath.Dir(c.Plugins.KubeletDir), "plugins")) {
			all = append(all, Socket{Key: "plugins.kubeletDir", At: at})
		}
	}
	for i := range all {
		s := &all[i]
		if err := socket.CheckPath(s.At); err != nil {
			s.Err = err
			continue
		}
		s.Init, s.Err = lookAtSocket(l.ctx, s.At)
	}
	if at := c.Metrics.Listen; at != "" {
		listener, err := tryWeb(at)
		if err == nil {
			err = listener.Close()
		}
		all = append(all, Socket{Key: "metrics.listen", At: at, Err: err})
	}
	return all
}

func (l gatherer) nri() NRI {
	ctx, cancel := context.WithTimeout(l.ctx, lookLimit)
	defer cancel()
	at := l.Config.NRI.Socket
	greeting, err := nri.Probe(ctx, at)
	missing := false
	if err != nil {
		conn, none := net.DialTimeout("unix", at, time.Second)
		if none == nil {
			conn.Close()
		}
		missing = errors.Is(none, fs.ErrNotExist) || errors.Is(none, syscall.ECONNREFUSED) // a socket without a listener
	}
	return NRI{Socket: at, Missing: missing, Greeting: greeting, Err: err}
}

func (l gatherer) openers() *Openers {
	if !l.Config.Release.Looks() {
		return nil
	}
	ctx, cancel := context.WithTimeout(l.ctx, lookLimit)
	defer cancel()
	scan, err := openers.Client{Path: l.Config.Release.Socket}.Find(ctx, []openers.Device{{}})
	return &Openers{Socket: l.Config.Release.Socket, Processes: scan.Processes, CPU: scan.CPU, Err: err}
}

func (l gatherer) commands() (all []Command) {
	add := func(key string, byResource map[string]string) {
		for _, text := range slices.Sorted(maps.Values(byResource)) {
			words := strings.Fields(text)
			if len(words) == 0 || slices.ContainsFunc(all, func(c Command) bool { return c.Key == key && c.Path == words[0] }) {
				continue
			}
			c := Command{Key: key, Path: words[0]}
			switch info, err := os.Stat(c.Path); {
			case err != nil:
				c.Err = err
			case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
				c.Err = fmt.Errorf("%s is not an executable file", c.Path)
			}
			all = append(all, c)
		}
	}
	add("release.command", l.Config.Release.Command)
	add("health.command", l.Config.Health.Command)
	return all
}

func host() Host {
	there := func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	}
	return Host{Systemd: there("/run/systemd/system"), Unified: there("/sys/fs/cgroup/cgroup.controllers"), NUMANodes: numaNodes("/sys")}
}

func (l gatherer) readRuntime(f *Facts, kubelet kubeletConfig) {
	at := l.Runtime
	if at == "" {
		at = kubelet.runtimeSocket()
	}
	ctx, cancel := context.WithTimeout(l.ctx, lookLimit)
	defer cancel()
	path := strings.TrimPrefix(at, "unix://")
	r, err := askRuntime(ctx, path)
	r.Socket, r.Err = at, err
	if err == nil {
		// This takes long for many containers.
		ctx, cancel := context.WithTimeout(l.ctx, 3*lookLimit)
		defer cancel()
		r.Containers, r.Sandboxes, r.SizesErr = runtimeSizes(ctx, path)
	}
	f.Runtime = r
	if r.Name == "cri-o" {
		c, err := readCRIO(ctx, path)
		c.Err = err
		f.CRIO, f.Runtime.OCI = &c, cmp.Or(r.OCI, c.OCI)
		f.Runtime.CgroupDriver = cmp.Or(r.CgroupDriver, c.CgroupDriver)
	}
	if r.Name != "" && r.Name != containerd {
		return
	}
	file, named := l.ContainerdConfig, true
	if file == "" {
		if file, named = r.configFile(), true; file == "" {
			file, named = DefaultContainerdConfig, false
		}
	}
	f.Containerd, err = readContainerd(file)
	if named || !errors.Is(err, fs.ErrNotExist) { // without a file containerd's defaults are in force
		f.Containerd.Err = err
	}
}

func (l gatherer) readAPI(f *Facts) {
	if l.Config.Kubernetes.Mode == config.NoCluster {
		return
	}
	f.API = &API{NodeName: l.Config.NodeName}
	client, err := kube.Connect(l.Config.Kubernetes.Kubeconfig, version.Get().Version)
	if err != nil {
		f.API.Err = err
		return
	}
	ctx, cancel := context.WithTimeout(l.ctx, apiLimit)
	defer cancel()
	access, err := kube.Rights(ctx, client, l.Config.NodeName)
	f.API.Err = err
	if err != nil {
		return
	}
	l.readClaims(ctx, f, access)
	f.API.Node, f.API.Rights, f.API.Policy = access.Node, access.Rights, access.Policy
	f.API.Asking, f.API.Unbound = pods.Bound(access.Pods, l.Config.Plugins.IgnoredResources)
	f.API.Neighbours = pods.NeighboursOf(access.Pods, l.Config.PodResources.KubeletSocket)
}

// readClaims tries what devmgrd does as a DRA driver, if dra.resources names resources.
func (l gatherer) readClaims(ctx context.Context, f *Facts, node kube.Access) {
	if len(l.Config.DRA.Resources) == 0 {
		return
	}
	f.Claims = &Claims{CDIDir: l.Config.DRA.CDIDir}
	client, err := kube.ConnectResource(l.Config.Kubernetes.Kubeconfig, version.Get().Version)
	if err == nil {
		f.Claims.ClaimAccess, err = kube.ClaimRights(ctx, client, l.Config.NodeName, dra.Driver, node.Pods)
	}
	f.Claims.Err = err
}

// readKubelet reads the state of the kubelet's own device manager.
func (l gatherer) readKubelet(f *Facts, daemon int) {
	ctx, cancel := context.WithTimeout(l.ctx, lookLimit)
	defer cancel()
	ignored := pods.Ignores(l.Config.Plugins.IgnoredResources)
	k := &f.Kubelet
	k.Devices, k.Err = podresources.KubeletDevices(ctx, l.Config.PodResources.KubeletSocket, daemon)
	for r := range k.Devices {
		if ignored(r) {
			delete(k.Devices, r)
		}
	}
	dir := l.Config.Plugins.KubeletDir
	k.Plugins = listeners(dir)
	f.Checkpoint = lookAtCheckpoint(dir, ignored)
}

// maxFiles bounds the files of a plugin directory that are checked.
const maxFiles = 4096

// listeners returns the names of the plugins' sockets in a directory on which a process listens, ascending.
func listeners(dir string) (plugins []string) {
	d, err := shareddir.Open(dir)
	if err != nil {
		return nil // a missing directory has no sockets
	}
	defer d.Close()
	names, _, _ := d.Names(maxFiles)
	slices.Sort(names)
	for _, name := range names {
		info, err := d.Stat(name)
		if err == nil && info.Mode().Type() == fs.ModeSocket && name != "kubelet.sock" && socket.Listens(d.Join(name)) {
			plugins = append(plugins, name)
		}
	}
	return plugins
}

// lookAtCheckpoint reads the kubelet's checkpoint in its device plugin directory.
func lookAtCheckpoint(dir string, ignored func(device.ResourceName) bool) Checkpoint {
	c := Checkpoint{Path: filepath.Join(dir, checkpoint.Name)}
	file, err := checkpoint.Read(c.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return c
	}
	if err != nil {
		c.Err = err
		return c
	}
	c.Healthy = map[device.ResourceName]int{}
	for _, r := range file.Resources() {
		if !ignored(r) {
			c.Resources = append(c.Resources, r)
			c.Healthy[r] = len(file.Healthy[r])
		}
	}
	// A kubelet reads the file before it makes its socket, and writes it when a plugin lists its devices.
	if d, err := shareddir.Open(dir); err == nil {
		defer d.Close()
		written, err := d.Stat(checkpoint.Name)
		if listens, missing := d.Stat("kubelet.sock"); err == nil && missing == nil {
			c.Current = !written.ModTime().Before(listens.ModTime())
		}
	}
	return c
}

// tryWeb listens at metrics.listen and leaves no socket behind.
func tryWeb(at string) (io.Closer, error) {
	path, unix := strings.CutPrefix(at, config.UnixPrefix)
	if !unix {
		return net.Listen("tcp", at)
	}
	if err := socket.VacantPath(path); err != nil {
		return nil, err
	}
	return os.Open(filepath.Dir(path))
}
