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

func TestKey_OtherSelection_IsAnother(t *testing.T) {
	t.Parallel()
	seen := map[SelectionKey]Selection{}
	for _, s := range []Selection{
		{}, {Use: []string{"a"}}, {Avoid: []string{"a"}}, {Use: []string{"a", "b"}}, {Use: []string{"a"}, Avoid: []string{"b"}}, {Use: []string{"b", "a"}},
		{Use: []string{"a1 b"}}, {Use: []string{"a,"}}, {Use: []string{"a,1 b"}}, {Avoid: []string{"a", "b"}}, {Use: []string{"1 a"}},
	} {
		if was, known := seen[s.Key()]; known {
			t.Errorf("%+v and %+v have one key", was, s)
		}
		seen[s.Key()] = s
	}
}
