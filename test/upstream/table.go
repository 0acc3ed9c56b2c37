package upstream

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// width is that of a terminal's line.
const width = 120

// Table returns the results as a table for a terminal, file by file, with the reason where an outcome is not pass. An outcome
// that is not expected has an exclamation mark. Specs that skip themselves are counted.
func Table(files []File, results map[string][]Result) string {
	var b strings.Builder
	count := map[string]map[Outcome]int{}
	of := map[string]map[string]Result{} // side, spec
	for _, side := range Sides {
		of[side], count[side] = map[string]Result{}, map[Outcome]int{}
		for _, r := range results[side] {
			of[side][r.Spec] = r
			count[side][r.Outcome]++
		}
	}
	for _, f := range files {
		var rows strings.Builder
		row := func(marks map[string]string, text, reason string) {
			if len(marks) == 0 {
				return
			}
			rows.WriteString("  ")
			for _, side := range Sides {
				fmt.Fprintf(&rows, "%-9s", cmp.Or(marks[side], "-"))
			}
			rows.WriteString(indent(text, 20)[20:])
			if reason != "" {
				rows.WriteString(indent(link.ReplaceAllString(reason, "$1"), 24))
			}
		}
		listed := map[string]bool{}
		for _, s := range f.Specs {
			listed[s.Spec] = true
			marks := map[string]string{}
			for _, side := range Sides {
				if r, ran := of[side][s.Spec]; ran {
					marks[side] = string(r.Outcome)
					if want := s.outcome(side); r.Outcome != want && (want != Either || r.Outcome == Skip) {
						marks[side] += " !"
					}
				}
			}
			row(marks, f.Short(s.Spec), s.Reason)
		}
		counts, others := make([]map[string]string, len(f.Skipped)), map[string]map[string]string{}
		messages := map[string]string{}
		for _, side := range Sides {
			numbers := make([]int, len(f.Skipped))
			for _, r := range results[side] {
				if r.File != f.File || listed[r.Spec] {
					continue
				}
				if i := f.group(r); i >= 0 {
					numbers[i]++
					continue
				}
				if others[r.Spec] == nil {
					others[r.Spec] = map[string]string{}
				}
				others[r.Spec][side], messages[r.Spec] = string(r.Outcome)+" !", firstLine(r.Message)
			}
			for i, n := range numbers {
				if n == 0 {
					continue
				}
				if counts[i] == nil {
					counts[i] = map[string]string{}
				}
				counts[i][side] = fmt.Sprintf("%d skip", n)
				if n != f.Skipped[i].Specs {
					counts[i][side] += " !"
				}
			}
		}
		for _, spec := range slices.Sorted(maps.Keys(others)) {
			row(others[spec], f.Short(spec), messages[spec])
		}
		for i, s := range f.Skipped {
			row(counts[i], "specs that need "+s.Reason, "")
		}
		if rows.Len() > 0 {
			fmt.Fprintf(&b, "\n%s\n  %-9s%s\n%s", f.File, Sides[0], Sides[1], rows.String())
		}
	}
	fmt.Fprintf(&b, "\n  %-9s%s\n", Sides[0], Sides[1])
	for _, outcome := range []Outcome{Pass, Fail, Skip} {
		fmt.Fprintf(&b, "  %-9d%-9d%s\n", count[Sides[0]][outcome], count[Sides[1]][outcome], outcome)
	}
	return b.String()
}

// link is a link of Markdown.
var link = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)

// indent breaks a text into lines, all of them indented by so many columns.
func indent(text string, by int) string {
	var b strings.Builder
	column := 0
	for _, word := range strings.Fields(text) {
		switch {
		case column == 0:
			b.WriteString(strings.Repeat(" ", by))
			column = by
		case column+1+len(word) > width:
			b.WriteString("\n" + strings.Repeat(" ", by))
			column = by
		default:
			b.WriteString(" ")
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String() + "\n"
}

// Markdown returns the expectations for docs/conformance.md: how many specs of a file pass on both sides, and a table of the others,
// in which specs with the same outcomes and reason share a row.
func Markdown(files []File) string {
	var b strings.Builder
	for _, f := range files {
		var rows strings.Builder
		passing := 0
		names := map[string][]string{} // of the specs, by the rest of the row
		var rest []string
		for _, s := range f.Specs {
			if s.Kubelet == Pass && s.Devmgrd == Pass {
				passing++
				continue
			}
			why := strings.Join(strings.Fields(s.Reason+" "+s.Proof+" |"), " ")
			row := fmt.Sprintf("%s | %s | %s\n", bold(s.Kubelet), bold(s.Devmgrd), why)
			if names[row] == nil {
				rest = append(rest, row)
			}
			names[row] = append(names[row], f.Short(s.Spec))
		}
		for _, row := range rest {
			name := names[row][0]
			if n := len(names[row]); n > 1 {
				name = fmt.Sprintf("(%d specs) %s ...", n, beginning(names[row]))
			}
			fmt.Fprintf(&rows, "| %s | %s", name, row)
		}
		for _, s := range f.Skipped {
			specs := "specs"
			if s.Specs == 1 {
				specs = "spec"
			}
			fmt.Fprintf(&rows, "| (%d %s) | skip | skip | Need %s |\n", s.Specs, specs, strings.TrimSpace(s.Reason+" "+s.Proof))
		}
		fmt.Fprintf(&b, "\n### %s\n", f.File)
		if passing > 0 {
			fmt.Fprintf(&b, "\nPass on both sides: %d.\n", passing)
		}
		if rows.Len() > 0 {
			b.WriteString("\n| upstream's spec | kubelet | devmgrd | why |\n|---|---|---|---|\n" + rows.String())
		}
	}
	return b.String()
}

// beginning returns the words with which all names begin.
func beginning(names []string) string {
	words := strings.Fields(names[0])
	for _, name := range names[1:] {
		other := strings.Fields(name)
		n := 0
		for n < len(words) && n < len(other) && words[n] == other[n] {
			n++
		}
		words = words[:n]
	}
	return strings.Join(words, " ")
}

// bold sets an outcome off that is not pass.
func bold(o Outcome) string {
	if o == Pass {
		return string(o)
	}
	return "**" + string(o) + "**"
}

// Summary returns the counts of what is expected, in a sentence.
func Summary(files []File) string {
	specs, skipped := 0, 0
	passed, either := map[string]int{}, 0
	for _, f := range files {
		for _, s := range f.Specs {
			specs++
			for _, side := range Sides {
				if s.outcome(side) == Pass {
					passed[side]++
				}
			}
			if s.Kubelet == Either {
				either++
			}
		}
		for _, s := range f.Skipped {
			skipped += s.Specs
		}
	}
	sentence := fmt.Sprintf("Of the %d specs that run on one small machine the kubelet passes %d and devmgrd %d", specs, passed["kubelet"], passed["devmgrd"])
	if either > 0 {
		sentence += fmt.Sprintf("; in %d more the kubelet's outcome is chance", either)
	}
	return sentence + fmt.Sprintf(". Another %d skip themselves on both sides.", skipped)
}
