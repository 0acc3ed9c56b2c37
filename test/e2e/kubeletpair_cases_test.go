//go:build e2e

package e2e

import (
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// What twins need of the runtime, beyond environment variables, mounts and devices to read and write.
var (
	exactly   = []cluster.Feature{cluster.Permissions}
	arguments = []cluster.Feature{cluster.Arguments}
)

const imageWithEnv = "localhost/probe-with-env:1"

func mount(at, from string) *pluginapi.Mount {
	return &pluginapi.Mount{ContainerPath: at, HostPath: filepath.Join(vendor, from)}
}

func mountReadOnly(at, from string) *pluginapi.Mount {
	m := mount(at, from)
	m.ReadOnly = true
	return m
}

func dev(at, from, permissions string) *pluginapi.DeviceSpec {
	return &pluginapi.DeviceSpec{ContainerPath: at, HostPath: filepath.Join(vendor, from), Permissions: permissions}
}

func grantsMounts(all ...*pluginapi.Mount) []*plugintest.Answer {
	return []*plugintest.Answer{{Mounts: all}}
}

func grantsDevices(all ...*pluginapi.DeviceSpec) []*plugintest.Answer {
	return []*plugintest.Answer{{Devices: all}}
}

func grantsEnv(env map[string]string) []*plugintest.Answer {
	return []*plugintest.Answer{{Envs: env}}
}

// setsEnv returns the container variables of its own: NAME=value.
func setsEnv(all ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, v := range all {
			name, value, _ := strings.Cut(v, "=")
			p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: name, Value: value})
		}
	}
}

func emptyDirAt(at string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		main := &p.Spec.Containers[0] // the volume's name is the container's, so that another container in its pod has another volume
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: main.Name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: main.Name, MountPath: at})
	}
}

func variables() []twin {
	withImage := func(p *corev1.Pod) { p.Spec.Containers[0].Image = imageWithEnv }
	return []twin{
		{name: "env", answers: grantsEnv(map[string]string{"GPU": "0", "EMPTY": "", "SPACES": " a  b ", "EQUAL": "a=b"}), has: []string{"env GPU=0", "env EMPTY="}},
		{
			name: "env-the-pod-wins", answers: grantsEnv(map[string]string{"ONE": "the plugin's", "GPU": "the plugin's"}), pod: setsEnv("ONE=the pod's", "OTHER=1", "USES=$(GPU)"),
			has: []string{"env ONE=the pod's", "env GPU=the plugin's", "env USES=$(GPU)"},
		},
		{
			name: "env-of-the-image", answers: grantsEnv(map[string]string{"IMAGE": "the plugin's", "TWO": "the plugin's"}),
			pod: func(p *corev1.Pod) { withImage(p); setsEnv("TWO=the pod's", "THREE=the pod's")(p) },
			has: []string{"env IMAGE=the plugin's", "env TWO=the pod's", "env THREE=the pod's"},
		},
		{name: "env-of-the-runtime", answers: grantsEnv(map[string]string{"PATH": "/opt", "HOSTNAME": "other", "HOME": "/home"}), has: []string{"env PATH=/opt", "env HOSTNAME=other", "env HOME=/home"}},
		{
			name: "env-in-arguments", answers: grantsEnv(map[string]string{"GPU": "0 $(OWN)", "OWN": "the plugin's"}), needs: arguments,
			pod: func(p *corev1.Pod) {
				setsEnv("OWN=the pod's")(p)
				p.Spec.Containers[0].Args = []string{"report", "--", "$(GPU)", "a$(GPU)b$(GPU)", "$(OWN)", "$(UNKNOWN)", "$$(ESCAPED)", "$GPU", "$(GPU"}
			},
			has: []string{"arg 3 0 $(OWN)", "arg 4 a0 $(OWN)b0 $(OWN)", "arg 5 the pod's", "arg 6 $(UNKNOWN)", "arg 7 $(ESCAPED)"},
		},
		{
			// The kubelet has made $(GPU) of $$(GPU), which devmgrd could not tell from what it has left as it was. So devmgrd
			// leaves a name alone that stands there both ways.
			name: "env-in-arguments-both-ways", answers: grantsEnv(map[string]string{"GPU": "0"}),
			pod:     func(p *corev1.Pod) { p.Spec.Containers[0].Args = []string{"report", "--", "$(GPU)", "$$(GPU)"} },
			differs: []string{"-arg 3 0", "+arg 3 $(GPU)", "-spec.process.args.3=0", "+spec.process.args.3=$(GPU)"},
		},
		{
			// It cannot tell either what has come out of a value of the pod's own.
			name: "env-in-arguments-by-detour", answers: grantsEnv(map[string]string{"GPU": "0"}), needs: arguments,
			pod: func(p *corev1.Pod) {
				setsEnv("USES=$(GPU)")(p)
				p.Spec.Containers[0].Args = []string{"report", "--", "$(GPU)", "$(USES)"}
			},
			differs: []string{"-arg 4 $(GPU)", "+arg 4 0", "-spec.process.args.4=$(GPU)", "+spec.process.args.4=0"},
		},
		{
			// What is in other objects is not known to devmgrd.
			name: "env-from-a-config-map", answers: grantsEnv(map[string]string{"FROM": "the plugin's"}),
			pod: func(p *corev1.Pod) {
				p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}}
			},
			differs: []string{"-env FROM=the pod's", "+env FROM=the plugin's"},
		},
	}
}

func mounts() []twin {
	return []twin{
		{name: "mount", answers: grantsMounts(mount("/opt/driver", "driver"), mountReadOnly("/opt/driver-ro", "driver"), mount("/opt/file", "file")), has: []string{"mount /opt/driver [", "mount /opt/file ["}},
		{name: "mount-of-a-link", answers: grantsMounts(mount("/opt/driver", "driver-link"), mountReadOnly("/opt/lib", "driver-link/lib")), has: []string{"mount /opt/driver ["}},
		{name: "mount-of-what-is-missing", answers: grantsMounts(mount("/opt/driver", "missing/deep")), has: []string{"mount /opt/driver ["}},
		{name: "mount-where-the-pod-mounts", answers: grantsMounts(mount("/volume", "driver"), mount("/volume/lib", "driver/lib")), pod: emptyDirAt("/volume"), has: []string{"mount /volume [", "mount /volume/lib ["}},
		{name: "mount-where-the-pod-mounts-spelled-differently", answers: grantsMounts(mount("/volume/", "driver")), pod: emptyDirAt("/volume"), has: []string{"mount /volume ["}},
		{name: "mount-twice-at-one-place", answers: grantsMounts(mount("/opt/driver", "driver"), mount("/opt/driver", "driver/lib")), has: []string{"mount /opt/driver ["}},
		{name: "mount-twice-at-one-place-spelled-differently", answers: grantsMounts(mount("/opt/driver/", "driver/lib"), mount("/opt//driver", "driver")), has: []string{"mount /opt/driver ["}},
		{name: "mount-nested", answers: grantsMounts(mount("/opt/driver/lib", "all"), mountReadOnly("/opt/driver", "driver"), mount("/opt/driver/lib/sub", "driver")), has: []string{"mount /opt/driver [", "mount /opt/driver/lib [", "mount /opt/driver/lib/sub ["}},
		{
			name: "mount-where-the-runtime-mounts", answers: grantsMounts(mount("/dev/shm", "driver"), mount("/etc/hostname", "file"), mount("/etc/resolv.conf", "file"), mount("/etc/hosts", "file"), mount("/dev/mqueue", "driver")),
			has: []string{"mount /dev/shm [", "mount /etc/hosts ["},
		},
		{name: "mount-where-the-pod-has-shared-memory", answers: grantsMounts(mount("/dev/shm", "driver")), pod: emptyDirAt("/dev/shm"), has: []string{"mount /dev/shm ["}},
		{name: "mount-of-dev", answers: grantsMounts(mount("/dev", "dev")), has: []string{"mount /dev ["}},
		{name: "mount-of-sys", answers: []*plugintest.Answer{{Mounts: []*pluginapi.Mount{{ContainerPath: "/sys", HostPath: "/sys", ReadOnly: true}}}}, has: []string{"mount /sys ["}},
		{
			// Paths of volumes are the kubelet's, which does not know the plugin's variables.
			name: "mount-at-a-path-from-env", answers: grantsEnv(map[string]string{"GPU": "gpu-0"}),
			pod: func(p *corev1.Pod) {
				emptyDirAt("/volume")(p)
				p.Spec.Containers[0].VolumeMounts[0].SubPathExpr = "$(GPU)"
			},
			fails: "missing value for GPU",
		},
		{
			name: "mount-in-a-read-only-root", answers: grantsMounts(mount("/opt/driver", "driver")),
			pod: func(p *corev1.Pod) {
				yes := true
				p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{ReadOnlyRootFilesystem: &yes}
			},
		},
	}
}

func nodes() []twin {
	return []twin{
		{name: "device", answers: grantsDevices(dev("/dev/gpu0", "gpu0", "rw")), open: []string{"/dev/gpu0"}, has: []string{"device /dev/gpu0 c 10:237 0640 0:0"}},
		{name: "device-with-an-odd-mode-and-owner", answers: grantsDevices(dev("/dev/gpu1", "gpu1", "rw")), has: []string{"device /dev/gpu1 c 10:229 01626 44:105"}},
		{name: "device-through-a-link", answers: grantsDevices(dev("/dev/gpu0", "link", "rw")), has: []string{"device /dev/gpu0 c 10:237"}},
		{name: "device-outside-dev", answers: grantsDevices(dev("/opt/vendor/gpu", "gpu0", "rw")), open: []string{"/opt/vendor/gpu"}, has: []string{"file /opt/vendor/gpu"}},
		{name: "device-without-a-place", answers: grantsDevices(dev("", "gpu0", "rw")), has: []string{"file /run/vendor/gpu0"}},
		{name: "device-without-a-place-through-a-link", answers: grantsDevices(dev("", "link", "rw")), has: []string{"file /run/vendor/gpu0"}},
		{name: "devices-of-a-directory", answers: grantsDevices(dev("/dev/all", "all", "rw")), has: []string{"device /dev/all/sub/b c", "device /dev/all/disk b", "device /dev/all/sub/console/c c"}},
		{name: "devices-of-a-directory-through-a-link", needs: exactly, answers: grantsDevices(dev("/dev/all", "all-link", "r")), has: []string{"device /dev/all/a c"}},
		{name: "devices-of-a-directory-without-a-place", answers: grantsDevices(dev("", "all", "rw")), has: []string{"file /run/vendor/all/a"}},
		{name: "device-twice", needs: exactly, answers: grantsDevices(dev("/dev/gpu0", "gpu0", "rw"), dev("/dev/gpu0", "gpu0", "rw"), dev("/dev/gpu1", "gpu1", "r"), dev("/dev/gpu1", "gpu1", "rw")), open: []string{"/dev/gpu0", "/dev/gpu1"}, has: []string{"device /dev/gpu0 c"}},
		{name: "device-twice-at-two-places", answers: grantsDevices(dev("/dev/a", "gpu0", "rw"), dev("/dev/b", "gpu0", "r")), open: []string{"/dev/a", "/dev/b"}, has: []string{"open /dev/a for rw: opened", "open /dev/b for rw: opened"}},
		{name: "device-in-and-next-to-a-directory", needs: exactly, answers: grantsDevices(dev("/dev/all", "all", "rw"), dev("/dev/all/a", "gpu0", "rw")), has: []string{"device /dev/all/a c 10:229", "rule c 10:237 rw"}},
		{name: "device-in-place-of-a-common-one", answers: grantsDevices(dev("/dev/zero", "gpu0", "rw")), has: []string{"device /dev/zero c 10:237"}},
		{
			name: "device-in-a-privileged-container", answers: grantsDevices(dev("/dev/gpu0", "gpu0", "r"), dev("/dev/fuse", "gpu0", "rw")), open: []string{"/dev/gpu0"},
			pod: func(p *corev1.Pod) {
				yes := true
				p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
			},
			has: []string{"open /dev/gpu0 for rw: opened", "device /dev/fuse c 10:237", "rule a *:* rwm"},
		},
		{name: "device-of-another-user", answers: grantsDevices(dev("/dev/gpu0", "gpu0", "rw"), dev("/dev/gpu1", "gpu1", "rw")), open: []string{"/dev/gpu0", "/dev/gpu1"}, pod: runAs(1000), has: []string{"open /dev/gpu0 for r: open /dev/gpu0: permission denied"}},
	}
}

func runAs(user int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &user, RunAsGroup: &user}
	}
}

// permissions has a twin for each way to write them: what may be done is the same, and enforced.
func permissions() []twin {
	var all []twin
	for _, granted := range []string{"r", "w", "rw", "wr", "m", "rm", "wm", "rwm", "mrw"} {
		char := twin{name: "permissions-" + granted, answers: grantsDevices(dev("/dev/gpu0", "gpu0", granted)), open: []string{"/dev/gpu0"}}
		disk := twin{
			name: "permissions-" + granted + "-of-a-disk", answers: grantsDevices(dev("/dev/disk0", "disk0", granted)),
			open: []string{"/dev/disk0"}, has: []string{"device /dev/disk0 b 7:0 0660"},
		}
		if strings.Trim("rw", granted) != "" {
			char.needs, disk.needs = exactly, exactly
		}
		for _, how := range []string{"r", "w", "rw"} {
			if strings.Trim(how, granted) == "" {
				char.has = append(char.has, "open /dev/gpu0 for "+how+": opened")
				continue // there need not be a disk behind the node
			}
			char.has = append(char.has, "open /dev/gpu0 for "+how+": open /dev/gpu0: operation not permitted")
			disk.has = append(disk.has, "open /dev/disk0 for "+how+": open /dev/disk0: operation not permitted")
		}
		all = append(all, char, disk)
	}
	return all
}

func others() []twin {
	return []twin{
		{
			name: "everything", needs: exactly, open: []string{"/dev/gpu0", "/dev/gpu1"},
			answers: []*plugintest.Answer{{
				Envs: map[string]string{"GPU": "0"}, Mounts: []*pluginapi.Mount{mountReadOnly("/opt/driver", "driver")},
				Devices:     []*pluginapi.DeviceSpec{dev("/dev/gpu0", "gpu0", "rw"), dev("/dev/gpu1", "gpu1", "r")},
				Annotations: map[string]string{"vendor.example/slot": "3"},
			}},
			// The kubelet's reach the OCI specification only if the runtime's configuration lists them.
			differs: []string{"+annotation vendor.example/slot=3"},
			has:     []string{"env GPU=0", "mount /opt/driver [", "device /dev/gpu0 c", "device /dev/gpu1 c"},
		},
		{name: "nothing", answers: []*plugintest.Answer{{}}},
		{
			name: "two-resources", needs: exactly,
			answers: []*plugintest.Answer{
				{Envs: map[string]string{"A": "1", "BOTH": "1"}, Devices: []*pluginapi.DeviceSpec{dev("/dev/a", "gpu0", "rw")}, Mounts: []*pluginapi.Mount{mount("/opt/a", "driver")}},
				{Envs: map[string]string{"B": "2", "BOTH": "1"}, Devices: []*pluginapi.DeviceSpec{dev("/dev/b", "gpu1", "r")}, Mounts: []*pluginapi.Mount{mount("/opt/a", "driver"), mount("/opt/b", "driver")}},
			},
			open: []string{"/dev/a", "/dev/b"},
			has:  []string{"env A=1", "env B=2", "device /dev/a c", "device /dev/b c", "mount /opt/b ["},
		},
		{
			// The kubelet takes the first answer that comes, devmgrd that of the first name.
			name: "two-resources-in-conflict",
			answers: []*plugintest.Answer{
				{Envs: map[string]string{"BOTH": "1", "A": "1"}, Devices: []*pluginapi.DeviceSpec{dev("/dev/both", "gpu0", "rw")}, Mounts: []*pluginapi.Mount{mountReadOnly("/opt/both", "driver")}},
				{Envs: map[string]string{"BOTH": "2", "B": "1"}, Devices: []*pluginapi.DeviceSpec{dev("/dev/both", "gpu1", "rw")}, Mounts: []*pluginapi.Mount{mount("/opt/both", "all")}},
			},
			lot: []string{"env BOTH=", "device /dev/both ", "file /dev/both ", "mount /opt/both ", "rule c "},
			has: []string{"env BOTH=1", "env A=1", "env B=1", "device /dev/both c 10:237", "mount /opt/both [ro", "rule c 10:237 rw"},
		},
	}
}
