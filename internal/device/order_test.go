package device_test

import (
	"math/rand/v2"
	"slices"
	"testing"

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
