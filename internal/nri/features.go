package nri

import (
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/devmgrd/devmgrd/internal/device"
)

// features are the parts of NRI that a runtime supports. An older runtime ignores an unknown field of an answer without an
// error, so devmgrd has to know.
type features struct {
	runtime  string // name and version, for messages
	cdi      bool   // it injects CDI devices
	rules    bool   // it applies rules of the devices cgroup
	args     bool   // it replaces the command line
	idmap    bool   // it reports to the kubelet which OCI runtimes map the owners of mounts into user namespaces
	showsCDI bool   // it shows which CDI devices the kubelet names
	crio     bool   // it is CRI-O, which creates the kubelet's device nodes with mode 0666
	// It calls ValidateContainerAdjustment. A runtime that does not know the event rejects a plugin that subscribes to it.
	validates bool
}

// limits returns what the runtime's missing features mean for users.
func (f features) limits() (all []device.Limit) {
	add := func(text string) { all = append(all, device.Limit{Release: f.runtime, Text: text}) }
	if !f.validates {
		add("containers that are created while devmgrd is away start without their devices")
	}
	if !f.cdi {
		add("containers that are granted CDI devices are refused")
	}
	if !f.rules {
		add("containers that are granted device nodes with less than read and write access are refused")
	}
	if !f.args {
		add("containers whose command line refers to a device plugin's variable as $(NAME) are refused")
	}
	if !f.idmap {
		add("containers with a user namespace of their own that are granted mounts are refused")
	}
	return all
}

// featuresOf returns the features of a release, by its source: containerd injects CDI devices since 2.1 (and since 1.7.30 in
// the 1.7 series), has device rules, command lines and validators since 2.2 (NRI 0.10), and shows CDI devices since 2.3; CRI-O has all of them since 1.34. containerd
// since 2.0 and CRI-O since 1.30 report OCI runtimes that map mounts, and the kubelet starts pods with a user namespace under no others:
// runc before 1.2 ignores the mappings without an error. Other runtimes, and versions that cannot be read, count as having none.
func featuresOf(runtime, release string) features {
	a := features{runtime: runtime + " " + release, crio: runtime == "cri-o"}
	v, err := version.ParseGeneric(release)
	if err != nil {
		return a
	}
	since := func(first string) bool { return v.AtLeast(version.MustParseGeneric(first)) }
	switch runtime {
	case "containerd":
		a.cdi = since("2.1.0") || since("1.7.30") && !since("1.8.0")
		a.rules, a.args, a.validates, a.idmap, a.showsCDI = since("2.2.0"), since("2.2.0"), since("2.2.0"), since("2.0.0"), since("2.3.0")
	case "cri-o":
		a.cdi, a.rules, a.args, a.validates, a.idmap = since("1.34.0"), since("1.34.0"), since("1.34.0"), since("1.34.0"), since("1.30.0")
	}
	return a
}
