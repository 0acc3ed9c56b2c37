package units_test

import (
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/internal/units"
)

func TestName(t *testing.T) {
	if got := units.Name("devmgrd-release", "1-a", "vendor.example/gpu"); got != "devmgrd-release-1-a-vendor-example-gpu.service" {
		t.Error(got)
	}
	long := units.Name("devmgrd-release", strings.Repeat("u", 200)+"/", strings.Repeat("r", 300))
	if len(long) > 255 || strings.Contains(long, "/") || long == units.Name("devmgrd-release", strings.Repeat("u", 200)+"/", strings.Repeat("r", 301)) {
		t.Error(long)
	}
}
