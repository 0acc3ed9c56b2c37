package cli

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/config"
)

func TestWarnDeprecated_NamesSourceKeyAndRemedy(t *testing.T) {
	var out strings.Builder
	m := config.Mistake{Key: "plugins.absence", Source: "/etc/devmgrd/config.yaml:7", Problem: "is deprecated since 0.3.0", Remedy: "rename it to plugins.gracePeriod"}
	warnDeprecated(slog.New(slog.NewTextHandler(&out, nil)), []config.Mistake{m})
	want := `level=WARN msg="deprecated configuration key" key=plugins.absence source=/etc/devmgrd/config.yaml:7 problem="is deprecated since 0.3.0" remedy="rename it to plugins.gracePeriod"`
	if !strings.Contains(out.String(), want) {
		t.Errorf("the log is %s", out.String())
	}
}
