//go:build e2e

package boot

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// canary is a script that makes a fault, and prints after how many seconds a metric no longer says that all is well, and after how many it says so again.
// A devmgrd that does not answer says nothing.
const canary = `#!/bin/bash
# canary FAULT METRIC
well() {
	timeout 1 bash -c 'exec 3<>/dev/tcp/127.0.0.1/9464 && printf "GET /metrics HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n" >&3 && cat <&3' 2>/dev/null |
		awk -v name="$1" 'index($1, name) == 1 { found = 1; bad = bad || $2 != 1 } END { exit bad || !found }'
}
since() { awk -v from="$from" -v now="$(date +%s.%N)" 'BEGIN { printf "%.1f s", now - from }'; }
from=$(date +%s.%N)
eval "$1"
while well "$2"; do sleep 0.05; done
echo "signal after $(since)"
until well "$2"; do sleep 0.05; done
echo "well after $(since)"
`

// TestCanary_EachFault_SignalComesAndGoes breaks a node as docs/safety.md has the operator do it, and prints the seconds that the page names.
func TestCanary_EachFault_SignalComesAndGoes(t *testing.T) {
	h, had, _ := startPair(t)
	h.must(h.machine.Put(h.ctx, map[string]string{"/usr/local/bin/canary": canary}))
	h.types("chmod 755 /usr/local/bin/canary")
	for _, c := range []struct{ what, fault, metric string }{
		{"devmgrd is killed", "systemctl kill -s KILL devmgrd", "devmgrd_ready"},
		{"devmgrd hangs", "systemctl kill -s STOP devmgrd", "devmgrd_ready"},
		{"containerd restarts", "systemctl restart --no-block containerd", "devmgrd_nri_connected"},
	} {
		out := h.types(fmt.Sprintf("canary %q %s", c.fault, c.metric))
		t.Logf("%s: %s", c.what, strings.ReplaceAll(out, "\n", ", "))
		h.ready()
	}
	h.untouched(had)

	began := time.Now()
	h.types("systemctl stop devmgrd.socket devmgrd")
	h.createsFor("without", gpu, 0)
	h.running("without")
	t.Logf("devmgrd is stopped: a pod without devices runs %.1f s later", time.Since(began).Seconds())
	began = time.Now()
	h.types("systemctl start devmgrd.socket devmgrd")
	h.ready()
	t.Logf("devmgrd is started: ready %.1f s later", time.Since(began).Seconds())
	h.untouched(had)
}
