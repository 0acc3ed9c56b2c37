package matrix

import (
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/test/cluster"
)

// A failure and a test that was not played are in the documents by name, and no such release is among those that pass.
func TestDocuments_FailedAndMissing_AreNamed(t *testing.T) {
	whole, broken := map[string]Outcome{}, map[string]Outcome{}
	for i, test := range Tests {
		whole[test.Name] = Outcome{Passed: true}
		if i > 0 {
			broken[test.Name] = Outcome{Passed: i > 1, Lacks: []cluster.Feature{cluster.PodGet}}
		}
	}
	cells := []Cell{
		{Runtime: "containerd 9.1", Version: "1.90", Date: "2026-01-01", Outcomes: broken}, // the newest of both
		{Containerd: "8", Runtime: "containerd 8.1", Version: "1.90", Date: "2026-01-01", Outcomes: whole},
		{Kubernetes: "1.80", Runtime: "containerd 9.1", Version: "1.80", Date: "2026-01-02", Outcomes: whole},
	}
	page := Markdown(cells)
	for _, want := range []string{
		"| containerd 8.1 | 25 of 25 pass |  | 2026-01-01 |\n",
		"| Kubernetes 1.80 | 25 of 25 pass |  | 2026-01-02 |\n",
		"| containerd 9.1 | 23 of 25 pass; **fails**: `" + Tests[1].Name + "`; not played: `" + Tests[0].Name + "` | 6 | 2026-01-01 |\n",
		"played with Kubernetes 1.90, Kubernetes with containerd 9.1.",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	const want = "All 25 pass on containerd 8.1 and on Kubernetes 1.80. Some fail on containerd 9.1, Kubernetes 1.90.\n"
	if got := Summary(cells); got != want {
		t.Errorf("the sentence is %q, want %q", got, want)
	}
}
