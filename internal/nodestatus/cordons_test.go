package nodestatus

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

func TestParseCordons(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, want := range map[string]string{
		"{}":                               "",
		"vendor.example/gpu: [GPU-3, 010]": "vendor.example/gpu/GPU-3 vendor.example/gpu/010",
		`{"vendor.example/gpu": {"GPU-3": "fan noise", "GPU-4": null}, "vendor.example/nic": ["a\u001bb"]}`: "vendor.example/gpu/GPU-3=fan noise vendor.example/gpu/GPU-4 vendor.example/nic/a\x1bb",
		"vendor.example/gpu:\n  GPU-3: fan noise\nvendor.example/nic: []":                                   "vendor.example/gpu/GPU-3=fan noise",
	} {
		all, err := parseCordons(text, now)
		var got []string
		for _, c := range all {
			one := string(c.Resource) + "/" + string(c.ID)
			if c.Reason != "" {
				one += "=" + c.Reason
			}
			if !c.Declared || !c.Since.Equal(now) {
				t.Errorf("%q: %+v", text, c)
			}
			got = append(got, one)
		}
		if strings.Join(got, " ") != want || err != nil {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
	many := make([]string, maxDeclared+1)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	for text, says := range map[string]string{
		"":                    "it is empty",
		"# nothing today":     "it is empty",
		"~":                   "it is empty",
		"{}\n---\na.b/c: [d]": "more than one document",
		"vendor.example/gpu: [" + strings.Repeat("x", 5000) + "]": "not a device ID",
		"GPU-3":                         "write it like",
		"[GPU-3]":                       "write it like",
		"vendor.example/gpu: GPU-3":     "write it like vendor.example/gpu: [GPU-3, GPU-4]",
		"vendor.example/gpu: [[GPU-3]]": "line 1",
		"vendor.example/gpu: ['']":      "not a device ID",
		"gpu: [GPU-3]":                  "gpu",
		"a: b: c":                       "not YAML",
		"a: &a [*a]":                    "a",
		"vendor.example/gpu: {a: [b]}":  "the reason is no text",
		"vendor.example/gpu: [" + strings.Join(many, ", ") + "]":     "more than 4096",
		"vendor.example/gpu: {a: " + strings.Repeat("x", 1025) + "}": "1024 bytes",
	} {
		if all, err := parseCordons(text, now); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.60q: %d cordons, %v, want an error with %q", text, len(all), err, says)
		}
	}
}

func FuzzParseCordons(f *testing.F) {
	for _, text := range []string{"", "a/b: [c]", `{"a.b/c": {"d": "e"}}`, "a: &x [*x]"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parseCordons(text, time.Time{})
		if err == nil && (len(all) > maxDeclared || slices.ContainsFunc(all, func(c device.Cordon) bool { return c.ID == "" || !strings.Contains(string(c.Resource), "/") })) {
			t.Errorf("%q makes %v", text, all)
		}
	})
}
