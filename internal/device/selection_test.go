package device

import "testing"

func TestSelects(t *testing.T) {
	for _, c := range []struct {
		use, avoid []string
		id         ID
		want       bool
	}{
		{nil, nil, "GPU-1", true},
		{[]string{"GPU-1"}, nil, "GPU-1", true},
		{[]string{"GPU-1"}, nil, "GPU-10", false},
		{[]string{"GPU-1*"}, nil, "GPU-10", true},
		{[]string{"GPU-1*", "GPU-2"}, nil, "GPU-2", true},
		{[]string{"*::0"}, nil, "GPU-1::0", true},
		{[]string{"*::0"}, nil, "GPU-1::01", false},
		{[]string{"a*b*c"}, nil, "abc", true},
		{[]string{"a*b*c"}, nil, "a/x/b/y/c", true},
		{[]string{"a*b*c"}, nil, "ac", false},
		{[]string{"ab*ba"}, nil, "aba", false},
		{[]string{"*"}, nil, "", true},
		{[]string{"**"}, nil, "x", true},
		{[]string{"a*a"}, nil, "a", false},
		{nil, []string{"GPU-7"}, "GPU-7", false},
		{nil, []string{"GPU-7"}, "GPU-3", true},
		{[]string{"GPU-*"}, []string{"*-7"}, "GPU-7", false},
		{[]string{"[0-9]"}, nil, "1", false}, // no pattern but the asterisk
	} {
		if got := (Selection{c.use, c.avoid}).Selects(c.id); got != c.want {
			t.Errorf("use %q, avoid %q: %s is %v", c.use, c.avoid, c.id, got)
		}
	}
}
