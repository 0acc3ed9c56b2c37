package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"testing"
)

// The bill lists each module that the linker has recorded, what replaces it, and Go's standard library. That the packages' bill is
// that of their binary is tested where they are installed.
func TestBillOf_Modules_AreListed(t *testing.T) {
	info := &debug.BuildInfo{GoVersion: "go1.26.0", Main: debug.Module{Path: "github.com/devmgrd/devmgrd", Version: "(devel)"}, Deps: []*debug.Module{
		{Path: "z.example/last", Version: "v2.0.0+incompatible", Sum: "h1:abc="},
		{Path: "a.example/gone", Version: "v1.0.0", Replace: &debug.Module{Path: "b.example/fork", Version: "v1.0.1"}},
	}}
	got := billOf(info, "v1.2.3", sha256.Sum256([]byte("binary")))
	if got.Format != "CycloneDX" || got.SpecVersion != "1.6" || got.Metadata.Component.PURL != "pkg:golang/github.com/devmgrd/devmgrd@v1.2.3" {
		t.Errorf("the bill is of %+v", got.Metadata)
	}
	if !regexp.MustCompile(`^urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(got.SerialNumber) {
		t.Errorf("the serial number is %s", got.SerialNumber)
	}
	want := []string{"pkg:golang/b.example/fork@v1.0.1", "pkg:golang/std@1.26.0", "pkg:golang/z.example/last@v2.0.0%2Bincompatible"}
	var has []string
	for _, c := range got.Components {
		has = append(has, c.PURL)
	}
	if !slices.Equal(has, want) || !slices.Equal(got.Dependencies[0].DependsOn, want) {
		t.Errorf("the bill lists %q, want %q", has, want)
	}
	if sums := got.Components[2].Properties; len(sums) != 1 || sums[0].Value != "h1:abc=" {
		t.Errorf("the checksum is %v", sums)
	}
}

// The bill is JSON that a strict reader takes, and of the same binary it is the same.
func TestRun_Binary_SameBytes(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var one, other bytes.Buffer
	for _, to := range []*bytes.Buffer{&one, &other} {
		if err := run(to, self, "v1.2.3"); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(one.Bytes(), other.Bytes()) {
		t.Error("the same binary has two bills")
	}
	var got bill
	decoder := json.NewDecoder(&one)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&got); err != nil || len(got.Components) == 0 {
		t.Errorf("the bill lists %v, %v", got.Components, err)
	}
	if err := run(&other, self+".none", ""); err == nil {
		t.Error("a file that is not there has a bill")
	}
}
