package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/spf13/cobra/doc"

	"github.com/devmgrd/devmgrd/internal/cli"
	"github.com/devmgrd/devmgrd/internal/version"
)

func main() {
	if err := run(os.Args[1:], os.Getenv("SOURCE_DATE_EPOCH")); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

// run writes the pages into the directory that args name. epoch is the pages' date in Unix seconds, so that the same source
// yields the same pages; empty: today.
func run(args []string, epoch string) error {
	if len(args) != 1 {
		return fmt.Errorf("name one directory for the pages, not %q", args)
	}
	day := time.Now().UTC()
	if epoch != "" {
		seconds, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return fmt.Errorf("SOURCE_DATE_EPOCH: %q is not a number of seconds; set it to the commit's time, or unset it", epoch)
		}
		day = time.Unix(seconds, 0).UTC()
	}
	dir := args[0]
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	source := "devmgrd " + version.Get().Version
	root := cli.Root()
	root.DisableAutoGenTag = true
	header := doc.GenManHeader{Section: "8", Date: &day, Source: source, Manual: "System Administration"}
	if err := doc.GenManTreeFromOpts(root, doc.GenManTreeOptions{Header: &header, Path: dir, CommandSeparator: "-"}); err != nil {
		return err
	}
	daemon := filepath.Join(dir, "devmgrd.8")
	text, err := os.ReadFile(daemon)
	if err != nil {
		return err
	}
	before, after, found := bytes.Cut(text, []byte(seeAlso))
	if !found {
		return fmt.Errorf("%s has no section SEE ALSO", daemon)
	}
	text = slices.Concat(before, md2man.Render([]byte(daemonSections)), []byte(seeAlso), after)
	config := md2man.Render([]byte(configPage(day.Format("Jan 2006"), source)))
	return errors.Join(os.WriteFile(daemon, text, 0o644), os.WriteFile(filepath.Join(dir, "devmgrd.yaml.5"), config, 0o644))
}

// seeAlso is the last section of each page.
const seeAlso = "\n.SH SEE ALSO\n"
