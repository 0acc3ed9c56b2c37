package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/socket"
)

// asideSuffix is what the kubelet's directory is called when it has been moved aside, after its own name.
const asideSuffix = ".before-devmgrd"

// freeName returns a name that nothing has: this one, or with a number after it.
func freeName(name string) string {
	free := name
	for i := 2; ; i++ {
		if _, err := os.Lstat(free); err != nil {
			return free
		}
		free = fmt.Sprintf("%s-%d", name, i)
	}
}

// setAside moves the kubelet's directory away, and puts a new one in its place that holds what stays with the kubelet.
//
// A kubelet that finds its file claims all resources in it. And one that starts is seen by the plugins that watch its
// directory, which register with it again: it would write its own numbers on the Node, give the same devices out, and
// refuse pods for minutes once the plugins' pods are recreated. Their containers hold the old directory, wherever it is
// moved, and never see what happens in the new one.
func setAside(dir string, stays checkpoint.File) (aside string, err error) {
	info, err := os.Stat(dir)
	if err != nil {
		return "", err
	}
	aside = freeName(dir + asideSuffix)
	draft, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(dir)+".new-")
	if err != nil {
		return "", err
	}
	// The kubelet must not find the directory empty: see internal/nodestatus, which keeps this file.
	note := fmt.Sprintf("What was here is in %s, since %s: devmgrd has taken over the kubelet's assignments.\n"+
		"devmgrd keeps this file here so that the kubelet does not find this directory empty when it starts.\n", aside, time.Now().UTC().Format(time.RFC3339))
	err = errors.Join(os.Chmod(draft, info.Mode().Perm()), os.WriteFile(filepath.Join(draft, "devmgrd.txt"), []byte(note), 0o644))
	if err == nil && !stays.Empty() {
		var data []byte
		if data, err = stays.Encode(); err == nil {
			err = checkpoint.Write(filepath.Join(draft, checkpoint.Name), data)
		}
	}
	if err == nil {
		err = os.Rename(dir, aside)
	}
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(draft))
	}
	return aside, os.Rename(draft, dir)
}

// listens reports whether a process takes connections at a unix socket. A link there is not followed.
func listens(path string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn, err := socket.Dial(ctx, path)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// socketsBelow returns the sockets in a directory and below. What cannot be read is passed over.
func socketsBelow(dir string) []string {
	var found []string
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type() == fs.ModeSocket {
			found = append(found, path)
		}
		return nil
	})
	return found
}
