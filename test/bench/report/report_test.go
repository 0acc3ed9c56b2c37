package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const output = `goos: linux
cpu: A Processor
BenchmarkAllocate/devices=10/pods=0-2 	 100	 0 ns/op	 900.5 µs-kubelet	 700 µs-devmgrd	 600 µs-floor	 1.17 devmgrd/floor	 1.5 kubelet/floor	 12 ms-full-kubelet	 0 ms-full-devmgrd	 13 ms-first-kubelet	 3 ms-first-devmgrd
BenchmarkAllocate/devices=50000/pods=5000-2 	 10	 0 ns/op	 90000 µs-kubelet	 710 µs-devmgrd	 600 µs-floor	 1.18 devmgrd/floor	 150 kubelet/floor	 1200 ms-full-kubelet	 0 ms-full-devmgrd	 1300 ms-first-kubelet	 4 ms-first-devmgrd
BenchmarkHealth-2	1	0 ns/op	5.25 s-failed-kubelet	9.5 s-failed-longest-kubelet	5.01 s-failed-devmgrd	5.04 s-failed-longest-devmgrd	0.02 s-recovered-devmgrd
BenchmarkList/x-2	1	2 ns/op
BenchmarkNUMA/nodes=2/cpus=32/policy-2	1	0 ns/op	400 aligned	100 apart	0 failed	1.25 steps-waited
BenchmarkNUMA/nodes=2/cpus=32/static-followed-2	1	0 ns/op	300 aligned	200 apart	0 failed	2 steps-waited
BenchmarkNUMA/nodes=4/cpus=32/kubelet-2	1	0 ns/op	390 aligned	0 apart	110 failed	0.5 steps-waited
PASS
`

func TestReport(t *testing.T) {
	docs := t.TempDir()
	file := filepath.Join(docs, "performance.md")
	if err := errors.Join(os.Mkdir(filepath.Join(docs, "images"), 0o755), os.WriteFile(file, []byte("head\n"+mark+"old\n"+markEnd+markNUMA+"old\n"+markEnd+"tail\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	var shown strings.Builder
	if err := run(strings.NewReader(output), &shown, docs); err != nil {
		t.Fatal(err)
	}
	if shown.String() != output {
		t.Errorf("it has shown %q", shown.String())
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"head\n", "A Processor", "| 50000 | 5000 | 90000 µs | 710 µs | 600 µs | 150.00 | 1.18 |", "| failed | 5.25 s | 9.50 s | 5.01 s | 5.04 s |", "| recovered | 0.00 s | 0.00 s | 0.02 s |", "| 1200 ms | 0 ms | 1300 ms | 4 ms |",
		"| 2 | 32 | 400 | 0 | 0 | 0 | 300 |", "| 4 | 32 | 0 | 0 | 390; 110 failed | 0 | 0 |", "| 2 | 32 | 1.2 | 0.0 | 0.0 | 0.0 | 2.0 |", markEnd + "tail\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the document lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "old") {
		t.Error("the old table is there still")
	}
	images, err := filepath.Glob(filepath.Join(docs, "images", "*.svg"))
	if err != nil || len(images) != 4 {
		t.Errorf("images: %q, %v", images, err)
	}
	for _, name := range images {
		file, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		for d := xml.NewDecoder(file); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	alone := output[strings.Index(output, "BenchmarkNUMA"):]
	if err := run(strings.NewReader(alone), io.Discard, docs); err != nil {
		t.Errorf("with results of BenchmarkNUMA only: %v", err)
	}
	if again, err := os.ReadFile(file); err != nil || string(again) != string(text) {
		t.Errorf("results of BenchmarkNUMA alone have changed the document (%v):\n%s", err, again)
	}
	for _, lacks := range []string{"BenchmarkAllocate", "BenchmarkHealth"} {
		err := run(strings.NewReader(strings.ReplaceAll(output, lacks, "BenchmarkOther")), io.Discard, docs)
		if err == nil || !strings.Contains(err.Error(), lacks) {
			t.Errorf("without a result of %s: %v", lacks, err)
		}
	}
}
