// Command report puts the figures of BenchmarkAllocate and of BenchmarkHealth into docs/performance.md, and draws the plots there
// from the former.
//
// It copies its input to its output. "make performance" does it all.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func main() {
	if err := run(os.Stdin, os.Stdout, "docs"); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

// A size is the result for one size of node.
type size struct {
	devices, pods int
	values        map[string]float64 // by unit
}

// A result is what the benchmarks have printed.
type result struct {
	machine string // the name of the processor
	sizes   []size
	health  map[string]float64 // of BenchmarkHealth, by unit
}

func run(from io.Reader, to io.Writer, docs string) error {
	r, err := parse(io.TeeReader(from, to))
	switch {
	case err != nil:
		return err
	case len(r.sizes) == 0:
		return fmt.Errorf("there is no result of BenchmarkAllocate")
	case r.health == nil:
		return fmt.Errorf("there is no result of BenchmarkHealth")
	}
	for _, p := range []plot{
		{"allocate", "From bound to assigned, one pod with one device", "µs", r.sizes, []series{
			{"kubelet", "µs-kubelet", 0}, {"devmgrd", "µs-devmgrd", 1}, {"floor: one call and one commit of devmgrd's store", "µs-floor", 2},
		}},
		{"restart", "From the start of the device manager until a pod gets a device", "ms", r.sizes, []series{
			{"kubelet", "ms-first-kubelet", 0}, {"devmgrd", "ms-first-devmgrd", 1},
		}},
	} {
		for _, theme := range []theme{light, dark} {
			file := filepath.Join(docs, "images", p.name+"-"+theme.name+".svg")
			if err := os.WriteFile(file, []byte(p.draw(theme)), 0o644); err != nil {
				return err
			}
		}
	}
	return write(filepath.Join(docs, "performance.md"), r.table())
}

// parse reads the output of the benchmarks.
func parse(from io.Reader) (r result, err error) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if name, ok := strings.CutPrefix(lines.Text(), "cpu: "); ok {
			r.machine = name
		}
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		values, err := valuesOf(fields)
		if err != nil {
			return result{}, err
		}
		switch name, _, _ := strings.Cut(fields[0], "/"); {
		case name == "BenchmarkAllocate":
			one := size{values: values}
			if _, err := fmt.Sscanf(fields[0], "BenchmarkAllocate/devices=%d/pods=%d", &one.devices, &one.pods); err != nil {
				return result{}, fmt.Errorf("%s: %w", fields[0], err)
			}
			r.sizes = append(r.sizes, one)
		case strings.HasPrefix(name, "BenchmarkHealth"): // with the number of processors at its end
			r.health = values
		}
	}
	return r, lines.Err()
}

// valuesOf returns the values of a benchmark's result by unit.
func valuesOf(fields []string) (map[string]float64, error) {
	values := map[string]float64{}
	for i := 2; i+1 < len(fields); i += 2 {
		v, err := strconv.ParseFloat(fields[i], 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", fields[0], err)
		}
		values[fields[i+1]] = v
	}
	return values, nil
}

// table returns the tables as Markdown.
func (r result) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s.\n\n", time.Now().UTC().Format(time.DateOnly), r.machine)
	b.WriteString("| devices | pods | kubelet | devmgrd | floor | kubelet to floor | devmgrd to floor |\n|---|---|---|---|---|---|---|\n")
	for _, s := range r.sizes {
		v := s.values
		fmt.Fprintf(&b, "| %d | %d | %.0f µs | %.0f µs | %.0f µs | %.2f | %.2f |\n", s.devices, s.pods,
			v["µs-kubelet"], v["µs-devmgrd"], v["µs-floor"], v["kubelet/floor"], v["devmgrd/floor"])
	}
	b.WriteString("\n| devices | pods | come and go together | in a second: kubelet | devmgrd |\n|---|---|---|---|---|\n")
	for _, s := range r.sizes {
		v := s.values
		fmt.Fprintf(&b, "| %d | %d | %.0f | %.0f | %.0f |\n", s.devices, s.pods, v["pods-together"], v["pods/s-kubelet"], v["pods/s-devmgrd"])
	}
	b.WriteString("\n| devices | pods | from the start until the capacity is known: kubelet | devmgrd | until a pod gets a device: kubelet | devmgrd | written for a pod: kubelet | devmgrd | memory: kubelet | devmgrd |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, s := range r.sizes {
		v := s.values
		fmt.Fprintf(&b, "| %d | %d | %.0f ms | %.0f ms | %.0f ms | %.0f ms | %.0f KiB | %.0f KiB | %.0f MiB | %.0f MiB |\n", s.devices, s.pods,
			v["ms-full-kubelet"], v["ms-full-devmgrd"], v["ms-first-kubelet"], v["ms-first-devmgrd"], v["KiB-kubelet/pod"], v["KiB-devmgrd/pod"], v["MiB-kubelet"], v["MiB-devmgrd"])
	}
	b.WriteString("\n| a device has | until the Node shows it: kubelet | longest | devmgrd | longest |\n|---|---|---|---|---|\n")
	for _, what := range []string{"failed", "recovered"} {
		of := func(kind string) float64 { return r.health["s-"+what+"-"+kind] }
		fmt.Fprintf(&b, "| %s | %.2f s | %.2f s | %.2f s | %.2f s |\n", what, of("kubelet"), of("longest-kubelet"), of("devmgrd"), of("longest-devmgrd"))
	}
	return b.String()
}

const (
	mark    = "<!-- generated by make performance -->\n"
	markEnd = "<!-- end -->\n"
)

// write puts text between the marks of a document.
func write(file, text string) error {
	was, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(was), mark)
	_, tail, also := strings.Cut(rest, markEnd)
	if !ok || !also {
		return fmt.Errorf("%s has no marks for the table", file)
	}
	return os.WriteFile(file, []byte(head+mark+text+markEnd+tail), 0o644)
}
