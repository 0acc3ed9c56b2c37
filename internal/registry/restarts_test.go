package registry_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// loud returns how many log lines above level debug have the message.
func (l *logs) loud(message string) (n int) {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, fmt.Sprintf("msg=%q", message)) && !strings.Contains(line, "level=DEBUG") {
			n++
		}
	}
	return n
}

// round is a start of the plugin, with a socket of a new name, and its crash.
func round(f *harness, p *plugintest.Plugin, n int) {
	p.Endpoint = fmt.Sprintf("plugin-%d.sock", n)
	p.Serve()
	p.MustRegister()
	f.eventually("the plugin serves", f.servesNumber(2))
	p.Kill()
	f.eventually("the offer is stale", f.is(device.Stale))
	_ = os.Remove(p.Socket())
}

// A plugin that crashes in a loop is logged in full for a while, and seldom then. At level debug each round is there.
func TestRestarts_PluginCrashesInALoop_IsLoggedSeldom(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.New(t, f.dir, gpu, plugintest.Devices(2)...)
	const rounds = 20
	for n := range rounds {
		round(f, p, n)
	}
	for _, message := range []string{"plugin registered", "plugin serving", "plugin disconnected; allocation paused"} {
		if loud := f.logs.loud(message); loud < 3 || loud > 4 {
			t.Errorf("%q was logged %d times in %d rounds", message, loud, rounds)
		}
		if all := f.logs.count(fmt.Sprintf("msg=%q", message)); all != rounds {
			t.Errorf("%q is in the log %d times with those of level debug, want %d", message, all, rounds)
		}
	}
	if n := f.logs.loud("plugin restarts again and again"); n != 1 || f.logs.count("restarts=4 ") != 1 {
		t.Errorf("it was logged %d times that the plugin restarts again and again:\n%s", n, f.logs)
	}
}

// Another instance that serves meanwhile makes no difference.
func TestRestarts_AnotherInstanceServes_IsLoggedSeldom(t *testing.T) {
	t.Parallel()
	f := start(t)
	stays := plugintest.New(t, f.dir, gpu, plugintest.Devices(1)...)
	stays.Endpoint = "stays.sock"
	stays.Serve()
	stays.MustRegister()
	f.eventually("the first plugin serves", f.servesNumber(1))
	p := plugintest.New(t, f.dir, gpu, plugintest.Devices(2)...)
	for range 8 {
		p.Serve()
		p.MustRegister()
		f.eventually("the second plugin serves", f.servesNumber(2))
		p.Kill()
		f.eventually("the first one serves again", f.servesNumber(1))
	}
	// devmgrd may dial the plugin before it registers, and the registration then replaces that session: a restart without this line.
	if n := f.logs.loud("plugin ended; another instance serves"); n < 2 || n > 3 {
		t.Errorf("logged %d times", n)
	}
	if n := f.logs.loud("plugin restarts again and again"); n != 1 {
		t.Errorf("it was logged %d times that the plugin restarts again and again", n)
	}
}

// A plugin that serves for a while is steady: the log says so, and its next end is logged in full.
func TestRestarts_PluginServesForAWhile_SeriesEnds(t *testing.T) {
	t.Parallel()
	f := prepare(t)
	f.SetSteadyTime(time.Second)
	f.run()
	p := plugintest.New(t, f.dir, gpu, plugintest.Devices(2)...)
	n := 0
	f.eventually("the plugin restarts again and again", func() bool {
		round(f, p, n)
		n++
		return f.logs.loud("plugin restarts again and again") > 0
	})
	p.Serve()
	p.MustRegister()
	f.eventually("it is steady", func() bool { return f.logs.loud("plugin serving steadily") == 1 })
	before := f.logs.loud("plugin disconnected; allocation paused")
	p.Kill()
	f.eventually("its end is logged", func() bool { return f.logs.loud("plugin disconnected; allocation paused") == before+1 })
}
