// Command sbom writes the bill of materials of a Go binary: the modules that the linker has recorded in it, as CycloneDX 1.6 in
// JSON. The same binary yields the same bytes.
//
//	sbom -version v1.2.3 BINARY > sbom.cdx.json
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
)

func main() {
	version := flag.String("version", "devel", "the version of the binary")
	flag.Parse()
	if err := run(os.Stdout, flag.Arg(0), *version); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(to io.Writer, binary, version string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	out := json.NewEncoder(to)
	out.SetIndent("", "  ")
	out.SetEscapeHTML(false)
	return out.Encode(billOf(info, version, sha256.Sum256(content)))
}

// A bill is the document, as far as CycloneDX is used here.
type bill struct {
	Format       string       `json:"bomFormat"`
	SpecVersion  string       `json:"specVersion"`
	SerialNumber string       `json:"serialNumber"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Ref        string     `json:"bom-ref"`
	Type       string     `json:"type"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	Scope      string     `json:"scope,omitempty"`
	PURL       string     `json:"purl"`
	Hashes     []hash     `json:"hashes,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn,omitempty"`
}

// billOf returns the bill of a binary. The linker records modules, and not which of them needs which: all are needed by the binary.
func billOf(info *debug.BuildInfo, version string, sum [sha256.Size]byte) bill {
	main := moduleOf(debug.Module{Path: info.Main.Path, Version: version}, "application")
	main.Hashes = []hash{{"SHA-256", hex.EncodeToString(sum[:])}}
	parts := []component{moduleOf(debug.Module{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}, "library")}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		parts = append(parts, moduleOf(*m, "library"))
	}
	slices.SortFunc(parts, func(a, b component) int { return strings.Compare(a.Ref, b.Ref) })
	needs := dependency{Ref: main.Ref}
	for _, p := range parts {
		needs.DependsOn = append(needs.DependsOn, p.Ref)
	}
	return bill{
		Format: "CycloneDX", SpecVersion: "1.6", Version: 1,
		SerialNumber: serial(sum),
		Metadata:     metadata{main}, Components: parts, Dependencies: []dependency{needs},
	}
}

// moduleOf returns the entry of one module. The checksum is Go's, of the module's files, as in go.sum.
func moduleOf(m debug.Module, kind string) component {
	url := "pkg:golang/" + m.Path + "@" + strings.ReplaceAll(m.Version, "+", "%2B")
	c := component{Ref: url, Type: kind, Name: m.Path, Version: m.Version, PURL: url}
	if kind == "library" {
		c.Scope = "required"
	}
	if m.Sum != "" {
		c.Properties = []property{{"go:sum", m.Sum}}
	}
	return c
}

// serial makes a UUID of a checksum: of version 5, whose bits come from a hash.
func serial(sum [sha256.Size]byte) string {
	sum[6] = sum[6]&0x0f | 0x50
	sum[8] = sum[8]&0x3f | 0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}
