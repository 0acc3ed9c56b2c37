package selinux

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/test/apt"
)

// makefile compiles modules, wherever the development files of a policy are installed.
const makefile = "/usr/share/selinux/devel/Makefile"

// compile returns the module in CIL, SELinux's intermediate language.
func compile(t *testing.T) string {
	t.Helper()
	converter := "/usr/libexec/selinux/hll/pp"
	err := apt.Ensure(t.Context(), t.Output(), apt.Need{For: "the SELinux module is compiled with it", Anywhere: "dnf install selinux-policy-devel policycoreutils",
		Missing: func() (missing []string) {
			for path, of := range map[string]string{makefile: "selinux-policy-dev", "/usr/bin/checkmodule": "checkpolicy", "/usr/bin/semodule_package": "semodule-utils", converter: "policycoreutils", "/usr/bin/make": "make"} {
				if _, err := os.Stat(path); err != nil {
					missing = append(missing, of)
				}
			}
			return missing
		}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"devmgrd.te", "devmgrd.fc", "devmgrd.if"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("make", "-f", makefile, "NAME=default", "devmgrd.pp")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil || regexp.MustCompile(`(?i)warning|error`).Match(out) {
		t.Fatalf("compiling the module: %v\n%s", err, out)
	}
	cil, err := exec.Command(converter, filepath.Join(dir, "devmgrd.pp")).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(cil)
}

// A rule of the domain: the type of the object, its class, the permissions.
var allowed = regexp.MustCompile(`\(allow devmgrd_t (\S+) \((\S+) \(([^)]*)\)\)\)`)

// TestModule_GrantsNoPowers compiles the module and looks at all that its macros come to.
func TestModule_GrantsNoPowers(t *testing.T) {
	found := allowed.FindAllStringSubmatch(compile(t), -1)
	if len(found) < 100 {
		t.Fatalf("%d rules of devmgrd_t were found", len(found))
	}
	for _, r := range found {
		object, class, permissions := r[1], r[2], " "+r[3]+" "
		switch {
		case strings.HasPrefix(class, "capability") && permissions != " dac_override dac_read_search ",
			strings.Contains(permissions, " execute_no_trans "), strings.Contains(permissions, " execmem "), strings.Contains(permissions, " execmod "),
			strings.Contains(permissions, " execute ") && object != "devmgrd_exec_t",
			class == "process" && (strings.Contains(permissions, " transition ") || strings.Contains(permissions, " dyntransition ") || strings.Contains(permissions, " ptrace ")),
			class == "filesystem" && (strings.Contains(permissions, " mount ") || strings.Contains(permissions, " remount ") || strings.Contains(permissions, " unmount ")),
			class == "system" && strings.Contains(permissions, " module_load "),
			(class == "rawip_socket" || class == "packet_socket") && strings.Contains(permissions, " create "),
			class == "blk_file" && strings.Contains(permissions, " open "),
			// What init hands over is open already.
			class == "file" && strings.Contains(permissions, " open ") && strings.Contains(permissions, " write ") && !writable[object]:
			t.Errorf("the module allows devmgrd_t %s:%s {%s}", object, class, permissions)
		}
	}
}

// writable are the types of files that devmgrd may write.
var writable = map[string]bool{"devmgrd_var_lib_t": true, "devmgrd_runtime_t": true, "container_file_t": true, "container_var_lib_t": true}

// TestModule_LetsKubeletIn wants what the kubelet needs of devmgrd as a DRA driver, and that devmgrd may make the socket.
func TestModule_LetsKubeletIn(t *testing.T) {
	cil := compile(t)
	for _, want := range []string{
		`\(allow kubelet_t devmgrd_t \(unix_stream_socket \([^)]*connectto`,
		`\(allow kubelet_t container_var_lib_t \(sock_file \([^)]*write`,
		`\(allow devmgrd_t container_var_lib_t \(sock_file \([^)]*create`,
	} {
		if !regexp.MustCompile(want).MatchString(cil) {
			t.Errorf("the module lacks %s", want)
		}
	}
}

// TestModule_LetsContainersIn wants both directions of the sockets in shared directories.
func TestModule_LetsContainersIn(t *testing.T) {
	cil := compile(t)
	for _, want := range []string{
		"(allow container_domain devmgrd_t (unix_stream_socket (connectto)))",
		"(allow devmgrd_t container_domain (unix_stream_socket (connectto)))",
		"(allow init_t devmgrd_t (process2 (nnp_transition nosuid_transition)))",
	} {
		if !strings.Contains(cil, want) {
			t.Errorf("the module lacks %s", want)
		}
	}
	for _, dir := range []string{`\([^"]*device-plugins`, `\([^"]*plugins_registry`, `\([^"]*pod-resources`, `plugins/[^"]*device-plugins`, `plugins/[^"]*plugins_registry`} {
		if !regexp.MustCompile(`\(filecon "/run/devmgrd/` + dir + `[^"]*" any \(system_u object_r container_file_t `).MatchString(cil) {
			t.Errorf("the directory %s has not the label container_file_t", dir)
		}
	}
}
