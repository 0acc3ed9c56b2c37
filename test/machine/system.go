package machine

import (
	_ "embed"
	"fmt"
	"slices"
)

// A System is what a machine's disk has, by the security module that its kernel enforces.
type System struct {
	name     string
	packages []string          // of Debian, besides systemd
	kernel   []string          // words for the kernel's command line
	files    map[string]string // that no package has, by path
	finish   string            // a script that completes the file system, run in it; "": none
}

// nodePackages are the packages of every system: what runs containers and tests, and what keeps people from getting lost.
var nodePackages = []string{"iproute2", "kmod", "libseccomp2", "openssh-server", "procps", "udev"}

var (
	//go:embed files/selinux-finish.sh
	selinuxFinish string
	//go:embed files/node.te
	selinuxTypes string
	//go:embed files/node.fc
	selinuxLabels string
)

// The systems. Debian's kernel enforces AppArmor by default.
var (
	AppArmor = System{name: "apparmor", packages: append(slices.Clone(nodePackages), "apparmor")}

	// SELinux has Debian's policy, and the modules for containers that come with the policy's sources only.
	SELinux = System{
		name: "selinux",
		packages: append(slices.Clone(nodePackages), "selinux-policy-default", "selinux-policy-dev", "selinux-policy-src", "policycoreutils",
			"semodule-utils", "checkpolicy", "make", "zstd"),
		kernel: []string{"security=selinux", "selinux=1", "enforcing=1"},
		files: map[string]string{
			"etc/selinux/config":  "SELINUX=enforcing\nSELINUXTYPE=default\n",
			"root/policy/node.te": selinuxTypes,
			"root/policy/node.fc": selinuxLabels,
		},
		finish: selinuxFinish,
	}
)

// recipe is all that decides what the system's disk has, apart from the programs of test/cluster.
func (s System) recipe() string { return fmt.Sprint(s.name, s.packages, s.files, s.finish) }
