package daemon

import (
	"context"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/test/plugintest"
)

// Every path answers to names of this node only, and forbids a browser to take the answer for anything else than it is.
func TestWeb_ForeignHost_Refused(t *testing.T) {
	w := newWeb("127.0.0.1:0", hosts{"worker-7", "metrics.example.com"}, prometheus.NewRegistry(), nil, func(on *http.ServeMux) {
		on.HandleFunc("GET /{$}", func(http.ResponseWriter, *http.Request) {})
	}, slog.New(slog.DiscardHandler))
	listener, err := w.listen()
	if err != nil {
		t.Fatal(err)
	}
	w.listen = func() (net.Listener, error) { return listener, nil }
	runWeb(t, w)
	for host, want := range map[string]int{
		"": 200, "127.0.0.1:9464": 200, "[::1]:9464": 200, "[::1]": 200, "10.1.2.3": 200, "LocalHost": 200, "localhost:80": 200,
		"worker-7": 200, "Worker-7.": 200, "worker-7:9464": 200, "Metrics.example.com": 200,
		"evil.example": 421, "evil.example:9464": 421, "127.0.0.1.evil.example": 421, "worker-7.evil.example": 421, "xworker-7": 421,
		"metrics.example.com.evil.example": 421,
	} {
		for _, path := range []string{"/", "/metrics", "/healthz", "/readyz", "/nowhere"} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String()+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Host = host
			answer, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(answer.Body)
			answer.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			expect := want
			if path == "/nowhere" && want == 200 {
				expect = 404
			}
			if answer.StatusCode != expect {
				t.Errorf("%s of %q: %s, want %d", path, host, answer.Status, expect)
			}
			if expect == 421 && (!strings.Contains(string(body), "worker-7") || !strings.Contains(string(body), "metrics.hostNames")) {
				t.Errorf("%s of %q does not say what to do: %s", path, host, body)
			}
			for name, value := range map[string]string{"X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin"} {
				if got := answer.Header.Get(name); got != value {
					t.Errorf("%s of %q: %s is %q, want %q", path, host, name, got, value)
				}
			}
		}
	}
}

// A unix socket is the group's of its directory, if that hands its group on, and takes any name: no browser dials it.
func TestWeb_UnixSocket(t *testing.T) {
	dir := t.TempDir()
	if os.Getuid() == 0 {
		if err := os.Chown(dir, 0, 65534); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o750|os.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "metrics.sock")
	runWeb(t, newWeb("unix:"+path, hosts{"worker-7"}, prometheus.NewRegistry(), nil, nothing, slog.New(slog.DiscardHandler)))
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	defer client.CloseIdleConnections()
	plugintest.Eventually(t, "it serves", func() bool {
		answer, err := client.Get("http://anything/healthz")
		if err != nil {
			return false
		}
		answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
	of, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != os.ModeSocket|0o660 || groupOf(info) != groupOf(of) {
		t.Errorf("the socket is %v of group %d, %v, want mode 0660 and group %d", info.Mode(), groupOf(info), err, groupOf(of))
	}
}

func groupOf(info fs.FileInfo) uint32 { return info.Sys().(*syscall.Stat_t).Gid }
