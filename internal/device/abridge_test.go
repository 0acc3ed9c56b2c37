package device

import (
	"fmt"
	"strings"
	"testing"
)

func TestAbridge(t *testing.T) {
	var many []ID
	for i := range 60_000 {
		many = append(many, ID(fmt.Sprint("gpu-", i)))
	}
	for _, test := range []struct {
		ids  []ID
		want string
	}{
		{nil, ""},
		{many[:2], "gpu-0 gpu-1"},
		{many[:8], "gpu-0 gpu-1 gpu-2 gpu-3 gpu-4 gpu-5 gpu-6 gpu-7"},
		{many, "gpu-0 gpu-1 gpu-2 gpu-3 gpu-4 gpu-5 gpu-6 gpu-7 and 59992 more"},
		{[]ID{"a\nb", ID(strings.Repeat("x", 1000))}, `"a\nb" ` + strings.Repeat("x", 80) + "..."},
	} {
		if got := Abridge(test.ids); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}
