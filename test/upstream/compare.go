package upstream

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A Machine is what decides which specs skip themselves.
type Machine struct{ CPUs, NUMA int }

// runs reports whether specs of the group run on the machine, where nothing is expected of them.
func (s Skipped) runs(m Machine) bool {
	return s.CPUs > 0 && m.CPUs >= s.CPUs || s.NUMA > 0 && m.NUMA >= s.NUMA
}

// Compare returns how the results on a side differ from what is expected there: nothing if the outcomes are the expected
// ones. With a focus only specs whose names it matches count.
func Compare(side string, files []File, results []Result, focus *regexp.Regexp, m Machine) (differences []string) {
	differ := func(format string, args ...any) { differences = append(differences, fmt.Sprintf(format, args...)) }
	of := map[string]Result{}
	for _, r := range results {
		if _, twice := of[r.Spec]; twice {
			differ("%s: two specs have this name", r.Spec)
		}
		of[r.Spec] = r
	}
	for _, f := range files {
		listed, tolerant := map[string]bool{}, false
		for _, s := range f.Specs {
			listed[s.Spec] = true
			if !focus.MatchString(s.Spec) {
				continue
			}
			want := s.outcome(side)
			switch r, ran := of[s.Spec]; {
			case !ran:
				differ("%s: is listed, and does not exist", s.Spec)
			case r.Outcome == Skip:
				differ("%s: is skipped, want %s: %s", s.Spec, want, firstLine(r.Message))
			case r.Outcome == Fail && want == Pass:
				differ("%s: fails, want pass: %s", s.Spec, firstLine(r.Message))
			case r.Outcome == Fail && side == "devmgrd" && !s.saysIn(r.Message):
				differ("%s: fails as expected, but without %q: %s", s.Spec, strings.Join(append([]string{s.Failure}, s.Or...), " or "), strings.Join(strings.Fields(r.Message), " "))
			case r.Outcome == Pass && want == Fail:
				differ("%s: passes, want fail (%s)", s.Spec, s.Reason)
			}
		}
		skipped := make([]int, len(f.Skipped))
		for _, s := range f.Skipped {
			tolerant = tolerant || s.runs(m)
		}
		for _, r := range results {
			if r.File != f.File || listed[r.Spec] {
				continue
			}
			if r.Outcome != Skip {
				if !tolerant {
					differ("%s: %s, and is not listed: %s", r.Spec, map[Outcome]string{Pass: "passes", Fail: "fails"}[r.Outcome], firstLine(r.Message))
				}
				continue
			}
			if i := f.group(r); i >= 0 {
				skipped[i]++
			} else if !tolerant {
				differ("%s: is skipped, and is not listed: %s", r.Spec, firstLine(r.Message))
			}
		}
		for i, s := range f.Skipped {
			if focus.String() == "" && !s.runs(m) && skipped[i] != s.Specs {
				differ("%s: %d specs are skipped with %q, want %d", f.File, skipped[i], s.Says, s.Specs)
			}
		}
	}
	return differences
}

// group returns which of f.Skipped a spec is of that is not listed; -1: none.
func (f File) group(r Result) int {
	return slices.IndexFunc(f.Skipped, func(s Skipped) bool { return r.Outcome == Skip && strings.Contains(r.Message, s.Says) })
}

func firstLine(message string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(message), "\n")
	return line
}
