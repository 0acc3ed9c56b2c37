package kube

import (
	"errors"
	"fmt"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// kubeletConfigs are the paths of the kubelet's kubeconfig: of kubeadm and most other installers, of k3s, and of RKE2. Its rights suffice.
var kubeletConfigs = []string{"/etc/kubernetes/kubelet.conf", "/var/lib/rancher/k3s/agent/kubelet.kubeconfig", "/var/lib/rancher/rke2/agent/kubelet.kubeconfig"}

// The client's rate limit, against runaway requests only: an idle devmgrd makes no request, and one with many new pods reads them
// one after the other.
const (
	qps   = 50
	burst = 100
)

// Protobuf is preferred: it is smaller than JSON and cheaper to decode. Proxies and tests may answer in JSON.
const (
	protobuf = runtime.ContentTypeProtobuf
	accepted = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
)

// Load returns the address of the API server and the credentials: from the kubeconfig file if one is given, otherwise from the service
// account in a pod, otherwise from the kubelet's kubeconfig. Certificate and token files are read again when they change. The error
// names the remedy.
func Load(kubeconfig string) (*rest.Config, error) { return load(kubeconfig, kubeletConfigs) }

// Connect returns a client with Load's credentials, and this version of devmgrd as user agent.
func Connect(kubeconfig, version string) (Client, error) {
	cfg, err := Load(kubeconfig)
	if err != nil {
		return nil, err
	}
	return NewClient(cfg, "devmgrd/"+version)
}

// ConnectResource is Connect for resource.k8s.io/v1.
func ConnectResource(kubeconfig, version string) (Client, error) {
	cfg, err := Load(kubeconfig)
	if err != nil {
		return nil, err
	}
	return NewResourceClient(cfg, "devmgrd/"+version)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func load(kubeconfig string, fallbacks []string) (*rest.Config, error) {
	if kubeconfig == "" {
		cfg, err := rest.InClusterConfig()
		if err == nil {
			return cfg, nil
		}
		if !errors.Is(err, rest.ErrNotInCluster) {
			return nil, fmt.Errorf("reading the pod's service account: %w; mount it, or set kubernetes.kubeconfig", err)
		}
		kubeconfig = fallbacks[0]
		if i := slices.IndexFunc(fallbacks, exists); i >= 0 {
			kubeconfig = fallbacks[i]
		}
	}
	// Opened for a clear error: the loader below reports a missing file as an empty configuration.
	file, err := os.Open(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w; set kubernetes.kubeconfig to a file that devmgrd can read", err)
	}
	file.Close()
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig %s: %w; kubectl --kubeconfig %[1]s get node shows whether it works", kubeconfig, err)
	}
	return cfg, nil
}

// A Client reads and writes objects of one API group and version on the API server.
type Client = rest.Interface

// NewClient returns a client for core/v1 with a user agent such as devmgrd/v1.2.3.
func NewClient(cfg *rest.Config, agent string) (Client, error) {
	return newClient(cfg, agent, "/api", corev1.SchemeGroupVersion, corev1.AddToScheme)
}

// NewResourceClient returns a client for resource.k8s.io/v1, with a rate limit of its own.
func NewResourceClient(cfg *rest.Config, agent string) (Client, error) {
	return newClient(cfg, agent, "/apis", resourceapi.SchemeGroupVersion, resourceapi.AddToScheme)
}

func newClient(cfg *rest.Config, agent, path string, of schema.GroupVersion, add func(*runtime.Scheme) error) (Client, error) {
	scheme := runtime.NewScheme()
	if err := add(scheme); err != nil {
		return nil, fmt.Errorf("setting up %s: %w", of, err)
	}
	own := rest.CopyConfig(cfg)
	own.APIPath = path
	own.GroupVersion = &of
	own.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	own.ContentType = protobuf
	own.AcceptContentTypes = accepted
	own.UserAgent = agent
	own.QPS, own.Burst = qps, burst
	client, err := rest.RESTClientFor(own)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", cfg.Host, err)
	}
	return client, nil
}

// params adds list options to the query of a request.
func params(req *rest.Request, o metav1.ListOptions) *rest.Request {
	return req.VersionedParams(&o, metav1.ParameterCodec)
}
