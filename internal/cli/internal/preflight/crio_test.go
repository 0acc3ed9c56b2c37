package preflight

import (
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	shipped "github.com/devmgrd/devmgrd/packaging/crio"
)

// crioAt answers on a unix socket as CRI-O does next to its CRI: GET /config returns the configuration in force as TOML.
func crioAt(t *testing.T, status int, config string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "crio.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /config", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/toml")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(config))
	})
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(l) }() // ends with Close
	t.Cleanup(func() { _ = server.Close() })
	return path
}

func TestReadCRIO(t *testing.T) {
	const runtimes = "[crio.runtime]\ndefault_runtime = \"crun\"\ncgroup_manager = \"systemd\"\n"
	for name, test := range map[string]struct {
		status int
		config string
		want   CRIO
		fails  string
	}{
		"the defaults":        {200, runtimes + "[crio.nri]\nenable_nri = true\n[crio.nri.default_validator]\nnri_enable_default_validator = false\n", CRIO{OCI: "crun", CgroupDriver: "systemd"}, ""},
		"devmgrd's drop-in":   {200, runtimes + shipped.Config, CRIO{Validator: true, OCI: "crun", CgroupDriver: "systemd"}, ""},
		"a required plugin":   {200, shipped.Config + "nri_validator_required_plugins = [\"devmgrd\"]\n", CRIO{Validator: true, Required: []string{"devmgrd"}}, ""},
		"not a configuration": {200, "{", CRIO{}, "CRI-O's configuration, from "},
		"an error":            {500, "x", CRIO{}, "answers 500"},
	} {
		got, err := readCRIO(t.Context(), crioAt(t, test.status, test.config))
		if (err != nil) != (test.fails != "") || err != nil && !strings.Contains(err.Error(), test.fails) {
			t.Errorf("%s: %v, want %q", name, err, test.fails)
		}
		if got.Validator != test.want.Validator || got.OCI != test.want.OCI || got.CgroupDriver != test.want.CgroupDriver || !slices.Equal(got.Required, test.want.Required) {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
	if _, err := readCRIO(t.Context(), filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a CRI-O that does not run has a configuration")
	}
}
