package pluginrules

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A grant may have 256 KiB, in one name of which a few bytes are remembered.
func TestSeen_PartsOfLongTexts_DoNotKeepThem(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var m memory
	before := heap()
	for i := range 200 {
		long := strings.Repeat("/", device.MaxGrant)
		m.note("vendor.example/gpu", nil, device.Grant{
			CDI:    []string{fmt.Sprintf("k%d=", i) + long},
			Mounts: []device.Mount{{HostPath: fmt.Sprintf("/m%d", i) + long}},
		})
	}
	if used := heap() - before; used > 5<<20 {
		t.Errorf("%d names keep %d KiB", m.n, used>>10)
	}
	if m.n != 401 {
		t.Errorf("%d names are remembered", m.n)
	}
}
