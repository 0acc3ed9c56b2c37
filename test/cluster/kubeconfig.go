package cluster

import (
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// writeKubeconfig writes a kubeconfig for one user that needs no other file.
func writeKubeconfig(path, server, caFile, token string) error {
	ca, err := os.ReadFile(caFile)
	if err != nil {
		return fmt.Errorf("write the kubeconfig %s: %w", path, err)
	}
	const name = "devmgrd-cluster"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: "https://" + server, CertificateAuthorityData: ca}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write the kubeconfig %s: %w", path, err)
	}
	// Renamed into its place, so that a waiting reader finds it complete.
	if err := clientcmd.WriteToFile(*config, path+".new"); err != nil {
		return fmt.Errorf("write the kubeconfig %s: %w", path, err)
	}
	return os.Rename(path+".new", path)
}
