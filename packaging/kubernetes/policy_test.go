package kubernetes

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/config"
)

// TestPathsAreTheDefaults compares the policy with the configuration's defaults: what it does for pods is tested end to end.
func TestPathsAreTheDefaults(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.yaml")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, err := config.Load(config.Options{File: empty, Set: []string{"nodeName=n1"}})
	if err != nil {
		t.Fatal(err)
	}
	dir := c.Plugins.KubeletDir
	for _, want := range []string{fmt.Sprintf("['%s', '%s/kubelet.sock']", dir, dir), fmt.Sprintf("['%s']", filepath.Dir(dir))} {
		if !strings.Contains(FailClosed, want) {
			t.Errorf("the policy lacks %s, and plugins.kubeletDir is %s", want, dir)
		}
	}
	if len(c.Plugins.IgnoredResources) > 0 {
		t.Errorf("plugins.ignoredResources is %q, and the policy's list is empty", c.Plugins.IgnoredResources)
	}
}
