package cluster

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"
	"time"
)

func TestProcessorTime_Records_AreSummedByProgram(t *testing.T) {
	r := Run{Dir: t.TempDir()}
	var file bytes.Buffer
	for _, record := range []accountRecord{
		{User: 150, System: 50, Program: [16]byte{'r', 'u', 'n', 'c'}},
		{User: 100, Program: [16]byte{'r', 'u', 'n', 'c'}},
		{User: 1<<13 | 1000, Program: [16]byte{'e', 't', 'c', 'd'}}, // 8 times 1000
		{User: 1, Program: [16]byte{'c', 't', 'r'}},
	} {
		if err := binary.Write(&file, binary.NativeEndian, record); err != nil {
			t.Fatal(err)
		}
	}
	if n := file.Len(); n != 4*64 {
		t.Errorf("4 records are %d bytes", n)
	}
	if err := os.WriteFile(r.accountPath(), file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	const want = "processor time: 90 s, etcd 80.0 of 1, runc 3.0 of 2, short processes 7.0"
	if got := r.processorTime(90 * time.Second); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
