package rules

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/devmgrd/devmgrd/"

// base are the rooms that others may import: the words, and the way to the API server for those who watch it. Rooms do
// not import their siblings: data goes one way through them, and cmd/devmgrd alone knows who meets whom.
var base = map[string][]string{
	"internal/device":    {"internal/plugindir", "internal/allocator/allocatortest", "internal/admin", "internal/page", "internal/pluginrules", "internal/preflight", "config", "internal/allocator", "internal/checkpoint", "internal/failures", "internal/feed", "internal/history", "internal/nodestatus", "internal/nri", "internal/placement", "internal/podresources", "internal/pods", "internal/registry", "internal/store"},
	"internal/backoff":   {"internal/admin", "cmd/devmgrd", "internal/checkpoint", "internal/history", "internal/kube", "internal/nodestatus", "internal/nri", "internal/podresources", "internal/pods", "internal/registry"},
	"internal/connlimit": {"internal/podresources", "internal/registry"},
	"internal/socket":    {"internal/admin", "internal/cri", "internal/podresources", "internal/registry"},
	"internal/shareddir": {"internal/plugindir", "internal/admin", "internal/checkpoint", "internal/nodestatus", "internal/nri", "internal/podresources", "internal/registry", "internal/socket"},
	"internal/plugindir": {"internal/registry"},
	"internal/visible":   {"internal/page"},
	"internal/kube":      {"internal/nodestatus", "internal/pods", "internal/kube/kubetest"},

	"api/devmgrd/podresources/v1": {"internal/podresources"},
	"api/podresources/v1alpha1":   {"internal/podresources"},
	"internal/allocator":          {"internal/allocator/allocatortest"},
	"internal/store":              {"internal/allocator/allocatortest"},
	"internal/failures":           {"internal/allocator"},
	"internal/feed":               {"internal/allocator"},
	"internal/placement":          {"internal/allocator", "internal/allocator/allocatortest"},
	"api/devmgrd/admin/v1":        {"internal/admin", "internal/page"},
}

// libraries belong to the rooms named: what they are made of stays behind their doors.
var libraries = map[string][]string{
	"go.etcd.io/bbolt":                             {"internal/store"},
	"github.com/containerd/nri":                    {"internal/nri"},
	"github.com/containerd/ttrpc":                  {"internal/nri"},
	"k8s.io/kubelet/pkg/apis/deviceplugin":         {"internal/registry", "internal/checkpoint", "internal/plugintest"},
	"k8s.io/kubelet/pkg/apis/pluginregistration":   {"internal/registry", "internal/plugintest"},
	"google.golang.org/grpc":                       {"cmd/devmgrd", "internal/admin", "api/devmgrd/admin/v1", "internal/cri", "internal/registry", "internal/plugintest", "internal/podresources", "api/devmgrd/podresources/v1", "api/podresources/v1alpha1"},
	"k8s.io/kubelet/pkg/apis/podresources":         {"internal/podresources", "api/podresources/v1alpha1"},
	"k8s.io/client-go":                             {"internal/kube", "internal/pods", "internal/nodestatus", "internal/kube/kubetest"},
	"k8s.io/api":                                   {"internal/kube", "internal/pods", "internal/nodestatus", "internal/kube/kubetest"},
	"k8s.io/utils":                                 {"internal/checkpoint"},
	"k8s.io/cri-api":                               {"internal/cri"},
	"github.com/pelletier/go-toml":                 {"internal/cri"},
	"github.com/spf13/viper":                       {"config"},
	"github.com/spf13/cobra":                       {"cmd/devmgrd"},
	"github.com/coreos/go-systemd":                 {"cmd/devmgrd"},
	"github.com/prometheus/client_golang/promhttp": {"cmd/devmgrd"},
}

func TestImports(t *testing.T) {
	root := filepath.Join("..", "..")
	files := 0
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		switch below = filepath.ToSlash(below); {
		case entry.IsDir() && (below == "test" || strings.HasPrefix(entry.Name(), ".") && below != "."):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(below, ".go") || strings.HasSuffix(below, "_test.go"):
			return nil
		}
		files++
		source, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range source.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if why := forbidden(path.Dir(below), name); why != "" {
				t.Errorf("%s imports %s: %s", below, name, why)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 40 {
		t.Errorf("only %d files were read: is the root right?", files)
	}
}

// forbidden tells why a package may not import another, if so.
func forbidden(from, name string) string {
	if own, ok := strings.CutPrefix(name, module); ok {
		if from == "cmd/devmgrd" || slices.Contains(base[own], from) {
			return ""
		}
		return "rooms do not import each other; see base in this test for who may"
	}
	if (from == "internal/device" || from == "internal/placement") && strings.Contains(strings.Split(name, "/")[0], ".") {
		return from + " imports the standard library only"
	}
	for library, owners := range libraries {
		if (name == library || strings.HasPrefix(name, library+"/")) && !slices.Contains(owners, from) {
			return "that library belongs to " + strings.Join(owners, ", ")
		}
	}
	return ""
}

// A rule that nothing can break says nothing.
func TestForbidden(t *testing.T) {
	for _, test := range []struct {
		from, name string
		allowed    bool
	}{
		{"internal/allocator", module + "internal/device", true},
		{"internal/allocator", module + "internal/store", false},
		{"internal/nri", "go.etcd.io/bbolt", false},
		{"internal/store", "go.etcd.io/bbolt", true},
		{"internal/device", "golang.org/x/sys/unix", false},
		{"internal/device", "encoding/json", true},
		{"internal/placement", module + "internal/allocator", false},
		{"internal/placement", "github.com/prometheus/client_golang/prometheus", false},
		{"cmd/devmgrd", module + "internal/nri", true},
		{"config", module + "internal/device", true},
		{"config", module + "internal/nri", false},
	} {
		if got := forbidden(test.from, test.name) == ""; got != test.allowed {
			t.Errorf("%s imports %s: allowed %v, want %v", test.from, test.name, got, test.allowed)
		}
	}
}
