package nri

import (
	"io"
	"log/slog"
	"strings"
	"testing"

	ttrpclog "github.com/containerd/log"
)

func TestRouteLogs(t *testing.T) {
	t.Parallel()
	before := ttrpclog.L.Logger.Out
	t.Cleanup(func() { ttrpclog.L.Logger.SetOutput(before) })
	var text strings.Builder
	RouteLogs(slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug})))
	ttrpclog.L.Error("failed sending message on channel")
	if got := text.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=DEBUG") || !strings.Contains(got, "failed sending message on channel") {
		t.Errorf("logged %q", got)
	}
	RouteLogs(slog.New(slog.NewTextHandler(io.Discard, nil)))
}
