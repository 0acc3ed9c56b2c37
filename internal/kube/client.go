package kube

import (
	"errors"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// KubeletConfig is the kubelet's own kubeconfig where kubeadm and most others put it. Its rights suffice.
const KubeletConfig = "/etc/kubernetes/kubelet.conf"

// The client's own limit is there to stop a runaway only: at rest it makes no request, and when many pods come at
// once it asks for one after the other.
const (
	qps   = 50
	burst = 100
)

// protobuf is asked for first: it is smaller and cheaper to decode. Errors of proxies and tests may be JSON.
const (
	protobuf = runtime.ContentTypeProtobuf
	accepted = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
)

// Load finds the API server and the credentials: in the kubeconfig file if one is given, else in the service account
// if this process runs in a pod, else in the kubelet's kubeconfig. Certificates and tokens that those name as files
// are read again when they change. The error says what to do.
func Load(kubeconfig string) (*rest.Config, error) { return load(kubeconfig, KubeletConfig) }

// Connect returns a client with Load's credentials that introduces itself to the API server as devmgrd of this version.
func Connect(kubeconfig, version string) (Client, error) {
	cfg, err := Load(kubeconfig)
	if err != nil {
		return nil, err
	}
	return NewClient(cfg, "devmgrd/"+version)
}

func load(kubeconfig, fallback string) (*rest.Config, error) {
	if kubeconfig == "" {
		cfg, err := rest.InClusterConfig()
		if err == nil {
			return cfg, nil
		}
		if !errors.Is(err, rest.ErrNotInCluster) {
			return nil, fmt.Errorf("reading the pod's service account: %w; mount it, or set kubernetes.kubeconfig", err)
		}
		kubeconfig = fallback
	}
	// Opened once for a plain error: the loader below reports a missing file as an empty configuration.
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

// A Client reads and writes objects of core/v1 on the API server.
type Client = rest.Interface

// NewClient makes a client for core/v1. The agent names this program to the API server, like devmgrd/v1.2.3.
func NewClient(cfg *rest.Config, agent string) (Client, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("setting up core/v1: %w", err)
	}
	own := rest.CopyConfig(cfg)
	own.APIPath = "/api"
	own.GroupVersion = &corev1.SchemeGroupVersion
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

// params puts list options into a request's query.
func params(req *rest.Request, o metav1.ListOptions) *rest.Request {
	return req.VersionedParams(&o, metav1.ParameterCodec)
}
