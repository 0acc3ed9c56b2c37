package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// NodeName is the name of the node unless [Options] say otherwise.
const NodeName = "node"

// Options are a cluster's peculiarities. The zero value is a good cluster.
type Options struct {
	// Dir is where the logs go. By default they are in the run's directory, which is removed with the run.
	// In /tmp it can be seen from outside if an argument or a variable of the calling program leads there.
	Dir string

	NodeName string

	// FeatureGates are for the programs of the control plane, such as "DRADeviceTaints=false".
	FeatureGates string
	// RuntimeConfig switches APIs of the API server on or off, such as "scheduling.k8s.io/v1beta1=true".
	RuntimeConfig string

	// KubeletConfig is YAML that is laid over the kubelet's configuration, key by key.
	KubeletConfig string
	// ContainerdConfig is TOML that is merged into containerd's configuration.
	ContainerdConfig string
	// CNI are plugins that are called after the one that connects a pod, in this order.
	CNI []CNIPlugin

	// Units says that process 1 here is systemd, and has the runtime and the kubelet started by it, as units of
	// their names. They end with the machine, and not with Stop.
	Units bool

	// Alone has only the container runtime run: no control plane and no kubelet. It takes the kit [Containers], and pods are made by
	// the runtime's own API, CRI.
	Alone bool

	// Machine is the address of the node when it is a machine of its own, [MachineAddress]: the cluster then has a control plane
	// only, and is ready when the API server is. Who starts the machine copies [Cluster.NodeFiles] to it.
	Machine string

	// How long the runtime waits for NRI plugins; 0 leaves its default, and for requests what devmgrd ships.
	NRIRegistrationTimeout, NRIRequestTimeout time.Duration

	// Processors is how many processors each program of the cluster computes on at a time; 0: all. Where several clusters share a machine,
	// one costs the least.
	Processors int

	// Log receives a line for each step. By default there are none.
	Log io.Writer
}

// A CNIPlugin is one of those that set up a pod's network.
type CNIPlugin struct {
	Path   string         // the program; its name is the plugin's type
	Config map[string]any // what it is configured with besides
}

// A Cluster is one node and its control plane. Its processes may be stopped, killed and started again by the caller that
// wants to see what happens then. Runtime and Kubelet are nil if the node is a machine of its own, and all but Runtime if the runtime is
// alone.
type Cluster struct {
	Etcd, APIServer, Scheduler, ControllerManager, Runtime, Kubelet *Process

	// Containers is what Runtime keeps.
	Containers ContainerRuntime

	run     Run
	tools   Tools
	options Options

	rest   *rest.Config
	client kubernetes.Interface

	stopOnce sync.Once
	stopErr  error
}

// Start brings a cluster up and returns when its node is Ready and free of taints. It must be called inside the
// namespaces that [Main] makes, and one cluster at a time can be there. ctx bounds the start only; without a
// deadline it gets one of five minutes.
func Start(ctx context.Context, tools Tools, o Options) (*Cluster, error) {
	run, err := CurrentRun()
	if err != nil {
		return nil, fmt.Errorf("start a cluster: %w", err)
	}
	if o.Dir == "" {
		o.Dir = run.logDir()
	}
	if o.NodeName == "" {
		o.NodeName = NodeName
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 15*time.Minute) // a slow machine has taken more than 5
		defer cancel()
	}

	c := &Cluster{run: run, tools: tools, options: o, Containers: runtimeOf(o, tools)}
	began := time.Now()
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start a cluster: %w", err), c.Stop())
	}
	what := "node " + o.NodeName
	switch {
	case o.Machine != "":
		what = "the control plane"
	case o.Alone:
		what = c.Runtime.Name
	}
	fmt.Fprintf(o.Log, "%s is ready after %s\n", what, time.Since(began).Round(10*time.Millisecond))
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	if c.options.Alone {
		if err := c.configureRuntime(nil); err != nil {
			return err
		}
		return c.startRuntime(ctx)
	}
	if err := c.configure(); err != nil {
		return err
	}
	if c.options.Machine != "" {
		return c.startControlPlane(ctx) // and the machine joins it
	}
	// The two halves of a node's life: the control plane, and a runtime that has its images.
	halves, halfCtx := errgroup.WithContext(ctx)
	halves.Go(func() error { return c.startControlPlane(halfCtx) })
	halves.Go(func() error { return c.startRuntime(halfCtx) })
	if err := halves.Wait(); err != nil {
		return err
	}
	if err := c.Kubelet.Start(ctx); err != nil {
		return err
	}
	if err := c.WaitNodeReady(ctx); err != nil {
		return err
	}
	return c.ShareKubeconfig()
}

// ShareKubeconfig writes [Cluster.HostKubeconfig], by which others see that the cluster is ready. Start does it, but for a node that
// is a machine of its own.
func (c *Cluster) ShareKubeconfig() error {
	return writeKubeconfig(c.run.Kubeconfig(), c.run.API, filepath.Join(pkiDir, "ca.crt"), c.rest.BearerToken)
}

// configure writes every file that the processes read, and describes the processes.
func (c *Cluster) configure() error {
	keys, err := newPKI(pkiDir)
	if err != nil {
		return err
	}
	admin, node := rand.Text(), rand.Text()
	tokens := fmt.Sprintf("%s,admin,admin,system:masters\n%s,system:node:%s,node,system:nodes\n", admin, node, c.options.NodeName)
	if err := errors.Join(
		writeFile(tokenFile, tokens),
		writeKubeconfig(adminKubeconfig, apiAddress, keys.caFile, admin),
		writeKubeconfig(nodeKubeconfig, c.apiForNode(), keys.caFile, node),
	); err != nil {
		return err
	}
	c.rest, err = clientcmd.BuildConfigFromFlags("", adminKubeconfig)
	if err != nil {
		return err
	}
	c.rest.QPS, c.rest.Burst = 100, 200 // tests poll
	c.client, err = kubernetes.NewForConfig(c.rest)
	if err != nil {
		return err
	}

	c.Etcd = c.process("etcd", c.etcdArgs())
	c.APIServer = c.process("kube-apiserver", c.apiServerArgs(keys))
	c.Scheduler = c.process("kube-scheduler", c.schedulerArgs())
	c.ControllerManager = c.process("kube-controller-manager", c.controllerManagerArgs(keys))
	if c.options.Machine != "" {
		return nil
	}
	return c.configureNode(keys)
}

// configureNode is configure for the node's processes.
func (c *Cluster) configureNode(keys pki) error {
	files, err := c.kubeletFiles(keys)
	if err != nil {
		return err
	}
	if err := c.configureRuntime(files); err != nil {
		return err
	}
	c.Kubelet = c.unit("kubelet", c.kubeletArgs())
	return nil
}

// configureRuntime writes the runtime's files, and others with them, and describes its process.
func (c *Cluster) configureRuntime(others map[string]string) error {
	files, err := c.Containers.files()
	if err != nil {
		return err
	}
	maps.Copy(files, others)
	for path, content := range files {
		if err := writeFile(path, content); err != nil {
			return err
		}
	}
	c.Runtime = c.unit(c.Containers.process())
	return nil
}

// unit describes a process of the node, which may be a unit of systemd.
func (c *Cluster) unit(name string, argv []string) *Process {
	if c.options.Units {
		argv = append([]string{
			"systemd-run", "--quiet", "--unit=" + name, "--service-type=notify", "--wait", "--collect", "--pipe",
			"--property=Delegate=yes", "--property=KillMode=process", "--setenv=PATH=" + c.tools.SearchPath(os.Getenv("PATH")), "--",
		}, argv...)
	}
	return c.process(name, argv)
}

// process describes one of the cluster's programs. They may use more memory: there is enough of it, and less processor time than the lanes want.
func (c *Cluster) process(name string, argv []string) *Process {
	env := append(os.Environ(), "PATH="+c.tools.SearchPath(os.Getenv("PATH")), "GOGC=400")
	if c.options.Processors > 0 {
		env = append(env, fmt.Sprint("GOMAXPROCS=", c.options.Processors)) // the runtime's shims and runc inherit it
	}
	return NewProcess(name, filepath.Join(c.options.Dir, name+".log"), argv, env)
}

func (c *Cluster) startControlPlane(ctx context.Context) error {
	if err := c.Etcd.Start(ctx); err != nil {
		return err
	}
	if err := c.APIServer.Start(ctx); err != nil {
		return err
	}
	if err := c.WaitAPIServer(ctx); err != nil {
		return err
	}
	if err := c.Scheduler.Start(ctx); err != nil {
		return err
	}
	return c.ControllerManager.Start(ctx)
}

func (c *Cluster) startRuntime(ctx context.Context) error {
	if err := c.Runtime.Start(ctx); err != nil {
		return err
	}
	if err := c.WaitRuntime(ctx); err != nil {
		return err
	}
	return c.loadImages(ctx)
}

func (c *Cluster) loadImages(ctx context.Context) error {
	for _, image := range BuiltinImages(c.tools) {
		if err := c.LoadImage(ctx, image); err != nil {
			return err
		}
	}
	return nil
}

// Stop ends the cluster's processes and its containers, and removes their state, so that another cluster can be
// started. It may be called again and then does nothing.
func (c *Cluster) Stop() error {
	c.stopOnce.Do(func() { c.stopErr = c.stop() })
	return c.stopErr
}

func (c *Cluster) stop() error {
	// Those that start others go first.
	starters := stopAll(c.Kubelet, c.Scheduler, c.ControllerManager)
	if c.options.Machine != "" && c.APIServer != nil {
		starters = errors.Join(starters, c.APIServer.Kill()) // it would wait for connections of a machine that has gone
	}
	if err := errors.Join(starters, stopAll(c.APIServer, c.Runtime), c.endContainers(context.Background()), stopAll(c.Etcd), c.clean()); err != nil {
		return fmt.Errorf("stop the cluster: %w", err)
	}
	return nil
}

// Renew replaces the node by a new one of the same name with these options, and keeps the control plane, which takes most of the time of
// a start and has to run. The old node's pods have to be gone from the API server. Options.NodeName and Dir stay as they are.
func (c *Cluster) Renew(ctx context.Context, o Options) error {
	if c.options.Machine != "" || c.options.Units || o.Machine != "" || o.Units {
		return errors.New("only a node of plain processes can be renewed")
	}
	if o.FeatureGates != c.options.FeatureGates || o.RuntimeConfig != c.options.RuntimeConfig {
		return errors.New("the control plane has other feature gates or APIs")
	}
	began := time.Now()
	if err := errors.Join(stopAll(c.Kubelet), stopAll(c.Runtime), c.endContainers(ctx), c.cleanNode(), c.RealBoot()); err != nil {
		return fmt.Errorf("end the node: %w", err)
	}
	background := metav1.DeletePropagationBackground
	err := c.client.CoreV1().Nodes().Delete(ctx, c.options.NodeName, metav1.DeleteOptions{PropagationPolicy: &background})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	o.NodeName, o.Dir = c.options.NodeName, c.options.Dir
	if o.Log == nil {
		o.Log = io.Discard
	}
	c.options, c.Containers = o, runtimeOf(o, c.tools)
	if err := c.configureNode(pkiIn(pkiDir)); err != nil {
		return err
	}
	if err := c.PowerOn(ctx, func() error { return c.loadImages(ctx) }); err != nil {
		return err
	}
	fmt.Fprintf(o.Log, "node %s is renewed after %s\n", o.NodeName, time.Since(began).Round(10*time.Millisecond))
	return nil
}

// stopAll stops several processes at the same time; nil stands for one that has not been made yet.
func stopAll(group ...*Process) error {
	errs := make([]error, len(group))
	var wg sync.WaitGroup
	for i, p := range group {
		if p == nil {
			continue
		}
		wg.Go(func() {
			_ = p.Signal(syscall.SIGCONT) // a frozen process cannot stop
			errs[i] = p.Stop(2 * time.Minute)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// RESTConfig is the administrator's way to the API server.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.rest) }

// Client is the administrator's client.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// NodeName is the name of the only node.
func (c *Cluster) NodeName() string { return c.options.NodeName }

// Kubeconfig is the administrator's kubeconfig, for use inside.
func (c *Cluster) Kubeconfig() string { return adminKubeconfig }

// NodeKubeconfig is the kubelet's kubeconfig, for use inside: user system:node:NAME, group system:nodes.
func (c *Cluster) NodeKubeconfig() string { return nodeKubeconfig }

// HostKubeconfig is the administrator's kubeconfig for use outside, through an address on the machine's loopback.
func (c *Cluster) HostKubeconfig() string { return c.run.Kubeconfig() }

// LogDir is where the processes' logs are.
func (c *Cluster) LogDir() string { return c.options.Dir }

// Cgroup returns the path of the run's cgroup in each hierarchy. What is in it goes with the run.
func (c *Cluster) Cgroup() string { return c.run.cgroup() }

// LoadImage brings an image to where the kubelet finds it.
func (c *Cluster) LoadImage(ctx context.Context, image Image) error {
	if err := c.Containers.LoadImage(ctx, image); err != nil {
		return fmt.Errorf("%w\n%s", err, c.Runtime.tail())
	}
	return nil
}

// NRISocket is the default address at which the runtime meets NRI plugins.
func (c *Cluster) NRISocket() string { return nriSocket }
