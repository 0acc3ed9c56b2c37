package main

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
)

// A part of the daemon whose state /readyz tells.
type part struct {
	name  string
	check func() error // nil: it is ready
}

// A web serves metrics and health checks.
type web struct {
	listener net.Listener // nil: off
	server   *http.Server
}

// listenWeb binds the address, so that one that is taken is told before anything has started. An empty one serves nothing.
func listenWeb(address string, metrics *prometheus.Registry, parts []part, log *slog.Logger) (*web, error) {
	if address == "" {
		return &web{}, nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("metrics.listen: %w; choose another address, or an empty one to serve no metrics", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelError)}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		status, text := readiness(parts)
		w.WriteHeader(status)
		fmt.Fprint(w, text)
	})
	return &web{listener, &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}}, nil
}

// readiness gives a line for each part: its name, then "ok" or what is missing.
func readiness(parts []part) (status int, text string) {
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

// run serves until ctx ends.
func (w *web) run(ctx context.Context) error {
	if w.listener == nil {
		<-ctx.Done()
		return nil
	}
	ended := make(chan error, 1)
	go func() { ended <- w.server.Serve(w.listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serving metrics: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	err := w.server.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		err = w.server.Close() // somebody holds a connection open; that is no reason to stay
	}
	<-ended
	return err
}
