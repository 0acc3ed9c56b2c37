package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/cri"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/nri"
	"github.com/devmgrd/devmgrd/internal/podresources"
	"github.com/devmgrd/devmgrd/internal/pods"
	"github.com/devmgrd/devmgrd/internal/preflight"
	"github.com/devmgrd/devmgrd/internal/shareddir"
	"github.com/devmgrd/devmgrd/internal/socket"
	"github.com/devmgrd/devmgrd/internal/store"
)

const (
	lookLimit = 5 * time.Second  // for each component that may not answer
	apiLimit  = 15 * time.Second // for all calls to the API server, which may be far away
)

// newCheckCommand returns "devmgrd check".
func newCheckCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check this node's setup for devmgrd, and print remedies",
		Long: "check examines the container runtime, its NRI and validator, devmgrd's rights at the API server, the sockets, the state file\n" +
			"and the kubelet's own device manager. Each line says ok, warn or FAIL; a remedy follows each warn and FAIL. The command\n" +
			"changes nothing, and may run before devmgrd or next to it.",
		Example: "  devmgrd check\n  devmgrd check --config /tmp/new.yaml -o json",
		Args:    usage(noArguments),
		RunE:    check,
	}
	addConfigFlags(cmd)
	cmd.Flags().StringP("output", "o", "", "json or yaml; else it is for people")
	cmd.Flags().String("runtime-endpoint", "", "the runtime's CRI `socket` (default the kubelet's)")
	cmd.Flags().String("kubelet-config", cri.DefaultKubeletConfig, "the kubelet's configuration `file`")
	cmd.Flags().String("containerd-config", "", "containerd's configuration `file` (default from containerd's command line)")
	return cmd
}

// errUnfit ends a check with failures, which have been printed.
var errUnfit = errors.New("this node is not ready for devmgrd: see the FAIL lines")

func check(cmd *cobra.Command, _ []string) error {
	c, _, err := loadConfig(cmd)
	if err != nil {
		return err
	}
	format, err := outputFormat(cmd, "json", "yaml")
	if err != nil {
		return err
	}
	flag := func(name string) string {
		value, err := cmd.Flags().GetString(name)
		if err != nil {
			panic(err) // there is no such flag
		}
		return value
	}
	log := warnings(cmd)
	kube.RouteLogs(log)
	l := gatherer{ctx: cmd.Context(), config: c, log: log, runtime: flag("runtime-endpoint"), kubelet: flag("kubelet-config"), containerd: flag("containerd-config")}
	f := l.facts()
	if f.ConfigFile = flag("config"); f.ConfigFile == "" {
		if _, err := os.Stat(config.DefaultFile); err == nil {
			f.ConfigFile = config.DefaultFile
		}
	}
	findings := preflight.Judge(f)
	if err := printFindings(cmd.OutOrStdout(), format, findings); err != nil {
		return err
	}
	for _, one := range findings {
		if one.Verdict == preflight.Fail {
			return errUnfit
		}
	}
	return nil
}

func printFindings(to io.Writer, format string, findings []preflight.Finding) error {
	if format == "" {
		showFindings(to, findings)
		return nil
	}
	text, err := json.MarshalIndent(findings, "", "  ")
	if err == nil && format == "yaml" {
		text, err = yaml.JSONToYAML(text)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(to, strings.TrimRight(string(text), "\n"))
	return err
}

// findingWidth is the width of a line of findings.
const findingWidth = 110

// showFindings prints each finding next to its verdict, and the remedy below it.
func showFindings(to io.Writer, findings []preflight.Finding) {
	width, count := 0, map[preflight.Verdict]int{}
	for _, f := range findings {
		width = max(width, len(f.Check))
		count[f.Verdict]++
	}
	for _, f := range findings {
		lines := wrap(plain(f.Text), findingWidth-8-width)
		if f.Remedy != "" {
			for i, line := range wrap(plain(f.Remedy), findingWidth-11-width) {
				lines = append(lines, [2]string{"-> ", "   "}[min(i, 1)]+line)
			}
		}
		fmt.Fprintf(to, "%-4s  %-*s  %s\n", f.Verdict, width, f.Check, lines[0])
		for _, line := range lines[1:] {
			fmt.Fprintf(to, "%*s%s\n", 8+width, "", line)
		}
	}
	fmt.Fprintf(to, "\n%d ok, %d warn, %d FAIL\n", count[preflight.OK], count[preflight.Warn], count[preflight.Fail])
}

// wrap breaks a text between words, into lines of this width if the words allow it. It returns at least one line.
func wrap(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// A gatherer collects the facts for preflight.
type gatherer struct {
	ctx                          context.Context
	config                       config.Config
	log                          *slog.Logger
	runtime, kubelet, containerd string // their paths, if the command line has them
}

func (l gatherer) facts() preflight.Facts {
	f := preflight.Facts{
		Root:   os.Geteuid() == 0,
		Evicts: l.config.Health.OnDeviceFailure == config.Evict || l.config.Health.OnMissingDevices == config.Evict,
		State:  l.state(),
		NRI:    l.nri(),
		Host:   host(),
	}
	daemon := l.daemon(&f)
	if f.Daemon == nil {
		f.Sockets = l.sockets()
	}
	kubelet, err := cri.ReadKubelet(l.kubelet)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // its settings may be on its command line
	}
	f.Kubelet.CgroupDriver, f.Kubelet.ConfigErr = kubelet.CgroupDriver, err
	l.readRuntime(&f, kubelet)
	l.readAPI(&f)
	l.readKubelet(&f, daemon)
	return f
}

func (l gatherer) state() preflight.State {
	s := preflight.State{Dir: l.config.StateDir}
	books, version, err := store.ReadFile(filepath.Join(s.Dir, store.FileName), l.log)
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
		s.Version = version
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
func (l gatherer) daemon(f *preflight.Facts) int {
	at := l.config.Admin.Socket
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
	err := callAt(l.ctx, at, lookLimit, func(ctx context.Context, c adminv1.AdminServiceClient) error {
		status, err := c.GetStatus(ctx, &adminv1.GetStatusRequest{})
		if err != nil {
			return err
		}
		d := &preflight.Daemon{Version: status.Version, Serves: map[device.ResourceName]bool{}}
		for _, p := range status.Components {
			if !p.Ready {
				d.Problems = append(d.Problems, p.Problem)
			}
		}
		for _, r := range status.Resources {
			d.Serves[device.ResourceName(r.Name)] = r.Plugin == device.Serving.String() || r.Plugin == device.StatusConnected
		}
		f.Daemon = d
		return nil
	})
	if err != nil {
		f.Daemon = &preflight.Daemon{Version: "of unknown version", Problems: []string{err.Error()}}
	}
	return pid
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

func (l gatherer) sockets() []preflight.Socket {
	c := l.config
	all := []preflight.Socket{
		{Key: "plugins.socketDir", At: filepath.Join(c.Plugins.SocketDir, "kubelet.sock")},
		{Key: "podResources.socket", At: c.PodResources.Socket},
		{Key: "admin.socket", At: c.Admin.Socket},
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
		all = append(all, preflight.Socket{Key: "metrics.listen", At: at, Err: err})
	}
	return all
}

func (l gatherer) nri() preflight.NRI {
	ctx, cancel := context.WithTimeout(l.ctx, lookLimit)
	defer cancel()
	at := l.config.NRI.Socket
	greeting, err := nri.Probe(ctx, at)
	missing := false
	if err != nil {
		conn, none := net.DialTimeout("unix", at, time.Second)
		if none == nil {
			conn.Close()
		}
		missing = errors.Is(none, fs.ErrNotExist) || errors.Is(none, syscall.ECONNREFUSED) // a socket without a listener
	}
	return preflight.NRI{
		Socket: at, Missing: missing, Err: err,
		Runtime: greeting.Runtime, Version: greeting.Version, RequestTimeout: greeting.RequestTimeout, CDI: greeting.CDI, Rules: greeting.Rules, Validates: greeting.Validates,
	}
}

func host() preflight.Host {
	there := func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	}
	return preflight.Host{Systemd: there("/run/systemd/system"), Unified: there("/sys/fs/cgroup/cgroup.controllers")}
}

func (l gatherer) readRuntime(f *preflight.Facts, kubelet cri.KubeletConfig) {
	at := l.runtime
	if at == "" {
		at = kubelet.RuntimeSocket()
	}
	ctx, cancel := context.WithTimeout(l.ctx, lookLimit)
	defer cancel()
	r, err := cri.Ask(ctx, strings.TrimPrefix(at, "unix://"))
	f.Runtime = preflight.Runtime{
		Socket: at, Name: r.Name, Version: r.Version, Started: r.Started, CgroupDriver: r.CgroupDriver, OCI: r.OCI, Systemd: r.Systemd, Err: err,
	}
	if err == nil {
		f.Runtime.Containers, f.Runtime.Sandboxes, f.Runtime.SizesErr = l.sizes(strings.TrimPrefix(at, "unix://"))
	}
	if r.Name != "" && r.Name != "containerd" {
		return
	}
	file, named := l.containerd, true
	if file == "" {
		if file, named = r.ConfigFile(), true; file == "" {
			file, named = cri.DefaultContainerdConfig, false
		}
	}
	c, err := cri.ReadContainerd(file)
	if !named && errors.Is(err, fs.ErrNotExist) {
		err = nil // containerd's defaults are in force
	}
	f.Containerd = preflight.Containerd{
		File: file, Changed: c.Changed, WithoutNRI: hasAny(c.Disabled, "io.containerd.nri.v1.nri"),
		WithoutCRI: hasAny(c.Disabled, "cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"),
		Disable:    c.Disable, DisableConnections: c.DisableConnections, Socket: c.Socket,
		RequestTimeout: c.RequestTimeout, Validator: c.Validator, Required: c.Required, Err: err,
	}
}

// sizes asks the runtime for the sizes of its containers and sandboxes, which takes long for many containers.
func (l gatherer) sizes(runtime string) (containers, sandboxes []preflight.Size, err error) {
	ctx, cancel := context.WithTimeout(l.ctx, 3*lookLimit)
	defer cancel()
	of, in, err := cri.Sizes(ctx, runtime)
	for _, one := range of {
		containers = append(containers, preflight.Size{Name: one.Namespace + "/" + one.Pod + ":" + one.Container, Bytes: one.Bytes})
	}
	for _, one := range in {
		sandboxes = append(sandboxes, preflight.Size{Name: one.Namespace + "/" + one.Pod, Bytes: one.Bytes})
	}
	return containers, sandboxes, err
}

func hasAny(all []string, of ...string) bool {
	return slices.ContainsFunc(all, func(one string) bool { return slices.Contains(of, one) })
}

func (l gatherer) readAPI(f *preflight.Facts) {
	if l.config.Kubernetes.Mode == config.NoCluster {
		return
	}
	f.API = &preflight.API{NodeName: l.config.NodeName}
	client, err := connect(l.config.Kubernetes)
	if err != nil {
		f.API.Err = err
		return
	}
	ctx, cancel := context.WithTimeout(l.ctx, apiLimit)
	defer cancel()
	access, err := kube.Rights(ctx, client, l.config.NodeName)
	if f.API.Err = err; err != nil {
		return
	}
	f.API.Node = access.Node
	for _, r := range access.Rights {
		f.API.Rights = append(f.API.Rights, preflight.Right{What: r.What, Err: r.Err})
	}
	f.API.Asking, f.API.Unbound = pods.Bound(access.Pods, l.config.Plugins.IgnoredResources)
}

// readKubelet reads the state of the kubelet's own device manager.
func (l gatherer) readKubelet(f *preflight.Facts, daemon int) {
	ctx, cancel := context.WithTimeout(l.ctx, lookLimit)
	defer cancel()
	ignored := pods.Ignores(l.config.Plugins.IgnoredResources)
	k := &f.Kubelet
	k.Devices, k.Err = podresources.KubeletDevices(ctx, l.config.PodResources.KubeletSocket, daemon)
	for r := range k.Devices {
		if ignored(r) {
			delete(k.Devices, r)
		}
	}
	dir := l.config.Plugins.KubeletDir
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
		if err == nil && info.Mode().Type() == fs.ModeSocket && name != "kubelet.sock" && listens(d.Join(name)) {
			plugins = append(plugins, name)
		}
	}
	return plugins
}

// lookAtCheckpoint reads the kubelet's checkpoint in its device plugin directory.
func lookAtCheckpoint(dir string, ignored func(device.ResourceName) bool) preflight.Checkpoint {
	c := preflight.Checkpoint{Path: filepath.Join(dir, checkpoint.Name)}
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
