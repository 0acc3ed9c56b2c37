package visible

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"":                                "",
		"GPU-0 (ü, 漢, 🙂), é":              "GPU-0 (ü, 漢, 🙂), é",
		"a\x00\n\t\x1b[31mb\x7f":          "a␀␊␉␛[31mb␡",
		"a\u009b31mb\u0085":               "a⟨U+009B⟩31mb⟨U+0085⟩",                     // C1: CSI and NEL
		"GPU-\u202e0-UPG\u2066":           "GPU-⟨U+202E⟩0-UPG⟨U+2066⟩",                 // bidi
		"a\u200b\u200d\ufeff\u00ad\u2060": "a⟨U+200B⟩⟨U+200D⟩⟨U+FEFF⟩⟨U+00AD⟩⟨U+2060⟩", // zero width
		"a\u00a0\u2003\u3000\u2028\u2029": "a⟨U+00A0⟩⟨U+2003⟩⟨U+3000⟩⟨U+2028⟩⟨U+2029⟩", // spaces and lines
		"a\ufe0f\U000e0100\u034f":         "a⟨U+FE0F⟩⟨U+E0100⟩⟨U+034F⟩",                // selectors and joiners
		"\u115f\u3164\uffa0\u2800":        "⟨U+115F⟩⟨U+3164⟩⟨U+FFA0⟩⟨U+2800⟩",          // letters and a symbol that are blank
		"\U000e0041\ue000":                "⟨U+E0041⟩⟨U+E000⟩",                         // tags and private use
		"a\xffb\xc3\x28\xed\xa0\x80":      "a\ufffdb\ufffd(\ufffd\ufffd\ufffd",         // not UTF-8
	} {
		if got := Text(in); got != want {
			t.Errorf("Text(%+q) = %q, want %q", in, got, want)
		}
	}
}

func TestShort(t *testing.T) {
	for _, test := range []struct {
		in   string
		most int
		want string
	}{{"äöü", 3, "äöü"}, {"äöü", 2, "äö…"}, {"\x1b\x1b", 1, "␛…"}, {"a", 0, "…"}, {"", 0, ""}} {
		if got := Short(test.in, test.most); got != test.want {
			t.Errorf("Short(%q, %d) = %q, want %q", test.in, test.most, got, test.want)
		}
	}
}

// Whatever comes in, what goes out steers nothing and hides nothing, and to clean it twice changes nothing.
func FuzzText(f *testing.F) {
	for _, s := range []string{"gpu-0", "\x1b]0;x\a", "\u202e\u2066\u200b", "\xff\xfe", "\u009b2J", "\U000e0001\ufe0f\u3164"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := Text(s)
		if !utf8.ValidString(got) {
			t.Fatalf("Text(%q) = %q is not UTF-8", s, got)
		}
		for _, r := range got {
			if r != ' ' && !unicode.IsGraphic(r) || unicode.In(r, unicode.Cc, unicode.Cf, unicode.Bidi_Control, unicode.Join_Control, unicode.Variation_Selector) {
				t.Fatalf("Text(%q) = %q has %U", s, got, r)
			}
		}
		if again := Text(got); again != got {
			t.Fatalf("Text(%q) = %q, and of that %q", s, got, again)
		}
		if short := Short(s, 3); strings.TrimSuffix(short, "…") != "" && !strings.HasPrefix(got, strings.TrimSuffix(short, "…")) {
			t.Fatalf("Short(%q, 3) = %q does not begin %q", s, short, got)
		}
	})
}
