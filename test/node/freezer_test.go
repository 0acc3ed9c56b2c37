package node_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// A frozen process does not even end by SIGKILL, and ends by it when it is thawed.
func TestFreeze(t *testing.T) {
	plugintest.NeedRoot(t)
	sleep := func() *exec.Cmd {
		cmd := exec.Command("sleep", "1h")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	frozen, other := sleep(), sleep()
	thaw, err := node.Freeze(frozen.Process.Pid)
	if err != nil {
		t.Error(err)
		thaw = func() error { return nil }
	}
	for _, cmd := range []*exec.Cmd{frozen, other} {
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
	}
	_ = other.Wait() // it was sent SIGKILL later
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", frozen.Process.Pid))
	if _, state, _ := strings.Cut(string(stat), ") "); err != nil || strings.HasPrefix(state, "Z") {
		t.Errorf("the frozen process has ended: %q, %v", stat, err)
	}
	if err := thaw(); err != nil {
		t.Fatal(err)
	}
	_ = frozen.Wait()
}
