//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/test/cluster"
)

// A new user follows the guide in docs/dra.md: each file is written, each command run, and prints what the document shows. With -update it
// is written there.
func TestDRA_Guide_CommandsPrintWhatItShows(t *testing.T) {
	const worker = "worker-1"           // as in the document
	if err := stopSpare(); err != nil { // its node has another name
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stopSpare(); err != nil {
			t.Error(err)
		}
	})
	hostname, err := os.Hostname() // of the namespace: by it devmgrd knows its Node
	if err != nil {
		t.Fatal(err)
	}
	rename(t, worker)
	t.Cleanup(func() { rename(t, hostname) })
	r := startWith(t, cluster.Options{NodeName: worker})
	kubectl := r.tool(cluster.Kubectl, "kubectl")
	r.must(r.LoadImage(r.ctx, cluster.Image{
		Name: "registry.example/infer:1", Entrypoint: []string{"/probe", "sleep"}, Files: map[string]string{"/probe": r.Tools.Path("probe")},
	}))
	t.Cleanup(func() {
		if err := os.Remove(config.DefaultFile); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(r.removeClasses)
	r.plugin(gpu, 4)
	r.run("train", gpu, 1)

	path := filepath.Dir(r.Command(r.ctx).Path) + ":" + filepath.Dir(kubectl) + ":" + os.Getenv("PATH")
	s := &shell{harness: r, dir: t.TempDir(), env: []string{"PATH=" + path, "KUBECONFIG=" + r.Kubeconfig(), "HOME=" + t.TempDir()}}
	s.do = map[string]func(){"systemctl restart devmgrd": func() {
		text, err := os.ReadFile(config.DefaultFile)
		r.must(err)
		r.restartedWith()
		if strings.Contains(string(text), gpu) {
			r.until("the slice shows the devices", func() bool { return len(r.sliced()) == 3 })
			return
		}
		r.until("the slices are gone", func() bool { return len(r.sliced()) == 0 })
		r.must(r.WaitShown(r.soon(), gpu, 4))
	}}
	guide := openDocument(t, "dra.md")
	for _, b := range guide.blocks("Moving one resource on one node") {
		if s.file(b) {
			continue
		}
		if played := s.play(b.text); *update {
			guide.replace(b, block{b.indent, played})
		}
	}
	if *update {
		t.Log("the document has been written")
	}
	r.running("train")
}

func rename(t *testing.T, host string) {
	t.Helper()
	if err := unix.Sethostname([]byte(host)); err != nil {
		t.Fatal(err)
	}
}
