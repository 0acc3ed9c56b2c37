package kube

import (
	"context"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// RouteLogs sends what the Kubernetes libraries log to log. It sets something global: call it once, from main.
func RouteLogs(log *slog.Logger) { klog.SetSlogLogger(log) }

// quietly makes the libraries' remarks on single attempts debug messages: the Watch itself says, once, what its
// state is.
func quietly(ctx context.Context, log *slog.Logger) context.Context {
	return klog.NewContext(ctx, logr.FromSlogHandler(quiet{log.Handler()}))
}

// quiet is a handler that takes everything as a debug message.
type quiet struct{ slog.Handler }

func (q quiet) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.Handler.Enabled(ctx, slog.LevelDebug)
}

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	if !q.Enabled(ctx, r.Level) {
		return nil // errors come without a call of Enabled
	}
	return q.Handler.Handle(ctx, r)
}

func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(attrs)} }
func (q quiet) WithGroup(name string) slog.Handler       { return quiet{q.Handler.WithGroup(name)} }
