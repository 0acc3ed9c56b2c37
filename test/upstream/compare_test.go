package upstream

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestExpected_ListsEachSpecOnceWithReasons(t *testing.T) {
	files, err := Expected()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if len(f.Specs)+len(f.Skipped) == 0 {
			t.Errorf("%s: nothing is expected of it", f.File)
		}
		short := map[string]bool{}
		for _, s := range f.Specs {
			if f.Under != "" && !strings.HasPrefix(untagged(s.Spec), f.Under+" ") {
				t.Errorf("%s: it does not begin with %q", s.Spec, f.Under)
			}
		}
		for _, s := range f.Specs {
			name := f.Short(s.Spec)
			if name == "" || short[name] {
				t.Errorf("%s: the short name %q is empty, or another spec has it too", s.Spec, name)
			}
			short[name] = true
		}
	}
}

func TestValidate_WhatIsWrong_IsReported(t *testing.T) {
	for want, f := range map[string]File{
		"listed twice":           {Specs: []Spec{{Spec: "a", Kubelet: Pass, Devmgrd: Pass}, {Spec: "a", Kubelet: Pass, Devmgrd: Pass}}},
		"devmgrd: outcome":       {Specs: []Spec{{Spec: "a", Kubelet: Pass, Devmgrd: Either, Reason: "r"}}},
		"kubelet: outcome":       {Specs: []Spec{{Spec: "a", Devmgrd: Pass}}},
		"without a message":      {Specs: []Spec{{Spec: "a", Kubelet: Pass, Devmgrd: Fail, Reason: "r"}}},
		"no reason":              {Specs: []Spec{{Spec: "a", Kubelet: Either, Devmgrd: Pass}}},
		"without a number":       {Skipped: []Skipped{{Says: "says", Reason: "r"}}},
		"upstream's words or a ": {Skipped: []Skipped{{Specs: 1, Reason: "r"}}},
	} {
		if err := validate([]File{f}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", f, err, want)
		}
	}
}

// Each change of an outcome is a difference, in either direction.
func TestCompare(t *testing.T) {
	files := []File{{
		File: "a_test.go",
		Specs: []Spec{
			{Spec: "good", Kubelet: Pass, Devmgrd: Pass},
			{Spec: "bad", Kubelet: Pass, Devmgrd: Fail, Reason: "design", Failure: "0, want 1", Or: []string{"nothing, want 1"}},
			{Spec: "race", Kubelet: Either, Devmgrd: Pass, Reason: "asks too early"},
		},
		Skipped: []Skipped{{Specs: 2, Says: "cores", Reason: "needs four CPUs", CPUs: 4}},
	}}
	ran := func(good, bad, race Outcome) []Result {
		return []Result{
			{File: "a_test.go", Spec: "good", Outcome: good}, {File: "a_test.go", Spec: "bad", Outcome: bad, Message: "got 0, want 1"}, {File: "a_test.go", Spec: "race", Outcome: race},
			{File: "a_test.go", Spec: "wide", Outcome: Skip, Message: "too few cores"}, {File: "a_test.go", Spec: "wider", Outcome: Skip, Message: "no cores"},
		}
	}
	for name, c := range map[string]struct {
		side    string
		results []Result
		focus   string
		cpus    int
		want    []string
	}{
		"as expected, devmgrd": {side: "devmgrd", results: ran(Pass, Fail, Pass)},
		"as expected, kubelet": {side: "kubelet", results: ran(Pass, Pass, Fail)},
		"the race is won":      {side: "kubelet", results: ran(Pass, Pass, Pass)},
		"a listed pass fails":  {side: "devmgrd", results: ran(Fail, Fail, Pass), want: []string{"good: fails"}},
		"a listed failure has another reason": {side: "devmgrd", results: slices.Concat(ran(Pass, Fail, Pass)[:1],
			[]Result{{File: "a_test.go", Spec: "bad", Outcome: Fail, Message: "got 2,\nwant 1"}}, ran(Pass, Fail, Pass)[2:]), want: []string{"got 2, want 1"}},
		"a listed failure with its other message": {side: "devmgrd", results: slices.Concat(ran(Pass, Fail, Pass)[:1],
			[]Result{{File: "a_test.go", Spec: "bad", Outcome: Fail, Message: "got nothing, want 1"}}, ran(Pass, Fail, Pass)[2:])},
		"a listed failure passes":          {side: "devmgrd", results: ran(Pass, Pass, Pass), want: []string{"bad: passes"}},
		"a race is for the kubelet only":   {side: "devmgrd", results: ran(Pass, Fail, Fail), want: []string{"race: fails"}},
		"a listed spec is skipped":         {side: "devmgrd", results: ran(Skip, Fail, Pass), want: []string{"good: is skipped"}},
		"a listed spec does not exist":     {side: "devmgrd", results: ran(Pass, Fail, Pass)[1:], want: []string{"good: is listed, and does not exist"}},
		"a spec that is not listed passes": {side: "devmgrd", results: append(ran(Pass, Fail, Pass), Result{File: "a_test.go", Spec: "new", Outcome: Pass}), want: []string{"new: passes, and is not listed"}},
		"a spec that is not listed fails":  {side: "devmgrd", results: append(ran(Pass, Fail, Pass), Result{File: "a_test.go", Spec: "new", Outcome: Fail}), want: []string{"new: fails, and is not listed"}},
		"a skip that is not listed":        {side: "devmgrd", results: append(ran(Pass, Fail, Pass), Result{File: "a_test.go", Spec: "new", Outcome: Skip, Message: "no"}), want: []string{"new: is skipped, and is not listed"}},
		"fewer skips":                      {side: "devmgrd", results: ran(Pass, Fail, Pass)[:4], want: []string{"1 specs are skipped"}},
		"more skips":                       {side: "devmgrd", results: append(ran(Pass, Fail, Pass), Result{File: "a_test.go", Spec: "new", Outcome: Skip, Message: "cores"}), want: []string{"3 specs are skipped"}},
		"one name twice":                   {side: "devmgrd", results: append(ran(Pass, Fail, Pass), Result{File: "a_test.go", Spec: "good", Outcome: Pass}), want: []string{"good: two specs"}},
		"a focus":                          {side: "devmgrd", results: ran(Pass, Fail, Pass)[1:2], focus: "ad$"},
		"a large machine":                  {side: "devmgrd", cpus: 8, results: append(ran(Pass, Fail, Pass)[:3], Result{File: "a_test.go", Spec: "wide", Outcome: Fail})},
		"a large machine, a listed spec":   {side: "devmgrd", cpus: 8, results: ran(Fail, Fail, Pass), want: []string{"good: fails"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Compare(c.side, files, c.results, regexp.MustCompile(c.focus), Machine{CPUs: max(2, c.cpus), NUMA: 1})
			if len(got) != len(c.want) || !slices.EqualFunc(got, c.want, strings.Contains) {
				t.Errorf("the differences are %q, want %q", got, c.want)
			}
		})
	}
}

func TestReadReport(t *testing.T) {
	spec := func(file, name, state, message string) string {
		return `{"ContainerHierarchyTexts": ["[sig-node] Thing", "", "with"], "LeafNodeType": "It", "LeafNodeText": "` + name +
			`", "LeafNodeLocation": {"FileName": "/x/` + file + `"}, "State": "` + state + `", "RunTime": 2000000000, "Failure": {"Message": "` + message + `"}}`
	}
	for name, c := range map[string]struct {
		specs string
		want  []Result
		wrong string
	}{
		"outcomes": {
			specs: spec("a_test.go", "one", "passed", "") + "," + spec("a_test.go", "two", "timedout", "late") + "," + spec("a_test.go", "three", "skipped", "no cores"),
			want: []Result{
				{"a_test.go", "[sig-node] Thing with one", Pass, "", 2 * time.Second},
				{"a_test.go", "[sig-node] Thing with two", Fail, "late", 2 * time.Second},
				{"a_test.go", "[sig-node] Thing with three", Skip, "no cores", 2 * time.Second},
			},
		},
		"left out by a filter, and other files": {specs: spec("a_test.go", "one", "skipped", "") + "," + spec("b_test.go", "two", "failed", "x")},
		"an interrupted spec":                   {specs: spec("a_test.go", "one", "interrupted", "ctrl-c"), wrong: "cut short"},
		"the suite has not begun":               {specs: `{"LeafNodeType": "SynchronizedBeforeSuite", "State": "failed", "Failure": {"Message": "no node"}}`, wrong: "no node"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "report.json")
			if err := os.WriteFile(path, []byte(`[{"SpecReports": [`+c.specs+`]}]`), 0o644); err != nil {
				t.Fatal(err)
			}
			got, err := ReadReport(path, []string{"a_test.go"})
			if c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
				t.Errorf("error %v, want %q", err, c.wrong)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("the results are %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestTable(t *testing.T) {
	files := []File{{File: "a_test.go", Under: "Thing with", Specs: []Spec{
		{Spec: "[sig-node] Thing with good", Kubelet: Pass, Devmgrd: Pass},
		{Spec: "[sig-node] Thing with bad", Kubelet: Either, Devmgrd: Fail, Reason: "One number, by design ([0002](decisions/0002.md))."},
	}, Skipped: []Skipped{{Specs: 1, Says: "cores", Reason: "four CPUs."}}}}
	got := Table(files, map[string][]Result{
		"kubelet": {{File: "a_test.go", Spec: "[sig-node] Thing with good", Outcome: Fail}, {File: "a_test.go", Spec: "[sig-node] Thing with bad", Outcome: Pass}},
		"devmgrd": {{File: "a_test.go", Spec: "[sig-node] Thing with bad", Outcome: Fail}, {File: "a_test.go", Spec: "[sig-node] Thing [Serial] with other", Outcome: Skip, Message: "no time\nmore"},
			{File: "a_test.go", Spec: "[sig-node] Thing with wide", Outcome: Skip, Message: "no cores"}},
	})
	want := `
a_test.go
  kubelet  devmgrd
  fail !   -        good
  pass     fail     bad
                        One number, by design (0002).
  -        skip !   other
                        no time
  -        1 skip   specs that need four CPUs.

  kubelet  devmgrd
  1        0        pass
  1        1        fail
  0        2        skip
`
	if got != want {
		t.Errorf("the table is\n%s\nwant\n%s", got, want)
	}
}

func TestProgress(t *testing.T) {
	text := "------------------------------\n[sig-node] Thing [Serial] good [sig-node, Serial]\n/x/a_test.go:1\n• [1.2 seconds]\n" +
		"------------------------------\n[sig-node] Thing bad [sig-node]\n• [FAILED] [0.5 seconds]\n"
	var out, log bytes.Buffer
	Progress(&out, &log, strings.NewReader(text))
	if want := "pass    1.2 s  Thing good\nfail    0.5 s  Thing bad\n"; out.String() != want {
		t.Errorf("the progress is %q, want %q", out.String(), want)
	}
	if log.String() != text {
		t.Errorf("the log is %q", log.String())
	}
}
