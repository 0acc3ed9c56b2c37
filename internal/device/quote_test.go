package device_test

import (
	"strings"
	"testing"
	"unicode"

	"github.com/devmgrd/devmgrd/internal/device"
)

func TestQuoteID(t *testing.T) {
	for id, want := range map[device.ID]string{
		"GPU-0":              "GPU-0",
		"0000:3b:00.1":       "0000:3b:00.1",
		`a"b\c`:              `a"b\c`,
		"ä":                  "ä",
		"":                   `""`,
		"a b":                `"a b"`,
		`"a"`:                `"\"a\""`,
		"a\x1b[2J\x00\n":     `"a\x1b[2J\x00\n"`,
		"a\u202eb\u200b\xff": `"a\u202eb\u200b\xff"`,
		"a\ufffdb":           `"a` + "\ufffd" + `b"`,
	} {
		if got := device.QuoteID(id); got != want {
			t.Errorf("QuoteID(%q) = %s, want %s", string(id), got, want)
		}
	}
	if got := device.UnquoteID(`"a`); got != `"a` {
		t.Errorf("what is not quoted became %q", string(got))
	}
}

// What is quoted can be seen, and taken back.
func FuzzQuoteID(f *testing.F) {
	for _, id := range []string{"", "a", `"`, `"a"`, `""a""`, "a b", "\x00\xff", `\`, `"\q"`} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		quoted := device.QuoteID(device.ID(id))
		if back := device.UnquoteID(quoted); string(back) != id {
			t.Errorf("%q is quoted as %s, and taken back as %q", id, quoted, string(back))
		}
		if strings.ContainsFunc(quoted, unicode.IsControl) {
			t.Errorf("%q has control characters", quoted)
		}
	})
}
