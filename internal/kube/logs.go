package kube

import (
	"context"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// RouteLogs sends the logs of the Kubernetes libraries to log. It sets a global variable: call it once, at the start.
func RouteLogs(log *slog.Logger) { klog.SetSlogLogger(log) }

// quietly returns a context in which the libraries log at the debug level only: the Watch itself logs each change of its state.
func quietly(ctx context.Context, log *slog.Logger) context.Context {
	return klog.NewContext(ctx, logr.FromSlogHandler(quiet{log.Handler()}))
}

// quiet is a handler that logs everything at the debug level.
type quiet struct{ slog.Handler }

func (q quiet) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.Handler.Enabled(ctx, slog.LevelDebug)
}

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	if !q.Enabled(ctx, r.Level) {
		return nil // the libraries log errors without asking Enabled
	}
	return q.Handler.Handle(ctx, r)
}

func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(attrs)} }
func (q quiet) WithGroup(name string) slog.Handler       { return quiet{q.Handler.WithGroup(name)} }
