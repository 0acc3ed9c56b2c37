package upstream

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// An Outcome is the result of one spec on one side.
type Outcome string

// The outcomes of a spec. Either is an expectation only: a spec that passes at times and fails at times.
const (
	Pass   Outcome = "pass"
	Fail   Outcome = "fail"
	Skip   Outcome = "skip"
	Either Outcome = "either"
)

// A Result is what ginkgo reports of one spec.
type Result struct {
	File    string // of upstream's test/e2e_node
	Spec    string // the full name
	Outcome Outcome
	Message string // why the spec has failed, or was skipped
	Took    time.Duration
}

// A ginkgoReport is the part of ginkgo's JSON report that counts here.
type ginkgoReport struct {
	SpecReports []struct {
		ContainerHierarchyTexts []string
		LeafNodeType            string
		LeafNodeText            string
		LeafNodeLocation        struct{ FileName string }
		State                   string
		RunTime                 time.Duration
		Failure                 struct{ Message string }
	}
}

// ReadReport reads the results of the specs of the files from ginkgo's JSON report. Specs that ginkgo's filters have left out
// are none of the results. A suite that has not run to its end is an error.
func ReadReport(path string, files []string) ([]Result, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading ginkgo's report: %w", err)
	}
	var reports []ginkgoReport
	if err := json.Unmarshal(text, &reports); err != nil {
		return nil, fmt.Errorf("reading ginkgo's report %s: %w", path, err)
	}
	var results []Result
	var broken []error
	for _, report := range reports {
		for _, spec := range report.SpecReports {
			outcome, err := outcomeOf(spec.State)
			if spec.LeafNodeType != "It" { // of the suite as a whole
				if outcome == Fail || err != nil {
					broken = append(broken, fmt.Errorf("%s: %s: %s", spec.LeafNodeType, spec.State, spec.Failure.Message))
				}
				continue
			}
			file := filepath.Base(spec.LeafNodeLocation.FileName)
			if !slices.Contains(files, file) || spec.State == "skipped" && spec.Failure.Message == "" {
				continue
			}
			name := strings.Join(append(slices.DeleteFunc(spec.ContainerHierarchyTexts, func(t string) bool { return t == "" }), spec.LeafNodeText), " ")
			if err != nil {
				broken = append(broken, fmt.Errorf("%s: %w", name, err))
				continue
			}
			results = append(results, Result{File: file, Spec: name, Outcome: outcome, Message: spec.Failure.Message, Took: spec.RunTime})
		}
	}
	return results, errors.Join(broken...)
}

// outcomeOf translates ginkgo's state of a spec. A spec that was interrupted has no outcome.
func outcomeOf(state string) (Outcome, error) {
	switch state {
	case "passed":
		return Pass, nil
	case "failed", "panicked", "timedout":
		return Fail, nil
	case "skipped", "pending":
		return Skip, nil
	default:
		return "", fmt.Errorf("the suite was cut short: the spec is %s", state)
	}
}
