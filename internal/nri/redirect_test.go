package nri

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
)

func TestRedirect(t *testing.T) {
	t.Parallel()
	r := Redirect{
		From: "/var/lib/kubelet/device-plugins", To: "/run/devmgrd/device-plugins",
		RegistryFrom: "/var/lib/kubelet/plugins_registry", RegistryTo: "/run/devmgrd/plugins_registry",
	}
	for _, test := range []struct{ name, mounts, instead, shared string }{
		{"both directories", "/var/lib/kubelet/device-plugins > /d rbind,rprivate,rw; /var/lib/kubelet/plugins_registry > /r rbind,rprivate,rw",
			"/run/devmgrd/device-plugins > /d rbind,rprivate,rw; /run/devmgrd/plugins_registry > /r rbind,rprivate,rw", ""},
		{"a CSI driver", "/var/lib/kubelet/plugins_registry > /registration rbind,rprivate,rw; /var/lib/kubelet/plugins/csi > /csi rbind,rprivate,rw", "", ""},
		{"a CSI driver that asks for it", "annotated; /var/lib/kubelet/plugins_registry > /r rbind,rprivate,rw", "/run/devmgrd/plugins_registry > /r rbind,rprivate,rw", ""},
		{"the directory", "/var/lib/kubelet/device-plugins > /plugins rbind,rprivate,rw", "/run/devmgrd/device-plugins > /plugins rbind,rprivate,rw", ""},
		{"with a slash", "/var/lib/kubelet/device-plugins/ > /plugins rbind,rslave,ro", "/run/devmgrd/device-plugins > /plugins rbind,rslave,ro", ""},
		{"the socket", "/var/lib/kubelet/device-plugins/kubelet.sock > /k.sock rbind,rprivate,rw", "/run/devmgrd/device-plugins/kubelet.sock > /k.sock rbind,rprivate,rw", ""},
		{"the parent", "/var/lib/kubelet > /var/lib/kubelet rbind,rslave,rw", "/run/devmgrd/device-plugins > /var/lib/kubelet/device-plugins rbind,rprivate,rw", ""},
		{"the root", "/ > /host rbind,rprivate,ro", "/run/devmgrd/device-plugins > /host/var/lib/kubelet/device-plugins rbind,rprivate,ro", ""},
		{"a parent shared with the host", "/var/lib/kubelet > /var/lib/kubelet rbind,rshared,rw", "", "/var/lib/kubelet"},
		{"both", "/var/lib/kubelet > /k rbind,rprivate,rw; /var/lib/kubelet/device-plugins > /k/device-plugins rbind,rprivate,rw",
			"/run/devmgrd/device-plugins > /k/device-plugins rbind,rprivate,rw; /run/devmgrd/plugins_registry > /k/plugins_registry rbind,rprivate,rw", ""},
		{"the root, with a volume on the way", "/ > /host rbind,rprivate,ro; /data > /host/var/lib/kubelet rbind,rprivate,ro", "", ""},
		{"two parents", "/ > /host rbind,rslave,ro; /var/lib > /host/var/lib rbind,rslave,ro",
			"/run/devmgrd/device-plugins > /host/var/lib/kubelet/device-plugins rbind,rprivate,ro", ""},
		{"neighbours", "/var/lib/kubelet/device-plugins-old > /a rbind; /var/lib/kubelet/plugins_registry > /b rbind; /var/lib/kub > /c rbind; /etc/hosts > /etc/hosts rbind", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var mounts []*api.Mount
			asked := false
			for text := range strings.SplitSeq(test.mounts, "; ") {
				if text == "annotated" {
					asked = true
					continue
				}
				f := strings.Fields(text)
				mounts = append(mounts, &api.Mount{Type: "bind", Source: f[0], Destination: f[2], Options: strings.Split(f[3], ",")})
			}
			instead, shared := r.mounts(mounts, asked)
			var got []string
			for _, m := range instead {
				got = append(got, m.Source+" > "+m.Destination+" "+strings.Join(m.Options, ","))
			}
			if strings.Join(got, "; ") != test.instead {
				t.Errorf("redirected to %q, want %q", got, test.instead)
			}
			if strings.Join(shared, " ") != test.shared {
				t.Errorf("shared %q, want %q", shared, test.shared)
			}
		})
	}
	// What the runtime mounts itself is not a bind mount, and never ours to lead.
	instead, _ := r.mounts([]*api.Mount{{Type: "tmpfs", Source: "/var/lib/kubelet/device-plugins", Destination: "/x"}}, true)
	if !slices.Equal(instead, nil) {
		t.Errorf("a tmpfs was redirected: %v", instead)
	}
}
