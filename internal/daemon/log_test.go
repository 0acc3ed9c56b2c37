package daemon

import (
	"bytes"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc/grpclog"

	"github.com/devmgrd/devmgrd/config"
)

func TestLog_AllLines_AreWritten(t *testing.T) {
	for format, want := range map[string]string{"text": "msg=hello n=999", "json": `"msg":"hello","n":999`} {
		var out bytes.Buffer
		log, end := NewLog(config.Log{Level: "info", Format: format}, &out)
		for i := range 1000 {
			log.Info("hello", "n", i)
			log.Debug("not this")
		}
		end()
		log.Info("too late") // and harmless
		end()
		if n := strings.Count(out.String(), "\n"); n != 1000 || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %d lines, want 1000 and %s in them", format, n, want)
		}
	}
}

// Standard error may block its writers: gRPC does so under the lock of a connection.
func TestLog_OfLibraries_IsTheDaemons(t *testing.T) {
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	out := &bytes.Buffer{}
	routeLogs(slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	grpclog.Error("too_many_pings")
	stdlog.Print("bad header")
	for _, want := range []string{"level=DEBUG msg=.* too_many_pings", "level=DEBUG msg=.bad header"} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("logged is %q, want %s", out.String(), want)
		}
	}
	routeLogs(slog.New(slog.DiscardHandler))
}

// Who reads the log may stop reading. The daemon goes on, and says later what was lost.
func TestLog_UnreadPipe_DelaysNoCaller(t *testing.T) {
	read, write := io.Pipe()
	log, end := NewLog(config.Log{Level: "info", Format: "text"}, write)
	for i := range 2 * backlog {
		log.Info("hello", "n", i) // would hang here
	}
	out := make(chan string)
	go func() {
		text, _ := io.ReadAll(read)
		out <- string(text)
	}()
	end()
	write.Close()
	text := <-out
	lines := strings.Count(text, "hello")
	if want := fmt.Sprintf("devmgrd: %d log lines were lost", 2*backlog-lines); lines < backlog || !strings.Contains(text, want) {
		t.Errorf("%d lines were written, and the log does not say %q", lines, want)
	}
}
