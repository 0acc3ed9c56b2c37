package nri

import (
	"slices"
	"testing"
)

func TestExpand(t *testing.T) {
	t.Parallel()
	env := map[string]string{"GPU": "0", "LOOP": "$(GPU) $(LOOP)", "EMPTY": ""}
	for _, test := range []struct {
		arg  string
		refs []string
		want string
	}{
		{"$(GPU)", []string{"GPU"}, "0"},
		{"a$(GPU)b$(GPU)$(EMPTY)c", []string{"EMPTY", "GPU"}, "a0b0c"},
		{"$(GPU)", nil, "$(GPU)"},                                 // the image's own, or escaped
		{"$(OTHER) $(GPU)", []string{"OTHER"}, "$(OTHER) $(GPU)"}, // no such variable
		{"$(LOOP)", []string{"GPU", "LOOP"}, "$(GPU) $(LOOP)"},    // what a value contains stays
		{"$GPU $(GPU", []string{"GPU"}, "$GPU $(GPU"},
	} {
		args := []string{"/bin/x", test.arg}
		got, changed, err := expand(args, test.refs, env, 100)
		if want := []string{"/bin/x", test.want}; err != nil || !slices.Equal(got, want) || changed != (test.want != test.arg) {
			t.Errorf("%q with %q became %q, %v, %v; want %q", test.arg, test.refs, got, changed, err, test.want)
		}
		if args[1] != test.arg {
			t.Errorf("the container's own arguments became %q", args)
		}
	}
}
