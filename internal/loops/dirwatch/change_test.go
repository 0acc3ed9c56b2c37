package dirwatch

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// raw returns an event as the kernel writes it, with that many bytes for the name.
func raw(wd int32, mask uint32, name string, size int) []byte {
	text := binary.NativeEndian.AppendUint32(nil, uint32(wd))
	text = binary.NativeEndian.AppendUint32(text, mask)
	text = binary.NativeEndian.AppendUint32(text, 7) // the cookie
	text = binary.NativeEndian.AppendUint32(text, uint32(size))
	return append(text, append([]byte(name), make([]byte, max(0, size-len(name)))...)...)
}

func TestNext(t *testing.T) {
	long := strings.Repeat("x", 255)
	for name, test := range map[string]struct {
		text []byte
		want []change
		cut  bool
	}{
		"nothing":     {nil, nil, false},
		"of itself":   {raw(1, unix.IN_DELETE_SELF, "", 0), []change{{1, unix.IN_DELETE_SELF, ""}}, false},
		"of a file":   {raw(2, unix.IN_CREATE, "a", 16), []change{{2, unix.IN_CREATE, "a"}}, false},
		"no NUL":      {raw(2, unix.IN_CREATE, "abcd", 4), []change{{2, unix.IN_CREATE, "abcd"}}, false},
		"long":        {raw(2, unix.IN_DELETE, long, 256), []change{{2, unix.IN_DELETE, long}}, false},
		"overflow":    {raw(-1, unix.IN_Q_OVERFLOW, "", 0), []change{{-1, unix.IN_Q_OVERFLOW, ""}}, false},
		"two":         {append(raw(1, unix.IN_MODIFY, "a", 16), raw(3, unix.IN_IGNORED, "", 0)...), []change{{1, unix.IN_MODIFY, "a"}, {3, unix.IN_IGNORED, ""}}, false},
		"half a head": {raw(1, unix.IN_MODIFY, "", 0)[:15], nil, true},
		"half a name": {append(raw(1, unix.IN_MODIFY, "a", 16), raw(1, unix.IN_MODIFY, "b", 16)[:31]...), []change{{1, unix.IN_MODIFY, "a"}}, true},
		"huge name":   {huge(), nil, true},
	} {
		var got []change
		var err error
		for rest := test.text; len(rest) > 0 && err == nil; {
			var c change
			if c, rest, err = next(rest); err == nil {
				got = append(got, c)
			}
		}
		if !slices.Equal(got, test.want) || (err != nil) != test.cut {
			t.Errorf("%s: %+v (%v), want %+v", name, got, err, test.want)
		}
	}
}

func TestOp(t *testing.T) {
	for mask, want := range map[uint32]Op{
		unix.IN_CREATE: Create, unix.IN_MOVED_TO | unix.IN_ISDIR: Create, unix.IN_DELETE: Remove, unix.IN_DELETE_SELF: Remove, unix.IN_UNMOUNT: Remove,
		unix.IN_MOVED_FROM: Rename, unix.IN_MOVE_SELF: Rename, unix.IN_MODIFY: Write, unix.IN_ATTRIB: Chmod, unix.IN_IGNORED: 0, unix.IN_ISDIR: 0,
		unix.IN_CREATE | unix.IN_MODIFY: Create | Write,
	} {
		if got := (change{mask: mask}).op(); got != want {
			t.Errorf("%#x: %v, want %v", mask, got, want)
		}
	}
}

// FuzzNext takes any text apart, until it has none left.
func FuzzNext(f *testing.F) {
	f.Add(append(raw(1, unix.IN_MODIFY, "a", 16), raw(3, unix.IN_IGNORED, "", 0)...))
	f.Add(raw(-1, unix.IN_Q_OVERFLOW, "", 0)[:15])
	f.Add(huge())
	f.Fuzz(func(t *testing.T, text []byte) {
		read := 0
		for rest := text; len(rest) > 0; {
			c, after, err := next(rest)
			if err != nil {
				return
			}
			used := len(rest) - len(after)
			if used < unix.SizeofInotifyEvent+len(c.name) || strings.ContainsRune(c.name, 0) {
				t.Fatalf("%d bytes are %+v", used, c)
			}
			read += used
			rest = after
		}
		if read != len(text) {
			t.Errorf("%d of %d bytes were read", read, len(text))
		}
	})
}

// huge returns an event that says its name takes almost 4 GiB.
func huge() []byte {
	text := raw(1, unix.IN_CREATE, "", 32)
	binary.NativeEndian.PutUint32(text[12:], 1<<32-1)
	return text
}
