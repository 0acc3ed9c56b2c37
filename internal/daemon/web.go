package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/devmgrd/devmgrd/internal/loops"
)

const (
	firstRebind = time.Second // before the next try for an address in use
	lastRebind  = 30 * time.Second
	stopLimit   = 5 * time.Second  // of the shutdown
	idleLimit   = 30 * time.Second // of a connection between two requests; Prometheus opens another one
	maxScrapes  = 4                // at once: each reads the disk, which may not answer
)

// A web serves metrics, health checks and the status page. Devices do not depend on it: an address in use holds up no
// other component.
type web struct {
	listen func() (net.Listener, error) // nil: off
	server *http.Server
	log    *slog.Logger
}

// newWeb returns a web for an address, which run binds. With an empty address it serves nothing. names are the node's, and page
// adds other paths.
func newWeb(address string, names hosts, metrics *prometheus.Registry, parts parts, page func(*http.ServeMux), log *slog.Logger) *web {
	if address == "" {
		return &web{}
	}
	metrics.MustRegister(readyMetric(parts))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelError), MaxRequestsInFlight: maxScrapes}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		status, text := readiness(parts)
		w.WriteHeader(status)
		fmt.Fprint(w, text)
	})
	page(mux)
	return &web{
		listen: webListener(address),
		server: &http.Server{
			Handler:           names.guard(mux),
			ReadHeaderTimeout: 5 * time.Second,
			ReadTimeout:       10 * time.Second,
			WriteTimeout:      30 * time.Second,
			IdleTimeout:       idleLimit,
			MaxHeaderBytes:    16 << 10,
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		},
		log: log,
	}
}

// readiness returns a line for each component: its name, then "ok" or its error.
func readiness(parts parts) (status int, text string) {
	var b strings.Builder
	status = http.StatusOK
	for _, p := range parts {
		state := "ok"
		if err := p.check(); err != nil {
			status, state = http.StatusServiceUnavailable, err.Error()
		}
		fmt.Fprintf(&b, "%s: %s\n", p.name, state)
	}
	return status, b.String()
}

// readyMetric returns a metric that reports on each scrape the same as /readyz.
func readyMetric(parts parts) prometheus.CollectorFunc {
	desc := prometheus.NewDesc("devmgrd_ready", "1 while a component of devmgrd is ready, as in /readyz, otherwise 0.", []string{"component"}, nil)
	return func(to chan<- prometheus.Metric) {
		for _, p := range parts {
			ready := 0.0
			if p.check() == nil {
				ready = 1
			}
			to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, ready, p.name)
		}
	}
}

// run serves until ctx ends, and tries the address again after each failure.
func (w *web) run(ctx context.Context) error {
	if w.listen == nil {
		<-ctx.Done()
		return nil
	}
	defer w.server.Close() // of connections that outlived their listener
	// Streams end with ctx; a shutdown would wait for them.
	w.server.BaseContext = func(net.Listener) context.Context { return ctx }
	failing, pause := false, loops.Backoff{First: firstRebind, Last: lastRebind}
	for ctx.Err() == nil {
		listener, err := w.listen()
		if err == nil {
			if failing {
				w.log.Info("serving metrics and health checks")
			}
			pause.Reset()
			failing = false
			if err = w.serve(ctx, listener); ctx.Err() != nil {
				return err
			}
		}
		if !failing {
			w.log.Error("cannot serve metrics; retrying", "setting", "metrics.listen", "err", err)
			failing = true
		}
		pause.Wait(ctx)
	}
	return nil
}

// serve serves on the listener until ctx ends or the listener fails.
func (w *web) serve(ctx context.Context, on net.Listener) error {
	ended := make(chan error, 1)
	go func() { ended <- w.server.Serve(on) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	err := w.server.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		err = w.server.Close() // a client holds a connection open, which must not delay the end
	}
	<-ended
	return err
}
