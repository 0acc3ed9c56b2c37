package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/test/plugintest"
)

// lines is a log that can be read while it is written.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), part)
}

func nothing(*http.ServeMux) {}

// runWeb runs w. The returned function ends it and returns its error.
func runWeb(t *testing.T, w *web) (end func() error) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.run(ctx) }()
	end = sync.OnceValue(func() error { stop(); return <-ended })
	t.Cleanup(func() { end() })
	return end
}

// get fetches a page; its status is 0 if no server answers.
func get(address, path string) (status int, body string) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get("http://" + address + path)
	if err != nil {
		return 0, ""
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(text)
}

// A check waits for a lock, and its owner for a metric that a scrape reads.
func TestMetrics_CheckWaitsForWhoChangesThem_ScrapeEnds(t *testing.T) {
	t.Parallel()
	for range 20 { // a scrape reads the metrics in any order
		metrics := prometheus.NewRegistry()
		plugins := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "plugins"}, []string{"name"})
		for i := range 4000 { // more than a scrape collects ahead
			plugins.WithLabelValues(fmt.Sprint(i)).Set(1)
		}
		metrics.MustRegister(plugins)
		newWeb("127.0.0.1:0", nil, metrics, parts{{name: "registration", check: func() error {
			plugins.DeletePartialMatch(prometheus.Labels{"name": "0"})
			return nil
		}}}, nothing, slog.New(slog.DiscardHandler))
		scraped := make(chan error, 1)
		go func() {
			_, err := metrics.Gather()
			scraped <- err
		}()
		select {
		case err := <-scraped:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(time.Minute):
			t.Fatal("the scrape and the check wait for each other")
		}
	}
}

func TestWeb(t *testing.T) {
	var broken error
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "some_gauge"}))
	w := newWeb("127.0.0.1:0", nil, metrics, parts{
		{name: "one", check: func() error { return nil }},
		{name: "two", check: func() error { return broken }},
	}, nothing, slog.New(slog.DiscardHandler))
	listener, err := w.listen()
	if err != nil {
		t.Fatal(err)
	}
	w.listen = func() (net.Listener, error) { return listener, nil }
	end := runWeb(t, w)
	address := listener.Addr().String()
	for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "one: ok\ntwo: ok\n", "/metrics": "some_gauge 0"} {
		if status, body := get(address, path); status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %q, want %q", path, status, body, want)
		}
	}
	broken = errors.New("out of order")
	if status, body := get(address, "/readyz"); status != http.StatusServiceUnavailable || body != "one: ok\ntwo: out of order\n" {
		t.Errorf("/readyz: %d %q", status, body)
	}
	if _, body := get(address, "/metrics"); !strings.Contains(body, "devmgrd_ready{component=\"one\"} 1\ndevmgrd_ready{component=\"two\"} 0\n") {
		t.Errorf("/metrics: %q", body)
	}
	if err := end(); err != nil {
		t.Errorf("run: %v", err)
	}
	if status, _ := get(address, "/healthz"); status != 0 {
		t.Error("it serves on")
	}
}

func TestWebIsOff(t *testing.T) {
	if err := runWeb(t, newWeb("", nil, prometheus.NewRegistry(), nil, nothing, slog.New(slog.DiscardHandler)))(); err != nil {
		t.Errorf("run: %v", err)
	}
}

// An address in use is logged once, and taken when it is free.
func TestWebWaitsForItsAddress(t *testing.T) {
	theirs, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	address, log := theirs.Addr().String(), &lines{}
	w := newWeb(address, nil, prometheus.NewRegistry(), nil, nothing, slog.New(slog.NewTextHandler(log, nil)))
	listen, tries := w.listen, make(chan struct{}, 100)
	w.listen = func() (net.Listener, error) { tries <- struct{}{}; return listen() }
	end := runWeb(t, w)
	<-tries
	<-tries
	if log.count("level=ERROR") != 1 || log.count("metrics.listen") != 1 || log.count("address already in use") != 1 {
		t.Error("the log does not tell once that the address is taken, and by which key it is set")
	}
	theirs.Close()
	plugintest.Eventually(t, "it serves", func() bool { status, _ := get(address, "/healthz"); return status == http.StatusOK })
	if err := end(); err != nil {
		t.Errorf("run: %v", err)
	}
}

// Nor is it the end if the listener breaks later.
func TestWebListensAgain(t *testing.T) {
	log := &lines{}
	w := newWeb("127.0.0.1:0", nil, prometheus.NewRegistry(), nil, nothing, slog.New(slog.NewTextHandler(log, nil)))
	listen, listeners := w.listen, make(chan net.Listener, 100)
	w.listen = func() (net.Listener, error) {
		l, err := listen()
		if err == nil {
			listeners <- l
		}
		return l, err
	}
	end := runWeb(t, w)
	for range 2 {
		l := <-listeners
		plugintest.Eventually(t, "it serves", func() bool { status, _ := get(l.Addr().String(), "/healthz"); return status == http.StatusOK })
		l.Close()
	}
	plugintest.Eventually(t, "both failures are logged", func() bool { return log.count("level=ERROR") == 2 })
	if err := end(); err != nil { // while it waits
		t.Errorf("run: %v", err)
	}
}

// An answer that goes on ends with the daemon, which does not wait for it.
func TestWebEndsAnswersThatGoOn(t *testing.T) {
	w := newWeb("127.0.0.1:0", nil, prometheus.NewRegistry(), nil, func(on *http.ServeMux) {
		on.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
	}, slog.New(slog.DiscardHandler))
	listener, err := w.listen()
	if err != nil {
		t.Fatal(err)
	}
	w.listen = func() (net.Listener, error) { return listener, nil }
	end := runWeb(t, w)
	answer, err := http.Get("http://" + listener.Addr().String() + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	began := time.Now()
	if err := end(); err != nil || time.Since(began) >= stopLimit {
		t.Errorf("it ends with %v after %s", err, time.Since(began))
	}
}
