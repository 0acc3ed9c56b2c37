package store

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
)

// What is read of a pod is what was written, or an error: never a pod that holds what it does not ask for.
func FuzzStoredPod(f *testing.F) {
	for _, s := range []string{
		`{"demand":{"pod":{"uid":"u"},"demands":[{"container":{"pod":"u","name":"c"},"wants":{"a.b/c":1}}]},"assignments":[{"container":{"pod":"u","name":"c"},"shares":[{"resource":"a.b/c","ids":["1"]}]}]}`,
		`{"demand":{"pod":{"uid":"u"},"local":true},"assignments":[{"container":{"pod":"u","name":"c"},"shares":null}]}`,
		`{"demand":{"pod":{"uid":"v"}}}`, `null`, `{`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := readPod("u", []byte(text))
		if err != nil {
			return
		}
		for _, as := range r.Assignments {
			d, ok := r.Demand.Of(as.Container.Name)
			if !ok || as.Container.Pod != "u" {
				t.Fatalf("%q: no demand for %+v", text, as)
			}
			for _, s := range as.Shares {
				if len(s.IDs) != d.Wants[s.Resource] {
					t.Fatalf("%q: %+v is not what %+v asks for", text, s, d)
				}
			}
		}
		again, err := json.Marshal(r)
		if err != nil {
			return // a time that cannot be written: nothing of ours
		}
		back, err := readPod("u", again)
		if err != nil {
			t.Fatalf("%q: written as %s, and then %v", text, again, err)
		}
		if third, err := json.Marshal(back); err != nil || !bytes.Equal(third, again) {
			t.Fatalf("%q: written as %s, and then as %s, %v", text, again, third, err)
		}
	})
}

func FuzzStoredDevice(f *testing.F) {
	f.Add([]byte{1})
	f.Add([]byte{0, 1, 0x80, 1})
	f.Add([]byte{1, 0x80})
	f.Fuzz(func(t *testing.T, value []byte) {
		d, err := decodeDevice(value)
		if err != nil {
			return
		}
		back, err := decodeDevice(encodeDevice(nil, d))
		if err != nil || !reflect.DeepEqual(back, d) {
			t.Fatalf("%v: %+v, and read again %+v, %v", value, d, back, err)
		}
	})
}
