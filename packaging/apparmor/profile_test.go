package apparmor

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/cri"
	"github.com/devmgrd/devmgrd/internal/dra"
	"github.com/devmgrd/devmgrd/test/apt"
)

const profile = "devmgrd"

// TestProfile_Parses has AppArmor's own parser compile the profile.
func TestProfile_Parses(t *testing.T) {
	parser := apt.Program(t, "apparmor_parser", "apparmor", "AppArmor's profile is compiled with it")
	out, err := exec.Command(parser, "--skip-kernel-load", "--skip-cache", "--warn=all", profile).CombinedOutput()
	if err != nil || strings.Contains(string(out), "error") {
		t.Errorf("apparmor_parser: %v\n%s", err, out)
	}
}

// rules returns the rules of the profile: its lines without comments.
func rules(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(profile)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			all = append(all, line)
		}
	}
	return all
}

// TestProfile_AllowsTheDefaultPaths compares the profile with the configuration's defaults.
func TestProfile_AllowsTheDefaultPaths(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.yaml")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, err := config.Load(config.Options{File: empty, Set: []string{"nodeName=n1"}})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, r := range rules(t) {
		all = append(all, strings.ReplaceAll(r, "@{run}", "/run"))
	}
	wanted := map[string]string{
		c.StateDir + "/{,**} rwk,":                             "stateDir",
		c.RunDir + "/{,**} rwl,":                               "runDir",
		c.Plugins.KubeletDir + "/devmgrd.txt rw,":              "plugins.kubeletDir",
		filepath.Dir(c.PodResources.KubeletSocket) + "/* rwl,": "podResources.kubeletSocket",
		strings.TrimPrefix(c.NRI.Socket, "/var") + " rw,":      "nri.socket",
		filepath.Dir(config.DefaultFile) + "/{,**} r,":         "the configuration",
	}
	for _, at := range dra.Sockets(c.Plugins.KubeletRegistryDir(), filepath.Join(filepath.Dir(c.Plugins.KubeletDir), "plugins")) {
		wanted[filepath.Dir(at)+"/{,.}"+filepath.Base(at)+"{,.*} rw,"] = "dra.resources"
	}
	for _, at := range cri.Sockets {
		wanted[at+" rw,"] = "the runtime's CRI socket"
	}
	for want, path := range wanted {
		found := false
		for _, r := range all {
			found = found || r == want
		}
		if !found {
			t.Errorf("%s: the profile has no rule %q", path, want)
		}
	}
	for key, dir := range map[string]string{"plugins.socketDir": c.Plugins.SocketDir, "plugins.registryDir": c.Plugins.RegistryDir, "admin.socket": c.Admin.Socket, "podResources.socket": c.PodResources.Socket} {
		if !strings.HasPrefix(dir, c.RunDir+"/") {
			t.Errorf("%s is %s, which is not below runDir: the profile needs a rule", key, dir)
		}
	}
}

// TestProfile_GrantsNoPowers holds what the profile must not allow.
func TestProfile_GrantsNoPowers(t *testing.T) {
	executes := regexp.MustCompile(`\s[rwkmlapcuiPCU]*[xX][rwkmla]*( ->.*)?,$`)
	for _, r := range rules(t) {
		switch word, _, _ := strings.Cut(strings.TrimSuffix(r, ","), " "); {
		case strings.HasPrefix(r, "capability ") && r != "capability dac_override," && r != "capability dac_read_search,",
			word == "mount", word == "umount", word == "remount", word == "pivot_root", word == "change_profile", word == "userns", r == "file,",
			strings.HasPrefix(r, "ptrace") && r != "ptrace (readby),",
			strings.HasPrefix(r, "network") && (strings.Contains(r, "raw") || strings.Contains(r, "packet") || r == "network,"),
			strings.HasPrefix(r, "profile") && strings.Contains(r, "complain"),
			executes.MatchString(r):
			t.Errorf("the profile has the rule %q", r)
		}
	}
}
