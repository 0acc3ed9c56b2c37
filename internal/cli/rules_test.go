package cli

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/admin"
	"github.com/devmgrd/devmgrd/internal/allocator/allocatortest"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/registry/pluginrules"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// served is where a resource's plugin registered.
type served struct{ nowhere }

func (served) Registrations() map[device.ResourceName]device.Registration {
	return map[device.ResourceName]device.Registration{"vendor.com/gpu": {Endpoint: "gpu.sock", Pod: device.PluginPod{
		Pod: device.Pod{UID: "u1", Namespace: "gpu-operator", Name: "gpu-plugin"}, ServiceAccount: "gpu",
	}}}
}

// silent takes reports of violations, of which there are none.
type silent struct{}

func (silent) NotAllowed(device.Pod, string) {}

// What suggest writes is taken by check, which names what other rules would refuse.
func TestRules(t *testing.T) {
	dir := t.TempDir()
	ledger := allocatortest.Start(t, filepath.Join(dir, "state"))
	guard := pluginrules.New(pluginrules.Config{Notifier: silent{}, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	if err := os.Mkdir(target, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	guard.Granted("vendor.com/gpu", []device.ID{"d000"}, device.Grant{
		Env: map[string]string{"GPU": "secret"}, Mounts: []device.Mount{{HostPath: link}}, Nodes: []device.Node{{HostPath: "/dev/null"}},
	})
	at := filepath.Join(dir, "admin.sock")
	server := admin.New(admin.Config{
		Socket: at, Node: "worker-1", View: ledger, Allocator: ledger, Plugins: served{}, Rules: guard, StateFile: nowhere{}, HistoryFile: nowhere{}, History: nowhere{}, Actions: nowhere{},
		Log: slog.New(slog.DiscardHandler), Components: func() []device.Component { return nil },
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	ledger.Plugins.Stock("vendor.com/gpu", 1)
	command := func(args ...string) (status int, stdout, stderr string) {
		var out, errs strings.Builder
		status = Run(append(args, "--socket", at), &out, &errs)
		return status, out.String(), errs.String()
	}
	var text string
	plugintest.Eventually(t, "rules are suggested", func() bool {
		status, out, _ := command("rules", "suggest")
		text = out
		return status == 0 && strings.Contains(out, "vendor.com/gpu")
	})
	for _, want := range []string{"node worker-1", "name: vendor.com-gpu", "namespace: gpu-operator", "serviceAccount: gpu", "- GPU\n", "- /dev/null\n", "/link\n", "/target\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in what is suggested:\n%s", want, text)
		}
	}
	if strings.Contains(text, "secret") {
		t.Error("a value is suggested")
	}
	file := filepath.Join(dir, "rules.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(text)
	if status, out, errs := command("rules", "check", file); status != 0 || out != file+" has 1 rule and allows all registrations and grants of 1 resource.\n" || errs != "" {
		t.Errorf("%d\n%s\n%s", status, out, errs)
	}
	write(strings.NewReplacer("serviceAccount: gpu", "serviceAccount: other", "- GPU\n", "- OTHER\n", "/target\n", "/elsewhere\n").Replace(text))
	status, out, errs := command("rules", "check", "--set", "plugins.rulesFile="+file)
	for _, want := range []string{
		"does not let the plugin of pod gpu-operator/gpu-plugin (service account gpu) serve vendor.com/gpu", "variable GPU", "mount of " + link + ", which leads to " + target,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in:\n%s", want, out)
		}
	}
	if status != 1 || errs != "devmgrd: "+file+" would refuse 3 registrations or grants of this node\n" {
		t.Errorf("%d\n%s", status, errs)
	}
	write("rules:\n- name: A\n- name: b\n")
	if status, _, errs := command("rules", "check", file); status != 2 || strings.Count(errs, "devmgrd: "+file+": rules[") != 3 {
		t.Errorf("%d\n%s", status, errs)
	}
	if status, _, errs := command("rules", "check", file+".none"); status != 2 || !strings.Contains(errs, `there is no file `+file+`.none; "devmgrd rules suggest" writes one`) {
		t.Errorf("%d\n%s", status, errs)
	}
	var wrong strings.Builder
	if status := Run([]string{"rules", "sugest"}, io.Discard, &wrong); status != 2 || !strings.Contains(wrong.String(), "did you mean suggest?") {
		t.Errorf("%d\n%s", status, &wrong)
	}
}

// There was no room for the names that a plugin has granted: the suggested rule allows no grant, and not any.
func TestObservations_NoRoomForAResource_GrantsAreFull(t *testing.T) {
	all := observationsOf([]*adminv1.Plugin{{ResourceName: "vendor.com/gpu"}, {ResourceName: "vendor.com/nic"}},
		[]*adminv1.Grants{{ResourceName: "vendor.com/nic"}, {Full: true}})
	if len(all) != 2 || all[0].Granted == nil || !all[0].Granted.Full || all[1].Granted.Full {
		t.Errorf("observed is %+v", all)
	}
}
