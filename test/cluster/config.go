package cluster

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// Where things are inside: the places that kubeadm and the programs' own defaults have made usual.
const (
	// nodeAddress is the node's, on the loopback interface of its namespace: Kubernetes wants one that is not 127.x.
	// It is of a net that RFC 5737 sets aside for examples.
	nodeAddress = "192.0.2.1"

	// MachineAddress is the address of a node that is a machine of its own. It reaches the control plane at ControlPlaneAddress, on the
	// same link.
	MachineAddress      = "192.0.2.2"
	ControlPlaneAddress = nodeAddress

	apiAddress  = "127.0.0.1:6443"
	etcdAddress = "127.0.0.1:2379"
	etcdPeer    = "127.0.0.1:2380"

	pkiDir          = "/etc/kubernetes/pki"
	tokenFile       = "/etc/kubernetes/tokens.csv"
	adminKubeconfig = "/etc/kubernetes/admin.conf"
	nodeKubeconfig  = "/etc/kubernetes/kubelet.conf"
	kubeletFile     = "/var/lib/kubelet/config.yaml"
	cniFile         = "/etc/cni/net.d/10-devmgrd.conflist"
	nriSocket       = "/run/nri/nri.sock"
)

func (c *Cluster) etcdArgs() []string {
	return []string{
		c.tools.Path("etcd"), "--data-dir=/var/lib/etcd", "--log-level=warn", "--unsafe-no-fsync",
		"--quota-backend-bytes=8589934592", // pods as large as they may be, written for an hour (test/chaos), fill the usual 2 GiB
		"--listen-client-urls=http://" + etcdAddress, "--advertise-client-urls=http://" + etcdAddress,
		"--listen-peer-urls=http://" + etcdPeer, "--initial-advertise-peer-urls=http://" + etcdPeer,
		"--initial-cluster=default=http://" + etcdPeer,
	}
}

func (c *Cluster) apiServerArgs(keys pki) []string {
	args := []string{
		c.tools.Path("kube-apiserver"),
		"--etcd-servers=http://" + etcdAddress,
		"--secure-port=6443", "--advertise-address=" + nodeAddress,
		"--tls-cert-file=" + keys.serverFile, "--tls-private-key-file=" + keys.serverKey,
		"--token-auth-file=" + tokenFile, "--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction", "--disable-admission-plugins=ServiceAccount",
		"--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + keys.accountPublic, "--service-account-signing-key-file=" + keys.accountKey,
		"--kubelet-certificate-authority=" + keys.caFile, "--kubelet-preferred-address-types=InternalIP",
	}
	args = append(args, c.featureGates()...)
	apis := c.options.RuntimeConfig
	if v := PolicyVersion(); v != "v1" {
		args = append(args, "--feature-gates=MutatingAdmissionPolicy=true")
		apis = strings.TrimPrefix(apis+",admissionregistration.k8s.io/"+v+"=true", ",")
	}
	if apis != "" {
		args = append(args, "--runtime-config="+apis)
	}
	return args
}

// featureGates returns the argument for the feature gates of the control plane, if there are any.
func (c *Cluster) featureGates() []string {
	if c.options.FeatureGates == "" {
		return nil
	}
	return []string{"--feature-gates=" + c.options.FeatureGates}
}

func (c *Cluster) schedulerArgs() []string {
	return append([]string{
		c.tools.Path("kube-scheduler"), "--kubeconfig=" + adminKubeconfig, "--leader-elect=false", "--secure-port=0",
	}, c.featureGates()...)
}

func (c *Cluster) controllerManagerArgs(keys pki) []string {
	controllers := "*,-node-ipam-controller"
	if KubernetesBefore("1.37") { // later ones do not have it
		controllers += ",-cloud-node-lifecycle-controller"
	}
	return append([]string{
		c.tools.Path("kube-controller-manager"), "--kubeconfig=" + adminKubeconfig, "--leader-elect=false", "--secure-port=0",
		"--controllers=" + controllers,
		"--service-account-private-key-file=" + keys.accountKey,
	}, c.featureGates()...)
}

func (c *Cluster) kubeletArgs() []string {
	args := []string{
		"--v=2", "--config=" + kubeletFile, "--kubeconfig=" + nodeKubeconfig,
		"--hostname-override=" + c.options.NodeName, "--node-ip=" + cmp.Or(c.options.Machine, nodeAddress),
	}
	if c.options.Machine != "" {
		return append([]string{"kubelet"}, args...)
	}
	return append([]string{c.tools.Path("kubelet")}, args...)
}

// apiForNode is the address at which the node finds the API server.
func (c *Cluster) apiForNode() string {
	if c.options.Machine != "" {
		return ControlPlaneAddress + ":6443"
	}
	return apiAddress
}

// kubeletFiles returns the configuration of the kubelet and of the pods' network: files by path.
func (c *Cluster) kubeletFiles(keys pki) (map[string]string, error) {
	kubelet, err := c.kubeletConfig(keys)
	if err != nil {
		return nil, err
	}
	network, err := c.cniConfig()
	if err != nil {
		return nil, err
	}
	return map[string]string{kubeletFile: kubelet, cniFile: network}, nil
}

// NodeFiles returns the files with which a machine of its own becomes the node of this cluster, by path: the configuration of
// containerd and the kubelet, and the keys. The programs themselves are wherever PATH leads to, the CNI plugins in CNIDir.
func (c *Cluster) NodeFiles() (map[string]string, error) {
	keys := pkiIn(pkiDir)
	files, err := c.Containers.files()
	if err != nil {
		return nil, err
	}
	kubelet, err := c.kubeletFiles(keys)
	if err != nil {
		return nil, err
	}
	maps.Copy(files, kubelet)
	for _, path := range []string{nodeKubeconfig, keys.caFile, keys.serverFile, keys.serverKey} {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		files[path] = string(content)
	}
	return files, nil
}

// KubeletArgs are the words with which a machine of its own starts the kubelet.
func (c *Cluster) KubeletArgs() []string { return c.kubeletArgs() }

// kubeletConfig returns the kubelet's configuration: ours, and over it, key by key, the caller's.
func (c *Cluster) kubeletConfig(keys pki) (string, error) {
	config := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": true},
			"webhook":   map[string]any{"enabled": false},
		},
		"authorization":            map[string]any{"mode": "AlwaysAllow"},
		"tlsCertFile":              keys.serverFile,
		"tlsPrivateKeyFile":        keys.serverKey,
		"containerRuntimeEndpoint": "unix://" + c.Containers.Socket(),
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               c.run.cgroup(),
		"failCgroupV1":             false,
		"failSwapOn":               false,
		"resolvConf":               "/dev/null",
		"makeIPTablesUtilChains":   false,
		"enforceNodeAllocatable":   []string{},
		"volumePluginDir":          "/var/lib/kubelet/volumeplugins",
		"evictionHard": map[string]string{
			"imagefs.available": "0%", "nodefs.available": "0%", "memory.available": "100Mi",
		},
		// Tests wait for what the kubelet does in these intervals. A status without changes is written as seldom as by default.
		"nodeStatusUpdateFrequency": "1s",
		"nodeStatusReportFrequency": "5m",
		"syncFrequency":             "5s",
	}
	if c.options.Machine != "" {
		config["cgroupDriver"], config["cgroupRoot"] = "systemd", "/"
	}
	var extra map[string]any
	if err := yaml.Unmarshal([]byte(c.options.KubeletConfig), &extra); err != nil {
		return "", fmt.Errorf("read Options.KubeletConfig: %w", err)
	}
	for key, value := range extra {
		config[key] = value
	}
	content, err := yaml.Marshal(config)
	if err != nil {
		return "", fmt.Errorf("write the kubelet's configuration: %w", err)
	}
	return string(content), nil
}

// cniConfig returns the configuration of the pods' network: our plugin, and behind it the caller's.
func (c *Cluster) cniConfig() (string, error) {
	pods := []map[string]any{{"subnet": "10.244.0.0/24"}}
	chain := []map[string]any{{
		"type": "ptp", "ipMasq": false, "ipam": map[string]any{"type": "host-local", "ranges": []any{pods}},
	}}
	for _, p := range c.options.CNI {
		plugin := map[string]any{"type": filepath.Base(p.Path)}
		maps.Copy(plugin, p.Config)
		chain = append(chain, plugin)
	}
	content, err := json.MarshalIndent(map[string]any{"cniVersion": "1.0.0", "name": "pods", "plugins": chain}, "", "  ")
	if err != nil {
		return "", fmt.Errorf("write the pods' network: %w", err)
	}
	return string(content), nil
}

// CNIDir is where a machine of its own has the CNI plugins.
const CNIDir = "/opt/cni/bin"

func writeFile(path, content string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(content), 0o644)
}
