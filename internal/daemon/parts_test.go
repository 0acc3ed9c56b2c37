package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/config"
)

// The parts start in the order that docs/architecture.md has, which says of each whether it is asked for its state. It runs none of them.
func TestParts_AreThoseOfTheDocument(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, err := config.Load(config.Options{Set: []string{
		"nodeName=n1", "stateDir=" + filepath.Join(dir, "state"), "runDir=" + filepath.Join(dir, "run"), "kubernetes.kubeconfig=" + kubeconfig,
		"plugins.kubeletDir=" + filepath.Join(dir, "kubelet", "device-plugins"), "plugins.checkpointMirror=true", "dra.resources=a.example/*", "dra.cdiDir=" + filepath.Join(dir, "cdi"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{config: c, log: slog.New(slog.DiscardHandler), metrics: newMetrics()}
	defer func() {
		if err := d.close(); err != nil {
			t.Error(err)
		}
	}()
	for _, add := range []func() error{d.addState, d.addCore, d.addCluster, d.addSurfaces} {
		if err := add(); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	for _, p := range d.parts {
		name := p.name
		if p.check != nil {
			name = "**" + name + "**"
		}
		names = append(names, name)
	}
	_, list, found := strings.Cut(string(text), "asks those in bold):\n\n")
	list, _, _ = strings.Cut(list, "\n\n")
	if want, got := strings.Join(names, ", "), strings.Join(strings.Fields(list), " "); !found || got != want {
		t.Errorf("docs/architecture.md has the parts\n%s\nand they are\n%s", got, want)
	}
}
