package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/devmgrd/devmgrd/test/node"
)

// A story is one telling of an act.
type story struct {
	*page
	n *node.Node // nil before the first step is done

	pods      []string // of act two, that run and hold devices, in the order of their creation
	sandboxes []*sandbox
}

// An act is a part of the demo on a node of its own.
type act struct {
	title string
	steps func(*story) []step
}

var actTwo = act{"Act two: the same on Kubernetes", func(s *story) []step {
	return []step{
		{"A Kubernetes node comes up, and devmgrd next to its kubelet", s.nodeComesUp},
		{"A device plugin registers, with devmgrd and not with the kubelet", s.pluginRegisters},
		{"The Node shows the devices", s.nodeShowsDevices},
		{"Two pods ask for one device each", s.podsGetDevices},
		{"Who holds what", s.whoHoldsWhat},
		{"A third pod has to wait, and gets a device when one is free", s.thirdPodWaits},
		{"devmgrd is killed with SIGKILL and started again", s.devmgrdIsKilled},
	}
}}

// A step is one part of the story.
type step struct {
	title string
	tell  func(context.Context) error
}

const stepLimit = 6 * time.Minute // on a machine that does many things at once

// inside tells the story and returns the exit status.
func inside(a act, keep bool) int {
	// Not stopped before the end: a second Ctrl-C must not cut the clean-up short.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	s := &story{page: newPage(os.Stdout)}
	if err := noteRun(); err != nil {
		return s.failed(err)
	}
	steps := a.steps(s)
	s.title(a.title)
	for i, step := range steps {
		s.head(i+1, step.title)
		if err := s.tell(ctx, step); err != nil {
			status := 130 // as a shell says of Ctrl-C
			if ctx.Err() == nil {
				status = s.failed(fmt.Errorf("step %d, %q: %w", i+1, step.title, err))
			} else {
				s.say("Interrupted.")
			}
			return max(status, s.end(len(steps)+1))
		}
	}
	if keep {
		s.stay(ctx)
	}
	return s.end(len(steps) + 1)
}

func (s *story) tell(ctx context.Context, step step) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stepLimit, fmt.Errorf("not done after %s", stepLimit))
	defer cancel()
	return step.tell(ctx)
}

// failed says why the story cannot go on. Errors of the cluster and of the node's waiting bring log lines of their own.
func (s *story) failed(err error) int {
	said := err.Error()
	if s.n != nil && !strings.Contains(said, "\n") {
		lines := strings.Split(s.n.Tail(), "\n")
		said += "\n\nThe last lines of devmgrd's log:\n" + strings.Join(lines[max(0, len(lines)-15):], "\n")
	}
	fmt.Fprintln(os.Stderr)
	for line := range strings.SplitSeq("demo: "+said, "\n") {
		fmt.Fprintln(os.Stderr, clip(line))
	}
	return 1
}

// clip keeps the kubelet's longest lines from burying the rest.
func clip(line string) string {
	const longest = 3 * width
	if len(line) <= longest {
		return line
	}
	return strings.ToValidUTF8(line[:longest], "") + " ..."
}

// end stops everything and returns the exit status.
func (s *story) end(number int) int {
	s.head(number, "Everything ends")
	if s.n != nil {
		began := time.Now()
		if err := s.n.Stop(); err != nil {
			fmt.Fprintf(os.Stderr, "\ndemo: cleaning up: %v\n", err)
			return 1
		}
		s.say("devmgrd, the plugin, the pods and all other programs have ended, within %s. Their namespaces go now.", since(began))
	}
	return 0
}

// stay keeps the cluster until Ctrl-C.
func (s *story) stay(ctx context.Context) {
	fmt.Fprintln(s.to)
	s.say("The cluster stays until Ctrl-C. From another terminal, in this folder, as the same user:")
	s.gap()
	if s.n.APIServer == nil {
		s.show("go run ./test/cluster/cmd/cluster enter                       # a shell on the node", "tail -f "+s.n.Devmgrd.LogPath())
		<-ctx.Done()
		s.gap()
		return
	}
	s.show(
		"export KUBECONFIG="+s.n.HostKubeconfig(),
		"kubectl get pods --all-namespaces",
		"kubectl describe node "+s.n.NodeName(),
		"",
		"tail -f "+s.n.Devmgrd.LogPath(),
		"",
		"go run ./test/cluster/cmd/cluster enter                       # a shell on the node",
		"go run ./test/cluster/cmd/cluster enter -- curl -s 127.0.0.1:9464/metrics",
		"go run ./test/cluster/cmd/cluster enter -- curl -s 127.0.0.1:9464/readyz",
		"go run ./test/cluster/cmd/cluster enter -- ctr -n k8s.io containers ls",
	)
	<-ctx.Done()
	s.gap()
}

// since returns how long something took, in a form for reading.
func since(began time.Time) string { return short(time.Since(began)) }

func short(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
