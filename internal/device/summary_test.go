package device

import (
	"fmt"
	"testing"
)

func TestSummary_IsBounded(t *testing.T) {
	var all []Assignment
	for i := range 100 {
		as := Assignment{Container: Container{Name: fmt.Sprint("c", i)}, Shares: []Share{{Resource: "vendor.com/gpu"}}}
		for d := range 1000 {
			as.Shares[0].IDs = append(as.Shares[0].IDs, ID(fmt.Sprintf("GPU-8f6d2c4e-1111-2222-3333-444455556666-_-%06d", d)))
		}
		all = append(all, as)
	}
	s := Summary(all)
	if n := len(fmt.Sprint(s)); n > 8<<10 || s["more"] != "84" {
		t.Errorf("a line of %d bytes, %q left out", n, s["more"])
	}
	if got := Summary(all[:1])["c0:vendor.com/gpu"]; got != Abridge(all[0].Shares[0].IDs) {
		t.Errorf("%q", got)
	}
}
