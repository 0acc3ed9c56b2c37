package openers

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/test/plugintest"
)

// BenchmarkFind scans the machine as it is.
func BenchmarkFind(b *testing.B) { benchmark(b) }

// BenchmarkFind_ManyProcesses scans it with 2000 processes more, of 20 further descriptors each.
func BenchmarkFind_ManyProcesses(b *testing.B) {
	var files []*os.File
	for range 20 {
		f, err := os.Open(os.DevNull)
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	idle(b, 2000, files...)
	benchmark(b)
}

// BenchmarkFind_ManyDescriptors scans it with one process more, of 5000 further descriptors.
func BenchmarkFind_ManyDescriptors(b *testing.B) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	idle(b, 1, slices.Repeat([]*os.File{f}, 5000)...)
	benchmark(b)
}

func benchmark(b *testing.B) {
	plugintest.NeedRoot(b)
	b.ReportAllocs()
	var cpu time.Duration
	var processes, seen int
	for b.Loop() {
		scan := find(b, full)
		cpu, processes, seen = cpu+scan.CPU, processes+scan.Processes, seen+scan.Files
	}
	b.ReportMetric(float64(cpu.Microseconds())/float64(processes), "µs/process")
	b.ReportMetric(float64(cpu.Microseconds())/float64(seen), "µs/file")
	b.ReportMetric(float64(seen)/float64(processes), "files/process")
}
