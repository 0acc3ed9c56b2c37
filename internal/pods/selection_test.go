package pods

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/devmgrd/devmgrd/internal/device"
)

func selecting(annotation string) *corev1.Pod {
	p := newPod("a")
	one := corev1.ResourceRequirements{Limits: corev1.ResourceList{"a.com/gpu": resource.MustParse("1")}}
	p.Spec.Containers = []corev1.Container{{Name: "main", Resources: one}, {Name: "other", Resources: one}, {Name: "plain"}}
	if annotation != "" {
		p.Annotations = map[string]string{device.DevicesAnnotation: annotation}
	}
	return p
}

func TestLimit(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x, ", 64)
	fits := "main: {a.com/gpu: {use: [" + long + "], avoid: [" + long
	for annotation, want := range map[string]string{
		"": "",
		`{"main": {"a.com/gpu": {"use": ["GPU-3*", "GPU-4"], "avoid": ["GPU-37"]}}}`: `main a.com/gpu use [GPU-3* GPU-4] avoid [GPU-37]`,
		"main: {a.com/gpu: {avoid: [\"7\"]}}\nother: {a.com/gpu: {use: [8]}}":        `main a.com/gpu use [] avoid [7], other a.com/gpu use [8] avoid []`,
		"{}":                             "it is empty",
		" ":                              "it is empty",
		"main":                           "write it like",
		"main: {a.com/gpu: [GPU-3]}":     "write it like",
		"main: {a.com/gpu: {only: [x]}}": "field only not found",
		"main: {a.com/gpu: {}}":          "has neither use nor avoid",
		"main: {a.com/gpu: {use: ['']}}": "has an empty pattern",
		fits + "]}}":                     "main a.com/gpu use [" + strings.TrimSpace(strings.Repeat("x ", 64)) + "] avoid [" + strings.TrimSpace(strings.Repeat("x ", 64)) + "]",
		fits + "]}}\nother: {a.com/gpu: {use: [x]}}":                 "it has more than 128 patterns",
		"main: &a {a.com/gpu: {use: [x]}}\nother: *a":                "it has a YAML alias",
		"main: {a.com/gpu: {use: [&a x, *a]}}":                       "it has a YAML alias",
		"main: {a.com/gpu: {use: [x]}}\n---\na: &a [x]\nb: [*a, *a]": "more than one document",
		"main: {gpu: {use: [x]}}":                                    "gpu",
		"main: {a.com/nic: {use: [x]}}":                              `container "main" does not request a.com/nic`,
		"plain: {a.com/gpu: {use: [x]}}":                             `container "plain" requests no device`,
		"main: {a.com/gpu: {use: [x]}}\n---\nmain: {}":               "more than one document",
		strings.Repeat(" ", maxSelection+1):                          "it has 16385 bytes",
	} {
		demands := reader{ignored: ignoring(nil), selectors: true}.demands(selecting(annotation), &room{maxPodSize})
		var all, mistakes []string
		for _, d := range demands {
			if d.Mistake != "" {
				mistakes = append(mistakes, d.Mistake)
			}
			for _, r := range slices.Sorted(maps.Keys(d.Select)) {
				s := d.Select[r]
				all = append(all, d.Container.Name+" "+string(r)+" use ["+strings.Join(s.Use, " ")+"] avoid ["+strings.Join(s.Avoid, " ")+"]")
			}
		}
		switch got := strings.Join(all, ", "); {
		case len(mistakes) == 0:
			if got != want {
				t.Errorf("%q: %q, want %q", annotation, got, want)
			}
		case len(mistakes) != 2 || want == "" || !strings.Contains(mistakes[0], "annotation devmgrd.io/devices: ") || !strings.Contains(mistakes[0], want) || got != "":
			t.Errorf("%q: %q, %q, want %q", annotation, mistakes, got, want)
		}
	}
	for _, d := range (reader{ignored: ignoring(nil)}).demands(selecting("main: {a.com/gpu: {use: [x]}}"), &room{maxPodSize}) {
		if d.Select != nil || d.Mistake != "" {
			t.Errorf("switched off: %+v", d)
		}
	}
}

func FuzzParseSelections(f *testing.F) {
	f.Add(`{"main": {"a.com/gpu": {"use": ["GPU-3*"]}}}`)
	f.Add("main: &a {a.com/gpu: {use: [*a]}}")
	f.Fuzz(func(t *testing.T, text string) {
		limits, err := parseSelections(text)
		if err == nil && len(limits) == 0 || err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, %v", limits, err)
		}
	})
}
