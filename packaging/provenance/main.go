// Command provenance writes where the files of a release come from: an in-toto statement of SLSA provenance, version 1. The same
// files, tag and commit yield the same bytes. release.yaml signs the statement with its own identity.
//
//	provenance -tag v1.2.3 -commit HASH -builder URL FILE... > provenance.intoto.json
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

const repository = "https://github.com/devmgrd/devmgrd"

func main() {
	var s source
	flag.StringVar(&s.tag, "tag", "", "the release's tag")
	flag.StringVar(&s.commit, "commit", "", "the commit that was built")
	flag.StringVar(&s.builder, "builder", "", "the URI of what has built it: the workflow with its tag, or empty for a build by hand")
	flag.Parse()
	if err := run(os.Stdout, s, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "provenance:", err)
		os.Exit(1)
	}
}

type source struct{ tag, commit, builder string }

type object = map[string]any

func run(to io.Writer, s source, files []string) error {
	if s.tag == "" || s.commit == "" || len(files) == 0 {
		return errors.New("-tag, -commit and the files are required")
	}
	if s.builder == "" {
		s.builder = repository + "/blob/" + s.tag + "/scripts/release"
	}
	var subjects []object
	for _, file := range files {
		digest, err := digestOf(file)
		if err != nil {
			return err
		}
		subjects = append(subjects, object{"name": filepath.Base(file), "digest": object{"sha256": digest}})
	}
	out := json.NewEncoder(to)
	out.SetIndent("", "  ")
	out.SetEscapeHTML(false)
	return out.Encode(object{
		"_type":         "https://in-toto.io/Statement/v1",
		"subject":       subjects,
		"predicateType": "https://slsa.dev/provenance/v1",
		"predicate": object{
			"buildDefinition": object{
				"buildType":          repository + "/blob/main/scripts/release",
				"externalParameters": object{"tag": s.tag},
				"internalParameters": object{"go": runtime.Version()},
				"resolvedDependencies": []object{
					{"uri": "git+" + repository + "@refs/tags/" + s.tag, "digest": object{"gitCommit": s.commit}},
				},
			},
			"runDetails": object{"builder": object{"id": s.builder}},
		},
	})
}

func digestOf(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("reading %s: %w", file, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
