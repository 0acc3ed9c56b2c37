//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// says runs a command that has to succeed, and wants these words in what it prints, in this order. A command that changes nothing is
// repeated until it is so: a busy node comes to what has to be said in steps.
func (r *harness) says(command string, words ...string) string {
	r.t.Helper()
	var out, wrong string
	right := func() bool {
		var stderr string
		var status int
		out, stderr, status = r.devmgrd(strings.Fields(command)...)
		wrong = ""
		if missing := node.Missing(out, words); missing != "" {
			wrong = fmt.Sprintf("there is no %q after what came before it", missing)
		}
		if status != 0 || stderr != "" {
			wrong = fmt.Sprintf("status %d, %s", status, stderr)
		}
		return wrong == ""
	}
	said := false
	if node.ReadOnly(command) {
		said = r.comes(right)
	} else {
		said = right()
	}
	if !said {
		r.t.Fatalf("devmgrd %s: %s\n%s", command, wrong, out)
	}
	return out
}

// completes asks for what a shell would offer after these words. devmgrd has a second for the answer, which a busy machine may need for
// something else.
func (r *harness) completes(words string, want ...string) {
	r.t.Helper()
	slices.Sort(want)
	var got []string
	if !r.comes(func() bool {
		out, _, status := r.devmgrd(append(append([]string{"__complete"}, strings.Fields(words)...), "")...)
		offered, _, _ := strings.Cut(out, ":") // after it comes what the shell is to do
		got = strings.Split(strings.TrimSpace(offered), "\n")
		slices.Sort(got)
		return status == 0 && (slices.Equal(got, want) || len(want) == 0 && offered == "")
	}) {
		r.t.Errorf("after %q a shell offers %q, want %q", words, got, want)
	}
}

// fails runs a command that has to fail with these words.
func (r *harness) fails(command string, status int, words string) {
	r.t.Helper()
	if out, stderr, got := r.devmgrd(strings.Fields(command)...); got != status || !strings.Contains(stderr, words) || out != "" {
		r.t.Errorf("devmgrd %s: status %d, %q, %q, want status %d and %q", command, got, out, stderr, status, words)
	}
}

// One device of four is taken out of service on a node at work: see it, take it out, learn why a pod waits, put it back.
func TestCommands_DeviceOutOfService_IsExplained(t *testing.T) {
	r := start(t)
	p := r.plugin(gpu, 4)
	r.run("holder", gpu, 1)
	r.run("other", gpu, 1)
	r.says("status", "running for", "registration", "ok", "nri", "ok", gpu, "serving", "No pod waits.")
	r.says("plugins", gpu, "serving")
	r.says("assignments default/holder", "default/holder", "main", gpu)

	var all struct {
		Devices []struct {
			ID, State string
			Holder    struct{ Name string }
		}
	}
	r.must(json.Unmarshal([]byte(r.says("devices "+gpu+" -o json")), &all))
	free, held := "", ""
	for _, d := range all.Devices {
		switch {
		case d.State == "free":
			free = d.ID
		case d.Holder.Name == "holder":
			held = d.ID
		}
	}
	if len(all.Devices) != 4 || free == "" || held == "" {
		t.Fatalf("devices: %+v", all)
	}

	r.says("cordon "+gpu+"/"+free+" --reason fan", free, "cordoned", "fan")
	r.must(r.WaitShown(r.soon(), gpu, 3))
	r.says("cordon "+gpu+"/"+held, held, "assigned", "default/holder:main", "cordoned for")
	r.completes("devices", gpu)
	r.completes("explain", "default/holder", "default/other")
	r.completes("uncordon", gpu+"/"+free+"\tcordoned", gpu+"/"+held+"\tassigned")
	r.completes("uncordon "+gpu+"/"+held, gpu+"/"+free+"\tcordoned")
	r.completes("history --pod", "default/holder", "default/other")
	r.completes("status -o", "json", "yaml")
	r.completes("status --socket /run/none.sock")

	// A waiting pod has its reason: its plugin restarts, and so does devmgrd meanwhile.
	p.Stop()
	r.must(r.Create(r.ctx, node.Pod("third", gpu, 1, "report", "--then-sleep")))
	r.until("it waits", func() bool {
		out, _, status := r.devmgrd("explain", "default/third")
		return status == 0 && strings.Contains(out, "PluginStale")
	})
	r.says("explain default/third", "State:", "waiting", "Reason:", "PluginStale", "Since:", "Ends:", "the device plugin of "+gpu+" returns")
	r.says("status", gpu, "stale", "WAITING POD", "default/third", "PluginStale")
	r.must(r.Devmgrd.Kill())
	r.must(r.StartDevmgrd(r.ctx))
	p = plugintest.New(t, node.SocketDir, gpu, plugintest.Devices(4)...)
	p.Serve()
	p.MustRegister()
	r.running("third")
	r.says("explain default/third", "ready", "main", gpu)
	r.says("devices", free, "cordoned", "fan")

	// The scheduler sees three, and sends no fourth pod here: it is Pending, and not failed.
	r.must(r.WaitShown(r.soon(), gpu, 3))
	r.must(r.Create(r.ctx, node.Pod("fourth", gpu, 1, "report", "--then-sleep")))
	r.unscheduled("fourth")
	r.says("uncordon "+gpu+"/"+free, free, "free")
	_, err := r.WaitPhase(r.soon(), "fourth", corev1.PodRunning)
	r.must(err)
	r.says("assignments default/fourth", free)

	// A pod still has the other cordoned device, and is evicted.
	out, stderr, status := r.devmgrd("drain", gpu+"/"+held, "--reason", "dust")
	if status != 0 || !strings.Contains(stderr, "waiting for default/holder:main, which has "+gpu+"/"+held) || !strings.Contains(out, "dust") {
		t.Errorf("devmgrd drain: status %d, %q, %q", status, out, stderr)
	}
	r.says("devices", held, "cordoned", "-", "dust")
	r.says("history --device "+gpu+"/"+held, "FROM", "default/holder", "main", held)
	r.says("history --pod default/third --since 1h", "FROM", "default/third")
	r.fails("history --pod third", 2, "NAMESPACE/NAME")
	r.says("history --actions --device "+gpu+"/"+held, "drain", gpu+"/"+held, "root", "devmgrd (", "done", "dust")
	r.fails("history --actions --pod default/third", 2, "--pod and --actions exclude each other")
	r.says("history --actions --since 1h", "uncordon", gpu+"/"+free)
	r.must(r.WaitShown(r.soon(), gpu, 3))
	r.says("uncordon " + gpu + "/" + held)
	r.must(r.WaitShown(r.soon(), gpu, 4))
}

// What is wrong is said, with the remedy, and nothing is changed.
func TestCommands_Mistake_NamesRemedy(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 1)
	r.fails("cordon "+gpu+"/none", 1, "there is no device none of "+gpu+", and nothing has been changed; see devmgrd devices "+gpu)
	r.fails("cordon gpu", 2, "write it as RESOURCE/ID")
	r.fails("explain default/none", 1, "pod default/none is not known on this node")
	r.fails("explain none", 2, "write it as NAMESPACE/NAME")
	r.fails("devices vendor.example/none", 1, "known resources: "+gpu)
	r.fails("devices -o xml", 2, "use -o json or -o yaml")
	r.must(r.Devmgrd.Kill())
	r.fails("status", 1, "it is not running (systemctl status devmgrd)")
	r.fails("status --socket /run/nothing.sock", 1, "/run/nothing.sock")
	r.must(r.StartDevmgrd(r.ctx))
}

// The state file is copied while they are in use, and the copy is verified and read.
func TestCommands_StateFileInUse_IsCopied(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 1)
	r.run("holder", gpu, 1)
	copied := filepath.Join(t.TempDir(), "copy.db")
	r.fails("store verify", 1, "in use by another program")
	r.says("store backup "+copied, copied, "verified")
	r.fails("store backup "+copied, 1, "already exists")
	r.says("store backup --history "+copied+".history", copied+".history", "verified")
	r.says("store verify --state "+copied+" --history "+copied+".history", copied+".history is sound: schema version 1")
	r.says("store verify --state "+copied, "is sound", "(1 with devices)", "1 resources")
	r.says("store dump --state "+copied, "holder", gpu, "dev-000000")
	text, err := os.ReadFile(copied)
	r.must(err)
	text[len(text)/2] ^= 1
	r.must(os.WriteFile(copied, text, 0o600))
	if _, stderr, status := r.devmgrd("store", "verify", "--state", copied); status == 0 {
		// A bit where nothing is kept is no damage: then the whole page has to go.
		r.must(os.WriteFile(copied, text[:len(text)/2], 0o600))
		r.fails("store verify --state "+copied, 1, "damaged")
	} else if !strings.Contains(stderr, "damaged") {
		t.Errorf("status %d, %q", status, stderr)
	}
	r.must(r.Devmgrd.Stop(stopLimit))
	r.says("store verify", "is sound")
	r.fails("store backup "+copied+"2", 1, "it is not running")
	r.must(r.StartDevmgrd(r.ctx))
}
