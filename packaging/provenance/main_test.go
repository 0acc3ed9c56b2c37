package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

func TestRun_Statement_NamesFilesCommitAndBuilder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "devmgrd-1.2.3.tgz")
	if err := os.WriteFile(file, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	for _, to := range []*bytes.Buffer{&first, &second} {
		if err := run(to, source{tag: "v1.2.3", commit: "abc", builder: "https://b.example/release.yaml@refs/tags/v1.2.3"}, []string{file}); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two statements of the same files differ")
	}
	var s struct {
		Type          string `json:"_type"`
		PredicateType string
		Subject       []struct {
			Name   string
			Digest map[string]string
		}
		Predicate struct {
			BuildDefinition struct {
				ResolvedDependencies []struct {
					URI    string
					Digest map[string]string
				}
			}
			RunDetails struct{ Builder struct{ ID string } }
		}
	}
	if err := json.Unmarshal(first.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	if s.Type != "https://in-toto.io/Statement/v1" || s.PredicateType != "https://slsa.dev/provenance/v1" ||
		len(s.Subject) != 1 || s.Subject[0].Name != "devmgrd-1.2.3.tgz" ||
		s.Subject[0].Digest["sha256"] != "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881" ||
		s.Predicate.BuildDefinition.ResolvedDependencies[0].Digest["gitCommit"] != "abc" ||
		s.Predicate.RunDetails.Builder.ID != "https://b.example/release.yaml@refs/tags/v1.2.3" {
		t.Errorf("got %s", first.String())
	}
	if run(&first, source{tag: "v1.2.3", commit: "abc"}, nil) == nil {
		t.Error("a statement of no files is written")
	}
}
