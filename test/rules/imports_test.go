package rules

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/devmgrd/devmgrd/"

// base are the packages that others may import, each with what lies below it. Packages on a device's path do not import their siblings: data
// goes one way through them, and wiring alone knows which package implements which interface. What lies below a directory internal/NAME
// belongs to that package: it imports the same, and the compiler says who imports it.
var base = map[string][]string{
	"internal/device": {"config", "internal/admin", "internal/allocator", "internal/cdi", "internal/cgroups", "internal/checkpoint", "internal/dra", "internal/history", "internal/kube", "internal/nodestatus", "internal/nri",
		"internal/podresources", "internal/pods", "internal/podstatus", "internal/reclaim", "internal/registry", "internal/socket", "internal/statuspage", "internal/store", "internal/units"},
	"internal/lists":   {"internal/admin", "internal/allocator", "internal/cdi", "internal/checkpoint", "internal/device", "internal/dra", "internal/history", "internal/kube", "internal/nri", "internal/podresources", "internal/pods", "internal/podstatus", "internal/reclaim", "internal/registry", "internal/statuspage", "internal/store"},
	"internal/loops":   {"internal/admin", "internal/allocator", "internal/cdi", "internal/checkpoint", "internal/dra", "internal/history", "internal/kube", "internal/nodestatus", "internal/nri", "internal/podresources", "internal/pods", "internal/podstatus", "internal/reclaim", "internal/registry", "internal/units"},
	"internal/locks":   {"internal/admin", "internal/allocator", "internal/cdi", "internal/checkpoint", "internal/dra", "internal/history", "internal/kube", "internal/loops", "internal/nodestatus", "internal/nri", "internal/podresources", "internal/pods", "internal/reclaim", "internal/registry", "internal/socket", "internal/statuspage", "internal/store", "internal/units"},
	"internal/socket":  {"internal/admin", "internal/checkpoint", "internal/cri", "internal/dra", "internal/nodestatus", "internal/nri", "internal/podresources", "internal/registry"},
	"internal/cdi":     {"internal/dra", "internal/nri"},
	"internal/cgroups": {"internal/nri", "internal/reclaim", "internal/socket"},
	"internal/cri":     {"internal/cdi"},
	"internal/kube":    {"internal/dra", "internal/nodestatus", "internal/pods", "internal/podstatus"},
	"internal/units":   {"internal/reclaim"},
	"internal/visible": {"internal/statuspage"},

	"api/devmgrd/admin/v1":        {"client", "internal/admin", "internal/statuspage"},
	"api/devmgrd/podresources/v1": {"internal/podresources"},
	"api/podresources/v1alpha1":   {"internal/podresources"},
}

// wiring are the packages that may import all others: the daemon, and what operators run next to it.
var wiring = []string{"internal/cli", "internal/daemon", "packaging/man"}

// libraries belong to the packages named, which do not show their types to others.
var libraries = map[string][]string{
	"go.etcd.io/bbolt":                             {"internal/store"},
	"tags.cncf.io/container-device-interface":      {"internal/cdi", "internal/nri"},
	"github.com/containerd/nri":                    {"internal/nri"},
	"github.com/containerd/ttrpc":                  {"internal/nri"},
	"github.com/containerd/log":                    {"internal/nri"},
	"k8s.io/kubelet/pkg/apis/deviceplugin":         {"internal/registry", "internal/checkpoint"},
	"k8s.io/kubelet/pkg/apis/pluginregistration":   {"internal/dra", "internal/registry"},
	"google.golang.org/grpc":                       {"client", "internal/dra", "internal/admin", "api/devmgrd/admin/v1", "internal/socket/peercreds", "internal/cri", "internal/cli/internal/preflight", "internal/registry", "internal/podresources", "api/devmgrd/podresources/v1", "api/podresources/v1alpha1"},
	"k8s.io/kubelet/pkg/apis/podresources":         {"internal/podresources", "api/podresources/v1alpha1"},
	"k8s.io/client-go":                             {"internal/dra", "internal/kube", "internal/pods", "internal/podstatus", "internal/nodestatus"},
	"k8s.io/api":                                   {"internal/dra", "internal/kube", "internal/pods", "internal/podstatus", "internal/nodestatus"},
	"k8s.io/dynamic-resource-allocation":           {"internal/dra"},
	"k8s.io/utils":                                 {"internal/checkpoint"},
	"k8s.io/cri-api":                               {"internal/cri", "internal/cli/internal/preflight"},
	"github.com/pelletier/go-toml":                 {"internal/cli/internal/preflight"},
	"github.com/spf13/viper":                       {"config"},
	"github.com/spf13/cobra":                       {"internal/cli", "packaging/man"},
	"github.com/coreos/go-systemd":                 {"internal/daemon", "internal/units"},
	"github.com/godbus/dbus":                       {"internal/units"},
	"github.com/prometheus/client_golang/promhttp": {"internal/daemon"},
}

// What serves one package alone lies below it, and a helper below the helper that it is nearest to: a reader of the tree sees who owns what.
func TestTree_DirectoriesOfInternal_AreFew(t *testing.T) {
	const most = 28
	files, err := os.ReadDir(filepath.Join(root, "internal"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) > most || len(files) < most/2 {
		t.Errorf("internal has %d directories, and may have %d", len(files), most)
	}
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
		case entry.IsDir() && (strings.HasSuffix(below, "test") || strings.HasPrefix(entry.Name(), ".") && below != "."): // helpers of tests import what they need
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

// forbidden returns why a package may not import another, if so.
func forbidden(from, name string) string {
	if own, ok := strings.CutPrefix(name, module); ok {
		importer, imported := ownerOf(from), ownerOf(own)
		if importer == imported || slices.Contains(wiring, importer) || from == "cmd/devmgrd" && own == "internal/cli" || slices.Contains(base[imported], importer) {
			return ""
		}
		return "packages do not import their siblings; see base in this test for who may"
	}
	pure := []string{"internal/device", "internal/allocator/internal/bitset", "internal/allocator/internal/ledger", "internal/allocator/internal/placement"}
	if slices.Contains(pure, from) && strings.Contains(strings.Split(name, "/")[0], ".") {
		return from + " imports no library but the standard one"
	}
	for library, owners := range libraries {
		if (name == library || strings.HasPrefix(name, library+"/")) && !slices.Contains(owners, from) {
			return "that library belongs to " + strings.Join(owners, ", ")
		}
	}
	return ""
}

// ownerOf returns the package directly in internal that a package lies below; others are their own.
func ownerOf(name string) string {
	if parts := strings.Split(name, "/"); parts[0] == "internal" && len(parts) > 2 {
		return path.Join(parts[:2]...)
	}
	return name
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
		{"internal/allocator/internal/placement", module + "internal/device", true},
		{"internal/allocator/internal/placement", module + "internal/store", false},
		{"internal/nri", module + "internal/socket/shareddir", true},
		{"internal/reclaim", module + "internal/reclaim/openers", true},
		{"internal/registry", module + "internal/reclaim/openers", false},
		{"internal/allocator/internal/placement", "github.com/prometheus/client_golang/prometheus", false},
		{"internal/allocator/internal/ledger", "github.com/prometheus/client_golang/prometheus", false},
		{"internal/cli", module + "internal/nri", true},
		{"cmd/devmgrd", module + "internal/cli", true},
		{"cmd/devmgrd", module + "internal/nri", false},
		{"config", module + "internal/device", true},
		{"config", module + "internal/nri", false},
	} {
		if got := forbidden(test.from, test.name) == ""; got != test.allowed {
			t.Errorf("%s imports %s: allowed %v, want %v", test.from, test.name, got, test.allowed)
		}
	}
}
