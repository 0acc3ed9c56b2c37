// Command fitrunc is runc for CRI-O on a machine that denies root some powers, such as a container. containerd leaves out of a
// container's specification what the machine does not allow; CRI-O does not, so fitrunc does before it becomes runc:
// an OOM score below its own, limits of huge pages without the cgroup controller for them, and capabilities beyond its own.
//
// /etc/crio/runc is a file with the path of runc: conmon, which starts fitrunc, hands no environment on. The specification is
// config.json in the directory that --bundle names.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func main() {
	fmt.Fprintln(os.Stderr, "fitrunc:", run())
	os.Exit(1)
}

// run becomes runc, and returns why it cannot.
func run() error {
	if dir, ok := bundle(os.Args); ok {
		if err := fit(filepath.Join(dir, "config.json")); err != nil {
			return err
		}
	}
	runc, err := os.ReadFile("/etc/crio/runc")
	if err != nil {
		return err
	}
	return fmt.Errorf("running %s: %w", runc, syscall.Exec(string(runc), append([]string{"runc"}, os.Args[1:]...), os.Environ()))
}

// bundle returns the directory of the container that runc creates.
func bundle(args []string) (dir string, create bool) {
	if !slices.Contains(args, "create") {
		return "", false
	}
	for i, arg := range args {
		if value, ok := strings.CutPrefix(arg, "--bundle="); ok {
			return value, true
		}
		if (arg == "--bundle" || arg == "-b") && i+1 < len(args) {
			return args[i+1], true
		}
	}
	return ".", true
}

// fit rewrites a specification.
func fit(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var spec map[string]any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber() // limits may be larger than a float64 holds
	if err := decoder.Decode(&spec); err != nil {
		return fmt.Errorf("reading %s: %w", file, err)
	}
	process, _ := spec["process"].(map[string]any)
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return err
	}
	least, err := strconv.ParseInt(strings.TrimSpace(string(own)), 10, 64)
	if err != nil {
		return err
	}
	if number, ok := process["oomScoreAdj"].(json.Number); ok {
		score, err := number.Int64()
		if err != nil {
			return err
		}
		process["oomScoreAdj"] = max(score, least)
	}
	sets, _ := process["capabilities"].(map[string]any)
	for name, set := range sets {
		list, _ := set.([]any)
		sets[name] = slices.DeleteFunc(list, func(c any) bool {
			return !allowed(slices.Index(capabilities, strings.TrimPrefix(fmt.Sprint(c), "CAP_")))
		})
	}
	controllers, _ := os.ReadFile("/sys/fs/cgroup/cgroup.controllers") // of cgroup v2
	if _, err := os.Stat("/sys/fs/cgroup/hugetlb"); err != nil && !slices.Contains(strings.Fields(string(controllers)), "hugetlb") {
		linux, _ := spec["linux"].(map[string]any)
		resources, _ := linux["resources"].(map[string]any)
		delete(resources, "hugepageLimits")
	}
	text, err = json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

// allowed reports whether a capability is in this process's bounding set.
func allowed(number int) bool {
	set, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(number), 0, 0, 0)
	return err == nil && set == 1
}

// capabilities are the kernel's, by number.
var capabilities = strings.Fields(`
	CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
	NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE
	SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE
	AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF
	CHECKPOINT_RESTORE`)
