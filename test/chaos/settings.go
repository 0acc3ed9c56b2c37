package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"time"
)

const settingsFile = hostDir + "/devmgrd.yaml"

// write writes devmgrd's settings: it looks for other processes that use devices before it releases them, or not.
func (w *world) write(looks bool) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	w.settings = fmt.Sprintf("release:\n  check: {'*': %s}\n  ignore: [%s]\nhealth:\n  suspendFor: %s\n", map[bool]string{true: "openers", false: "cgroup"}[looks], self, suspendFor)
	return os.WriteFile(settingsFile, []byte(w.settings), 0o600)
}

// configure has devmgrd restart with other settings, if they are not the same.
func (w *world) configure(ctx context.Context, looks bool) error {
	before := w.settings
	if err := w.write(looks); err != nil || w.settings == before {
		return err
	}
	w.tell("devmgrd looks for other processes: %v", looks)
	if err := w.keeper.kill(w.devmgrd, false, false); err != nil {
		return err
	}
	return w.eventually(ctx, time.Minute, func() (bool, string) {
		status, text, err := w.node.Get("/readyz")
		return err == nil && status == http.StatusOK, fmt.Sprintf("devmgrd is not ready: %s %v", text, err)
	})
}
