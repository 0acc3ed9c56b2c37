// Command report puts the figures of BenchmarkAllocate and of BenchmarkHealth into docs/performance.md, and draws the plots there
// from the former. Those of BenchmarkNUMA have a section of their own, which it writes also without the others.
//
// It copies its input to its output. "make performance" does it all, "make performance-numa" the latter.
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
	numa    []numa
}

// A numa is the result of BenchmarkNUMA for a machine.
type numa struct {
	nodes, cpus int
	ways        map[string]map[string]float64 // by way, and by unit
}

func run(from io.Reader, to io.Writer, docs string) error {
	r, err := parse(io.TeeReader(from, to))
	switch {
	case err != nil:
		return err
	case len(r.numa) > 0 && len(r.sizes) == 0 && r.health == nil:
		return r.writeNUMA(docs)
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
	if err := r.writeNUMA(docs); err != nil {
		return err
	}
	return write(filepath.Join(docs, "performance.md"), mark, r.table())
}

// writeNUMA writes the section of BenchmarkNUMA, if there is a result of that.
func (r result) writeNUMA(docs string) error {
	if len(r.numa) == 0 {
		return nil
	}
	return write(filepath.Join(docs, "performance.md"), markNUMA, r.numaTables())
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
		case name == "BenchmarkNUMA":
			var one numa
			var way string
			spaced := strings.NewReplacer("/", " ").Replace(fields[0])
			if _, err := fmt.Sscanf(spaced, "BenchmarkNUMA nodes=%d cpus=%d %s", &one.nodes, &one.cpus, &way); err != nil {
				return result{}, fmt.Errorf("%s: %w", fields[0], err)
			}
			last := len(r.numa) - 1
			if last < 0 || r.numa[last].nodes != one.nodes || r.numa[last].cpus != one.cpus {
				one.ways = map[string]map[string]float64{}
				r.numa = append(r.numa, one)
				last++
			}
			r.numa[last].ways[way[:strings.LastIndex(way, "-")]] = values // without the number of processors at its end
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

// numaTables returns the tables of BenchmarkNUMA as Markdown.
func (r result) numaTables() string {
	ways := []struct{ name, title string }{
		{"policy", "devmgrd, CPU policy"}, {"strict", "devmgrd, strict CPU policy"}, {"kubelet", "kubelet"},
		{"static", "devmgrd, the kubelet's CPU manager"}, {"static-followed", "likewise, devices near the CPUs"},
	}
	var b strings.Builder
	table := func(first string, cell func(map[string]float64) string) {
		fmt.Fprintf(&b, "| NUMA nodes | CPUs | %s", first)
		for i, w := range ways {
			if i > 0 {
				b.WriteString(" | ")
			}
			b.WriteString(w.title)
		}
		b.WriteString(" |\n|---|---|" + strings.Repeat("---|", len(ways)) + "\n")
		for _, m := range r.numa {
			fmt.Fprintf(&b, "| %d | %d |", m.nodes, m.cpus)
			for _, w := range ways {
				fmt.Fprintf(&b, " %s |", cell(m.ways[w.name]))
			}
			b.WriteString("\n")
		}
	}
	table("pods near their devices: ", func(v map[string]float64) string {
		if v["failed"] > 0 {
			return fmt.Sprintf("%.0f; %.0f failed", v["aligned"], v["failed"])
		}
		return fmt.Sprintf("%.0f", v["aligned"])
	})
	b.WriteString("\n")
	table("steps until a pod starts: ", func(v map[string]float64) string { return fmt.Sprintf("%.1f", v["steps-waited"]) })
	return b.String()
}

const (
	mark     = "<!-- generated by make performance -->\n"
	markNUMA = "<!-- generated by make performance-numa -->\n"
	markEnd  = "<!-- end -->\n"
)

// write puts text between a mark of a document and the end that follows it.
func write(file, mark, text string) error {
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
