package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"
)

const settingsFile = hostDir + "/devmgrd.yaml"

// write writes devmgrd's settings: whether it looks for other processes that use devices before it releases them, and whether it offers the
// resource through DRA.
func (w *world) write() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	w.settings = fmt.Sprintf("release:\n  check: {'*': %s}\n  ignore: [%s]\nhealth:\n  suspendFor: %s\n", map[bool]string{true: "openers", false: "cgroup"}[w.looks], self, suspendFor)
	if w.plan.claims {
		w.settings += fmt.Sprintf("dra:\n  hold: %s\n", w.plan.hold)
	}
	w.bySlices.Store(w.offered)
	if w.offered {
		through := []string{resourceName}
		if w.trials.long != nil {
			through = append(through, longName)
		}
		if w.options.attacker {
			through = append(through, flappingName)
		}
		w.settings += fmt.Sprintf("  resources: [%s]\n", strings.Join(through, ", "))
	}
	return os.WriteFile(settingsFile, []byte(w.settings), 0o600)
}

// configure has devmgrd restart with the settings of a sequence, if they are not the same.
func (w *world) configure(ctx context.Context, looks bool) error {
	before := w.settings
	w.looks, w.offered = looks, w.plan.begins
	if err := w.write(); err != nil || w.settings == before {
		return err
	}
	w.tell("devmgrd looks for other processes: %v; %s", looks, w.plan)
	if err := w.keeper.kill(w.devmgrd, false, false); err != nil {
		return err
	}
	if err := w.eventually(ctx, time.Minute, func() (bool, string) {
		status, text, err := w.node.Get("/readyz")
		return err == nil && status == http.StatusOK, fmt.Sprintf("devmgrd is not ready: %s %v", text, err)
	}); err != nil {
		return err
	}
	return w.eventually(ctx, time.Minute, func() (bool, string) { return w.whole(ctx) })
}
