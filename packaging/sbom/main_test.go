package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The bill of the daemon's binary lists each module that is linked into it, and Go's standard library.
func TestRun_DaemonsBinary_ListsItsModules(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "devmgrd")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, "github.com/devmgrd/devmgrd/cmd/devmgrd")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		t.Fatal(err)
	}
	var one, other bytes.Buffer
	for _, to := range []*bytes.Buffer{&one, &other} {
		if err := run(to, binary, "v1.2.3+x"); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(one.Bytes(), other.Bytes()) {
		t.Error("the same binary has two bills")
	}
	var got bill
	decoder := json.NewDecoder(&one)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if got.Format != "CycloneDX" || got.SpecVersion != "1.6" || got.Metadata.Component.PURL != "pkg:golang/github.com/devmgrd/devmgrd@v1.2.3%2Bx" {
		t.Errorf("the bill is of %+v", got.Metadata)
	}
	if !regexp.MustCompile(`^urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(got.SerialNumber) {
		t.Errorf("the serial number is %s", got.SerialNumber)
	}
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")}
	for _, m := range info.Deps {
		want = append(want, "pkg:golang/"+m.Path+"@"+m.Version)
	}
	slices.Sort(want)
	var has []string
	for _, c := range got.Components {
		has = append(has, c.PURL)
	}
	if len(want) < 20 || !slices.Equal(has, want) || !slices.Equal(got.Dependencies[0].DependsOn, want) {
		t.Errorf("the bill lists %q, want %q", has, want)
	}
	if err := run(&other, os.Args[0]+".none", ""); err == nil {
		t.Error("a file that is not there has a bill")
	}
}
