//go:build e2e

package boot

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	cuts = flag.Int("cuts", 20, "how many times TestPowerCut cuts the power")
	seed = flag.Uint64("seed", 1, "the seed of TestPowerCut's random choices")
)

// The power fails while pods are created and deleted. After each boot devmgrd serves, every pod that is there gets its device, and no
// device is in two hands.
func TestPowerCut_AmidAllocations_NothingIsLost(t *testing.T) {
	h := start(t)
	h.driver()
	h.service("gpu0=/dev/vendor/gpu0:rw", "gpu1=/dev/vendor/gpu1:rw")
	h.types("sync") // of an installation, power fails later
	random := rand.New(rand.NewPCG(*seed, 0))
	var pods []string
	for cut := range *cuts {
		for len(pods) < 2 {
			name := fmt.Sprintf("pod-%d-%d", cut, len(pods))
			h.creates(name, 1, "/dev/gpu0", "/dev/gpu1")
			pods = append(pods, name)
		}
		delay := time.Duration(random.IntN(4000)) * time.Millisecond
		time.Sleep(delay) // the moment of the cut is what this test draws
		h.nothingIsDenied()
		h.must(h.machine.PowerCut())
		h.must(h.machine.Boot(h.ctx))
		h.ready()
		hands := map[string]string{}
		for _, name := range pods {
			got := h.running(name)
			device := got.Env["DEVICES"]
			if other := hands[device]; other != "" {
				t.Errorf("cut %d: %s is in the hands of %s and %s", cut, device, other, name)
			}
			hands[device] = name
			if how := opened(got, "/dev/"+device); how != "r rw w" || strings.Contains(device, ",") {
				t.Errorf("cut %d: pod %s has %q and opens it for %q", cut, name, device, how)
			}
		}
		if out := h.types("devmgrd status"); strings.Contains(out, "conflict") || strings.Contains(out, "damaged") {
			t.Errorf("cut %d:\n%s", cut, out)
		}
		t.Logf("cut %d, after %s: both pods run with their devices", cut+1, delay)
		gone := random.IntN(len(pods))
		now := int64(0)
		h.must(h.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(h.ctx, pods[gone], metav1.DeleteOptions{GracePeriodSeconds: &now}))
		pods = append(pods[:gone], pods[gone+1:]...)
		if t.Failed() {
			return
		}
	}
}
