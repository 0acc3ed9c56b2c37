package cdi_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/devmgrd/devmgrd/internal/cdi"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// Containers read the metadata of their devices whether the request has a guard or not, after a restart of devmgrd, and after another process has removed
// the file. It goes with the claim.
func TestMetadata_IsInEachContainerOfTheRequest(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.give(one, "claim-1", map[string]string{"a": "0,1"})
	f := n.open("boot")
	c := claim(one)
	c.Metadata = map[string]cdi.Metadata{"a": {Path: "/var/run/a.json", Text: []byte("of a")}, "b": {Path: "/var/run/b.json", Text: []byte("of b")}}
	if _, err := f.Prepare(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	reads := func(device, path string) string {
		spec, err := n.inject(device)
		if err != nil {
			return err.Error()
		}
		for _, m := range spec.Mounts {
			if m.Destination != path {
				continue
			}
			if !slices.Contains(m.Options, "ro") {
				t.Errorf("options %v", m.Options)
			}
			info, err := os.Stat(m.Source)
			if err != nil {
				return err.Error()
			}
			if info.Mode() != 0o644 {
				t.Errorf("mode %v", info.Mode())
			}
			text, _ := os.ReadFile(m.Source)
			return string(text)
		}
		return "nothing"
	}
	check := func(when string) {
		t.Helper()
		if a, b := reads(a0, "/var/run/a.json"), reads(b2, "/var/run/b.json"); a != "of a" || b != "of b" {
			t.Errorf("%s: containers read %q and %q", when, a, b)
		}
		if a, b := n.gets(a0), n.gets(b2); a != "GPU=0,1" || b != "guard" {
			t.Errorf("%s: containers get %q and %q", when, a, b)
		}
	}
	check("prepared")
	f = n.open("boot")
	n.run(f)
	plugintest.Eventually(t, "the guard is as it was", func() bool { return n.gets(b2) == "guard" })
	check("after a restart")
	if file, _ := f.File(requests[0]); !file.Grant.Equal(grant("0,1")) {
		t.Errorf("the hook compares with %+v", file.Grant)
	}
	for _, name := range []string{"devmgrd.io-claim_claim-1_a.metadata", "devmgrd.io-claim_claim-1_b.metadata"} {
		if err := os.Remove(filepath.Join(n.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	plugintest.Eventually(t, "they are written again", func() bool { return reads(a0, "/var/run/a.json") == "of a" && reads(b2, "/var/run/b.json") == "of b" })
	n.end(one)
	f.Unprepared("claim-1")
	plugintest.Eventually(t, "all files are removed", func() bool {
		left, err := os.ReadDir(n.dir)
		return err == nil && len(left) == 0
	})
}

// Metadata whose request has no file any longer are removed, and a file whose metadata are missing is written by the next preparation.
func TestMetadata_OneOfTheFilesIsMissing_OtherIsRemoved(t *testing.T) {
	t.Parallel()
	for _, missing := range []string{"devmgrd.io-claim_claim-1_a.json", "devmgrd.io-claim_claim-1_a.metadata"} {
		n := newNode(t)
		n.give(one, "claim-1", map[string]string{"a": "0,1"})
		c := claim(one)
		c.Devices = c.Devices[:2]
		c.Metadata = map[string]cdi.Metadata{"a": {Path: "/var/run/a.json", Text: []byte("of a")}}
		if _, err := n.open("boot").Prepare(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(n.dir, missing)); err != nil {
			t.Fatal(err)
		}
		n.open("boot")
		if left, err := os.ReadDir(n.dir); err != nil || len(left) != 0 {
			t.Errorf("without %s, %v is left, %v", missing, left, err)
		}
	}
}
