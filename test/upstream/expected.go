package upstream

import (
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Sides are the device managers that the suite runs against.
var Sides = []string{"kubelet", "devmgrd"}

// A File is one of upstream's files, with the expectations of its specs.
type File struct {
	File    string    `json:"file"`
	Under   string    `json:"under"` // the words that the names of all specs begin with, after the tags; empty: there are none
	Specs   []Spec    `json:"specs"`
	Skipped []Skipped `json:"skipped"`
}

// A Spec is one that runs, with its outcome on each side.
type Spec struct {
	Spec    string   `json:"spec"` // the full name, as ginkgo reports it
	Kubelet Outcome  `json:"kubelet"`
	Devmgrd Outcome  `json:"devmgrd"`
	Reason  string   `json:"reason"`  // why an outcome is not pass
	Failure string   `json:"failure"` // a part of upstream's message where devmgrd fails
	Or      []string `json:"or"`      // parts of other messages for the same failure
	Proof   string   `json:"proof"`   // devmgrd's own tests of the same, in the form of test/conformance.yaml
}

// Skipped are specs of a file that skip themselves on both sides.
type Skipped struct {
	Specs  int    `json:"specs"`  // the number of them
	Says   string `json:"says"`   // a part of upstream's own message
	Reason string `json:"reason"` // what the specs need
	CPUs   int    `json:"cpus"`   // on a machine with so many CPUs the specs run; 0: the number does not matter
	NUMA   int    `json:"numa"`   // on a machine with so many NUMA nodes the specs run
	Proof  string `json:"proof"`  // devmgrd's own tests of the same
}

//go:embed expected.yaml
var expected []byte

// Expected returns the expectations, file by file.
func Expected() ([]File, error) {
	var all struct {
		Files []File `json:"files"`
	}
	if err := yaml.UnmarshalStrict(expected, &all); err != nil {
		return nil, fmt.Errorf("reading expected.yaml: %w", err)
	}
	return all.Files, validate(all.Files)
}

// validate reports what the expectations lack.
func validate(files []File) error {
	var wrong []error
	known := map[string]bool{}
	for _, f := range files {
		for _, s := range f.Specs {
			if known[s.Spec] {
				wrong = append(wrong, fmt.Errorf("%s: listed twice", s.Spec))
			}
			known[s.Spec] = true
			for side, outcome := range map[string]Outcome{"kubelet": s.Kubelet, "devmgrd": s.Devmgrd} {
				switch {
				case outcome == Pass, outcome == Fail:
				case outcome == Either && side == "kubelet":
				default:
					wrong = append(wrong, fmt.Errorf("%s: %s: outcome %q", s.Spec, side, outcome))
				}
			}
			if (s.Devmgrd == Fail) != (s.Failure != "") {
				wrong = append(wrong, fmt.Errorf("%s: a message without a failure of devmgrd, or a failure without a message", s.Spec))
			}
			if (s.Kubelet != Pass || s.Devmgrd != Pass) && s.Reason == "" {
				wrong = append(wrong, fmt.Errorf("%s: no reason", s.Spec))
			}
		}
		for _, s := range f.Skipped {
			if s.Specs < 1 || s.Says == "" || s.Reason == "" {
				wrong = append(wrong, fmt.Errorf("%s: skipped specs without a number, upstream's words or a reason", f.File))
			}
		}
	}
	return errors.Join(wrong...)
}

// saysIn reports whether upstream's message is one of the failure that is expected.
func (s Spec) saysIn(message string) bool {
	return slices.ContainsFunc(append([]string{s.Failure}, s.Or...), func(part string) bool { return strings.Contains(message, part) })
}

// outcome returns what is expected of the spec on a side.
func (s Spec) outcome(side string) Outcome {
	if side == "kubelet" {
		return s.Kubelet
	}
	return s.Devmgrd
}

// Short returns the name of a spec of the file without tags, and without the words of f.Under.
func (f File) Short(spec string) string {
	return strings.TrimSpace(strings.TrimPrefix(untagged(spec), f.Under))
}

var tag = regexp.MustCompile(`\[[^\]]*\]`)

// untagged returns the name of a spec without tags such as [Serial].
func untagged(spec string) string {
	return strings.Join(strings.Fields(tag.ReplaceAllString(spec, "")), " ")
}
