package pluginrules

import "testing"

// A plugin chooses its device IDs and what it grants. Neither makes a suggested pattern allow more than names like those granted.
func TestGeneralize_IDIsAWholeName_StaysLiteral(t *testing.T) {
	for _, test := range []struct{ name, id, want, other string }{
		{"/abcd", "abcd", "/abcd", "/etc"},
		{"/abcd/efgh", "abcd", "/abcd/efgh", "/etc/efgh"},
		{"/dev/abcd", "abcd", "/dev/abcd", "/dev/sda"},
		{"ABCD", "ABCD", "ABCD", "LD_PRELOAD"},
		{"a.b/CDEF", "CDEF", "a.b/CDEF", "a.b/other"},
		{"x*yz", "x*yz", `x\*yz`, "x1yz"},
		{"/sys/bus/pci/devices/0000:3b:00.0", "0000:3b:00.0", "/sys/bus/pci/devices/*", "/sys/bus/pci"},
		{"/dev/vendor-GPU-1", "GPU-1", "/dev/vendor-GPU-*", "/dev/sda"},
	} {
		got := generalize(test.name, []string{test.id})
		if got != test.want {
			t.Errorf("%s with device %s becomes %s, want %s", test.name, test.id, got, test.want)
		}
		if !matches(got, test.name) && !covers(got, test.name) {
			t.Errorf("%s does not match %s", got, test.name)
		}
		if test.name[0] == '/' && covers(got, test.other) || test.name[0] != '/' && matches(got, test.other) {
			t.Errorf("%s matches %s, which was not granted", got, test.other)
		}
	}
}
