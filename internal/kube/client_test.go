package kube

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/klog/v2"
)

func TestLoad(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.conf"), filepath.Join(dir, "bad.conf")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n" +
		"clusters: [{name: k, cluster: {server: 'https://10.0.0.1:6443'}}]\nusers: [{name: u, user: {token: secret}}]\n"
	for name, content := range map[string]string{good: text, bad: "kind: {"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		given, fallback string
		says            string // in the error; empty: there is none
	}{
		{good, "/nowhere", ""},
		{"", good, ""},
		{filepath.Join(dir, "none.conf"), good, "set kubernetes.kubeconfig to a file that devmgrd can read"},
		{"", filepath.Join(dir, "none.conf"), "open /nowhere: no such file"},
		{dir, good, "reading the kubeconfig"},
		{bad, good, bad},
	} {
		cfg, err := load(c.given, []string{"/nowhere", c.fallback})
		switch {
		case c.says == "" && (err != nil || cfg.Host != "https://10.0.0.1:6443" || cfg.BearerToken != "secret"):
			t.Errorf("%+v: got %v, %v", c, cfg, err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%+v: got %v", c, err)
		}
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	if _, err := os.Stat("/var/run/secrets/kubernetes.io/serviceaccount/token"); err != nil {
		if _, err := load("", []string{good}); err == nil || !strings.Contains(err.Error(), "service account") {
			t.Errorf("in a pod without a token: %v", err)
		}
	}
}

func TestLibrariesSpeakSoftly(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))
	klog.FromContext(quietly(context.Background(), log)).WithName("reflector").Info("an attempt failed", "try", 1)
	if got := text.String(); !strings.Contains(got, "level=DEBUG") || !strings.Contains(got, "try=1") {
		t.Errorf("got %q", got)
	}
	text.Reset()
	log = slog.New(slog.NewTextHandler(&text, nil))
	klog.FromContext(quietly(context.Background(), log)).Error(nil, "an attempt failed")
	if text.Len() != 0 {
		t.Errorf("above debug: %q", text.String())
	}
}
