//go:build e2e

package e2e

import (
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

const cdiFile = "/etc/cdi/vendor.yaml"

const cdiText = `cdiVersion: 0.6.0
kind: vendor.example/cdi
containerEdits:
  env: [CDI=all]
devices:
- name: node
  containerEdits:
    env: [CDI_NODE=1]
    deviceNodes:
    - {path: /dev/cdi, hostPath: /run/vendor/gpu0}
- name: read
  containerEdits:
    deviceNodes:
    - {path: /dev/cdi, hostPath: /run/vendor/gpu0, permissions: r, uid: 7, gid: 7, fileMode: 432}
- name: mount
  containerEdits:
    mounts:
    - {hostPath: /run/vendor/all, containerPath: /opt/driver, options: [rbind, ro]}
- name: secret
  containerEdits:
    mounts:
    - {hostPath: /run/vendor/secret, containerPath: /opt/secret, options: [rbind, rw]}
- name: hook
  containerEdits:
    hooks:
    - {hookName: createContainer, path: /bin/true}
`

func cdi() []twin {
	field := func(names ...string) *plugintest.Answer {
		a := &plugintest.Answer{}
		for _, name := range names {
			a.CdiDevices = append(a.CdiDevices, &pluginapi.CDIDevice{Name: "vendor.example/cdi=" + name})
		}
		return a
	}
	with := func(a *plugintest.Answer, all ...*pluginapi.DeviceSpec) []*plugintest.Answer {
		a.Devices = all
		return []*plugintest.Answer{a}
	}
	annotated := &plugintest.Answer{Annotations: map[string]string{"cdi.k8s.io/vendor": "vendor.example/cdi=node,vendor.example/cdi=mount"}}
	both := field("mount", "node")
	both.Annotations = map[string]string{"cdi.k8s.io/vendor": "vendor.example/cdi=node,vendor.example/cdi=hook"}
	env, mounted := field("node"), field("mount")
	env.Envs = map[string]string{"CDI": "the plugin's", "CDI_NODE": "the plugin's"}
	mounted.Mounts = []*pluginapi.Mount{mount("/opt/driver", "driver"), mount("/opt/other", "driver")}
	all := []twin{
		{name: "cdi", answers: []*plugintest.Answer{field("node", "hook")}, open: []string{"/dev/cdi"}, has: []string{"device /dev/cdi c 10:237", "env CDI=all", "spec.hooks.createContainer.0.path=/bin/true"}},
		{name: "cdi-by-annotation", answers: []*plugintest.Answer{annotated}, has: []string{"device /dev/cdi c 10:237", "mount /opt/driver ["}},
		{name: "cdi-by-both", answers: []*plugintest.Answer{both}, has: []string{"device /dev/cdi c 10:237", "mount /opt/driver [", "spec.hooks.createContainer.0.path=/bin/true"}},
		{name: "cdi-and-env", answers: []*plugintest.Answer{env}, pod: setsEnv("CDI=the pod's"), has: []string{"env CDI=all", "env CDI_NODE=1"}},
		{name: "cdi-and-mount", answers: []*plugintest.Answer{mounted}, has: []string{"mount /opt/driver [", "mount /opt/other ["}},
		{name: "cdi-and-device", needs: exactly, answers: with(field("node"), dev("/dev/cdi", "gpu1", "rw")), open: []string{"/dev/cdi"}, pod: runAs(1000), has: []string{"device /dev/cdi c 10:237 0640 1000:1000", "rule c 10:229 rw"}},
		{name: "cdi-and-read-only-device", answers: with(field("node"), dev("/dev/cdi", "gpu0", "r")), open: []string{"/dev/cdi"}, has: []string{"open /dev/cdi for rw: opened"}},
		{name: "cdi-and-read-only-device-elsewhere", answers: with(field("node"), dev("/dev/other", "gpu0", "r")), open: []string{"/dev/cdi", "/dev/other"}, has: []string{"open /dev/other for rw: opened"}},
		{name: "cdi-read-only-and-device", needs: exactly, answers: with(field("read"), dev("/dev/cdi", "gpu0", "w")), open: []string{"/dev/cdi"}, has: []string{"device /dev/cdi c 10:237 0660 7:7", "open /dev/cdi for rw: opened"}},
	}
	for i := range all {
		all[i].needs = append([]cluster.Feature{cluster.CDI}, all[i].needs...)
	}
	return all
}
