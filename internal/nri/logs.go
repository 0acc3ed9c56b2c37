package nri

import (
	"log/slog"
	"strings"

	ttrpclog "github.com/containerd/log"
)

// RouteLogs sends the messages of NRI's libraries to l, at level debug: they report the end of a connection as an error, which devmgrd
// reports itself. It sets a global variable: call it once, at the start.
func RouteLogs(l *slog.Logger) { ttrpclog.L.Logger.SetOutput(lines{l}) }

// lines is an io.Writer that logs each written line.
type lines struct{ log *slog.Logger }

func (l lines) Write(text []byte) (int, error) {
	l.log.Debug("message of NRI library", "text", strings.TrimSpace(string(text)))
	return len(text), nil
}
