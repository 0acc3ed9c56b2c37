package cli

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

// A document is a page that shows what commands print.
type document struct {
	t    *testing.T
	name string
	text string
}

func openDocument(t *testing.T, name string) document {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return document{t, name, string(text)}
}

// shows wants a block of the page to be this, after its first line if there is one.
func (d document) shows(first, output string) {
	d.t.Helper()
	var block strings.Builder
	for line := range strings.Lines(strings.TrimRight(output, "\n") + "\n") {
		if line != "\n" {
			block.WriteString("    ")
		}
		block.WriteString(line)
	}
	if first != "" {
		first = "    " + first + "\n"
	}
	if !strings.Contains(d.text, first+block.String()) {
		d.t.Errorf("docs/%s does not show, after %q:\n%s", d.name, first, block.String())
	}
}

// The pages show what the configuration's commands and the health check print.
func TestDocumentedOutput(t *testing.T) {
	page := openDocument(t, "configuration.md")
	_, out, _ := execute("config", "--set", "log.level=debug", "--set", "nodeName=worker-1")
	at := strings.Index(out, "log:\n")
	page.shows("...", out[at:])
	_, _, errs := execute("config", "--set", "nri.maxWait=5s")
	page.shows("$ devmgrd config --set nri.maxWait=5s", errs)
}

// The page on moving shows what a move prints: one pod, one whose init container has handed its device on, and one that is gone.
func TestDocumentedMove(t *testing.T) {
	const gpu = "vendor.example/gpu"
	f, page := newFarm(t), openDocument(t, "migration.md")
	shown := strings.NewReplacer(f.state, "/var/lib/devmgrd", filepath.Dir(f.file), "/var/lib/kubelet/device-plugins")
	container := func(name string) corev1.Container {
		return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{gpu: resource.MustParse("1")}}}
	}
	for name, spec := range map[string]corev1.PodSpec{
		"train": {Containers: []corev1.Container{container("main")}},
		"chain": {InitContainers: []corev1.Container{container("first")}, Containers: []corev1.Container{container("main")}},
	} {
		spec.NodeName = "n1"
		f.api.Put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}, Spec: spec})
	}
	has := func(pod device.PodUID, container string, id device.ID) device.Assignment {
		return device.Assignment{Container: device.Container{Pod: pod, Name: container}, Shares: []device.Share{{Resource: gpu, IDs: []device.ID{id}}}}
	}
	offered := device.Inventory{Resource: gpu}
	for i := range 4 {
		offered.Devices = append(offered.Devices, device.Device{ID: device.ID(fmt.Sprintf("gpu-%d", i)), Healthy: true})
	}
	content, err := checkpoint.FromState([]device.PodRecord{
		{Assignments: []device.Assignment{has("uid-train", "main", "gpu-2")}},
		{Assignments: []device.Assignment{has("uid-chain", "first", "gpu-1"), has("uid-chain", "main", "gpu-1")}},
		{Assignments: []device.Assignment{has("981d52da-7c18-4bf3-893e-2726c86dd5f8", "main", "gpu-3")}},
	}, []device.Inventory{offered})
	f.must(err)
	data, err := content.Encode()
	f.must(err)
	f.must(os.WriteFile(f.file, data, 0o600))

	kubelet := f.listen(filepath.Join(filepath.Dir(f.file), "kubelet.sock"))
	status, out, errs := f.execute("import", f.file, "--dry-run")
	if status != 0 || errs != "" {
		t.Fatalf("status %d, %s", status, errs)
	}
	page.shows("$ devmgrd import kubelet-checkpoint /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint --dry-run", shown.Replace(out))
	kubelet.Close()
	_, out, _ = f.execute("import", f.file)
	at := strings.Index(out, "Written to")
	page.shows("(the same lists)", shown.Replace(out[at:]))

	state, err := store.Open(store.Config{Dir: f.state, Log: slog.New(slog.DiscardHandler)})
	f.must(err)
	f.must(state.SavePods(nil, []device.PodUID{"uid-chain", "981d52da-7c18-4bf3-893e-2726c86dd5f8"}))
	f.must(state.Close())
	_, out, _ = f.execute("export", f.file)
	page.shows("$ devmgrd export kubelet-checkpoint /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint", shown.Replace(out))
}
