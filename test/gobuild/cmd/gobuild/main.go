// Command gobuild builds programs, or what tests import, and reports the progress. See ../../gobuild.go.
//
//	go run ./test/gobuild/cmd/gobuild -title "the demo" -o bin/demo ./test/demo
//	go run ./test/gobuild/cmd/gobuild -title "what the unit tests import" -dependencies -flags -race ./internal/...
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/devmgrd/devmgrd/test/gobuild"
)

func main() {
	var b gobuild.Build
	var flags, output string
	var dependencies bool
	flag.StringVar(&b.Title, "title", "", "what is built, for people")
	flag.StringVar(&b.Dir, "C", "", "the `directory` in which the go command runs")
	flag.StringVar(&flags, "flags", "", "`flags` for the go command, separated by spaces")
	flag.StringVar(&output, "o", "", "the program's `file`, or a directory that ends with /")
	flag.BoolVar(&dependencies, "dependencies", false, "compile what the packages and their tests import from other modules")
	test := flag.Bool("test", false, "build the package's tests")
	flag.Parse()
	if flag.NArg() == 0 || b.Title == "" {
		flag.Usage()
		os.Exit(2)
	}
	b.Flags, b.Packages = strings.Fields(flags), flag.Args()
	if output != "" {
		b.Output = []string{"-o", output}
	}
	switch {
	case dependencies:
		b.Kind = gobuild.Dependencies
	case *test:
		b.Kind = gobuild.Tests
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	fmt.Fprintf(os.Stderr, "building %s\n", b.Title)
	began := time.Now()
	if err := gobuild.Run(ctx, os.Stderr, b); err != nil {
		fmt.Fprintln(os.Stderr, "gobuild:", err)
		os.Exit(1)
	}
	if took := time.Since(began); took > 10*time.Second {
		fmt.Fprintf(os.Stderr, "built %s in %s\n", b.Title, took.Round(time.Second))
	}
}
