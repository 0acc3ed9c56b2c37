package daemon

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

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
