package device_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/devmgrd/devmgrd/internal/device"
)

func TestCompareIDs(t *testing.T) {
	for _, ascending := range [][]device.ID{
		{"", "0", "00", "1", "2", "10", "a", "aa", "b"},
		{"gpu-0", "gpu-1", "gpu-2", "gpu-10", "gpu-11", "gpu-100"},
		{"gpu0", "gpu1", "gpu9", "gpu10", "gpu10::0", "gpu10::2", "gpu10::10", "gpu11"},
		{"GPU-8f6d2c4e::1", "GPU-8f6d2c4e::2", "GPU-8f6d2c4e::10", "GPU-9f6d2c4e::1"},
		{"0000:05:00.0", "0000:0a:00.0", "0000:10:00.2", "0000:10:00.10", "0000:1a:00.0", "0000:3b:00.1", "0000:af:00.0"},
		{"mig-1g.5gb", "mig-1g.10gb", "mig-2g.10gb"},
		{"d01", "d1", "d1.5", "d002", "d02", "d2"},
		{"x-9223372036854775807", "x-9223372036854775808", "x-99999999999999999999"},
		{"a\x00", "a\xff"},
	} {
		for i, a := range ascending {
			for j, b := range ascending {
				want := 0
				if i < j {
					want = -1
				} else if i > j {
					want = 1
				}
				if got := device.CompareIDs(a, b); got != want {
					t.Errorf("CompareIDs(%q, %q) = %d, want %d", a, b, got, want)
				}
			}
		}
	}
}

// The order is total, whatever IDs are made of.
func TestCompareIDsIsTotal(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	id := func() device.ID {
		text := make([]byte, random.IntN(6))
		for i := range text {
			text[i] = "0012aFg-"[random.IntN(8)]
		}
		return device.ID(text)
	}
	for range 200_000 {
		a, b, c := id(), id(), id()
		ab, ba := device.CompareIDs(a, b), device.CompareIDs(b, a)
		if ab != -ba || (ab == 0) != (a == b) {
			t.Fatalf("%q and %q: %d and %d", a, b, ab, ba)
		}
		if ab < 0 && device.CompareIDs(b, c) < 0 && device.CompareIDs(a, c) >= 0 {
			t.Fatalf("%q before %q before %q, and not before it", a, b, c)
		}
	}
}

func BenchmarkCompareIDs(b *testing.B) {
	ids := []device.ID{"GPU-fef8089b-4820-abfc-e83e-94318197576e::10", "GPU-fef8089b-4820-abfc-e83e-94318197576e::2"}
	for b.Loop() {
		_ = slices.IsSortedFunc(ids, device.CompareIDs)
	}
}

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

func TestAbridge(t *testing.T) {
	var many []device.ID
	for i := range 60_000 {
		many = append(many, device.ID(fmt.Sprint("gpu-", i)))
	}
	for _, test := range []struct {
		ids  []device.ID
		want string
	}{
		{nil, ""},
		{many[:2], "gpu-0 gpu-1"},
		{many[:8], "gpu-0 gpu-1 gpu-2 gpu-3 gpu-4 gpu-5 gpu-6 gpu-7"},
		{many, "gpu-0 gpu-1 gpu-2 gpu-3 gpu-4 gpu-5 gpu-6 gpu-7 and 59992 more"},
		{[]device.ID{"a\nb", device.ID(strings.Repeat("x", 1000))}, `"a\nb" ` + strings.Repeat("x", 80) + "..."},
	} {
		if got := device.Abridge(test.ids); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

func TestSummary_IsBounded(t *testing.T) {
	var all []device.Assignment
	for i := range 100 {
		as := device.Assignment{Container: device.Container{Name: fmt.Sprint("c", i)}, Shares: []device.Share{{Resource: "vendor.com/gpu"}}}
		for d := range 1000 {
			as.Shares[0].IDs = append(as.Shares[0].IDs, device.ID(fmt.Sprintf("GPU-8f6d2c4e-1111-2222-3333-444455556666-_-%06d", d)))
		}
		all = append(all, as)
	}
	s := device.Summary(all)
	if n := len(fmt.Sprint(s)); n > 8<<10 || s["more"] != "84" {
		t.Errorf("a line of %d bytes, %q left out", n, s["more"])
	}
	if got := device.Summary(all[:1])["c0:vendor.com/gpu"]; got != device.Abridge(all[0].Shares[0].IDs) {
		t.Errorf("%q", got)
	}
}
