package nri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/containerd/ttrpc"

	"github.com/devmgrd/devmgrd/internal/device"
)

// neighbour is a container with one device, which has to get it whatever becomes of others.
var neighbour = device.Container{Pod: "uid-neighbour", Name: "main"}

// A lane is the runtime's side of a connection on which one container is tried while others are made.
type lane struct {
	*adaptation.Adaptation
	*listener
	t *testing.T
}

func newLane(t *testing.T) *lane {
	r, socket := runtime(t, nil, nil)
	l := connect(t, socket, startLimit)
	l.list(t)
	n := &lane{r, l, t}
	for n.counted() == 0 { // the runtime takes a plugin up a moment after it has synchronized it
		n.mu.Lock()
		n.stands = map[device.Container]device.Readiness{neighbour: {State: device.Ready, Assignment: device.Assignment{
			Container: neighbour, Shares: []device.Share{{Resource: "a.com/x", IDs: []device.ID{"1"}, Grant: device.Grant{Env: map[string]string{"DEVICE": "1"}}}},
		}}}
		n.mu.Unlock()
		n.makeNeighbour()
	}
	return n
}

func (n *lane) counted() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.claims
}

// stand sets how the container main stands.
func (n *lane) stand(s device.Readiness) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stands[main] = s
}

// makeNeighbour has the runtime make the neighbour, and returns the variables that it gets.
func (n *lane) makeNeighbour() []*api.KeyValue {
	n.t.Helper()
	pod := sandbox()
	pod.Uid, pod.Id, pod.Name = string(neighbour.Pod), "s-neighbour", "neighbour"
	c := container()
	c.Id, c.PodSandboxId = "c-neighbour", pod.Id
	answer, err := n.CreateContainer(n.t.Context(), &api.CreateContainerRequest{Pod: pod, Container: c})
	if err != nil {
		n.t.Errorf("the neighbour is not made: %v", err)
	}
	return answer.GetAdjust().GetEnv()
}

// makes has the runtime make a container while the neighbour is made, and sees that neither ends the connection.
func (n *lane) makes(pod *api.PodSandbox, c *api.Container) error {
	n.t.Helper()
	began := time.Now()
	tried := make(chan error, 1)
	go func() {
		_, err := n.CreateContainer(n.t.Context(), &api.CreateContainerRequest{Pod: pod, Container: c})
		n.t.Logf("%d bytes: answered after %s", c.SizeVT(), time.Since(began).Round(time.Microsecond))
		tried <- err
	}()
	during := n.makeNeighbour()
	err := <-tried
	if took := time.Since(began); took > patience*3/4 { // the runtime waits a whole patience for an answer that does not come
		n.t.Errorf("the answer took %s", took)
	}
	for when, env := range map[string][]*api.KeyValue{"during it": during, "after it": n.makeNeighbour()} {
		if len(env) != 1 || env[0].GetKey() != "DEVICE" {
			n.t.Errorf("%s the neighbour gets the variables %v", when, env)
		}
	}
	if len(n.lists) > 0 {
		n.t.Fatal("the connection was lost")
	}
	return err
}

func withGrant(g device.Grant) device.Readiness {
	return device.Readiness{State: device.Ready, Assignment: device.Assignment{Container: main, Shares: []device.Share{{Resource: "a.com/x", IDs: []device.ID{"1"}, Grant: g}}}}
}

// sized returns a container with this many bytes of arguments.
func sized(n int, of string) *api.Container {
	c := container()
	for n > 0 {
		arg := strings.Repeat(of, max(1, min(n, 100_000)/len(of)))
		c.Args = append(c.Args, arg)
		n -= len(arg)
	}
	return c
}

// What a tenant writes into a pod and what a plugin grants never end the connection to the runtime, and other containers get their
// devices meanwhile.
func TestMessages_NeverEndTheConnection(t *testing.T) {
	t.Parallel()
	uuids := strings.Repeat("GPU-8f6d2c4e-1111-2222-3333-444455556666,", 4)
	const reference = "$(NVIDIA_VISIBLE_DEVICES)"
	refers := func(value string) device.Readiness {
		st := withGrant(device.Grant{Env: map[string]string{"NVIDIA_VISIBLE_DEVICES": value}})
		st.Demand.Refs = []string{"NVIDIA_VISIBLE_DEVICES"}
		return st
	}
	variable := func(n int) device.Readiness {
		return withGrant(device.Grant{Env: map[string]string{"BIG": strings.Repeat("x", n)}})
	}
	directories := device.Grant{}
	for i := range 2000 {
		directories.Nodes = append(directories.Nodes, device.Node{HostPath: "/dev", ContainerPath: fmt.Sprintf("/dev/%034d", i), Permissions: "r"})
	}
	mounts := device.Grant{}
	deep := t.TempDir() // the path is longer than what leads to it
	for range 10 {
		deep = filepath.Join(deep, strings.Repeat("d", 200))
	}
	link := filepath.Join(t.TempDir(), "l")
	mkdirAndLink(t, deep, link)
	for i := range 1000 {
		mounts.Mounts = append(mounts.Mounts, device.Mount{HostPath: link, ContainerPath: fmt.Sprintf("/m/%d", i)})
	}
	// The size at which the answer alone has 4 MiB as the runtime reads it: the answer's own fields take the rest.
	edge := func(beyond int) device.Readiness {
		const target = maxMessage
		n := target - 200
		for {
			adj := &api.ContainerAdjustment{}
			adj.AddEnv("BIG", strings.Repeat("x", n))
			adj.AddAnnotation(stampKey, `{"a.com/x":["1"]}`)
			encoded := (&api.CreateContainerResponse{Adjust: adj}).SizeVT()
			if encoded == target+beyond {
				return variable(n)
			}
			n += target + beyond - encoded
		}
	}
	for name, test := range map[string]struct {
		st     device.Readiness
		ctr    *api.Container
		reason device.Reason // empty: the container is made
		says   string
	}{
		"references to a long variable":   {refers(uuids), sized(1_000_000, reference), device.ContainerTooLarge, "the container's arguments, now 1000000 bytes"},
		"references to a very long one":   {refers(strings.Repeat("x", 200<<10)), sized(1_000_000, reference), device.ContainerTooLarge, "arguments"},
		"references to 1 MiB":             {refers(strings.Repeat("x", 1<<20)), sized(40_000*len(reference), reference), device.PluginError, "a.com/x"},
		"a few references":                {refers(uuids), sized(1_000*len(reference), reference), "", ""},
		"one reference in many arguments": {refers(uuids), func() *api.Container { c := sized(1_400_000, "x"); c.Args = append(c.Args, reference); return c }(), "", ""},
		"a reference in too many":         {refers(uuids), func() *api.Container { c := sized(1_600_000, "x"); c.Args = append(c.Args, reference); return c }(), device.ContainerTooLarge, "arguments 16000"},
		"many arguments":                  {variable(200_000), sized(2_500_000, "x"), "", ""},
		"too many arguments":              {variable(200_000), sized(3_000_000, "x"), device.ContainerTooLarge, "arguments 3000000"},
		"a container beyond a message":    {variable(1), sized(5<<20, "x"), "", "exceed maximum message size"},
		"a variable of 5 MiB":             {variable(5 << 20), container(), device.PluginError, "a.com/x"},
		"an answer of 4 MiB less a byte":  {edge(-1), container(), device.PluginError, "a.com/x"},
		"an answer of 4 MiB":              {edge(0), container(), device.PluginError, "a.com/x"},
		"an answer of 4 MiB and a byte":   {edge(1), container(), device.PluginError, "a.com/x"},
		"as much as a grant may have":     {variable(device.MaxGrant - 67), container(), "", ""},
		"a byte more":                     {variable(device.MaxGrant - 66), container(), device.PluginError, "a.com/x"},
		"directories of device nodes":     {withGrant(directories), container(), device.PluginError, "at a device node"},
		"mounts that lead far":            {withGrant(mounts), container(), device.PluginError, "at a mount"},
		"a name that is quoted":           {withGrant(device.Grant{Env: map[string]string{"-" + strings.Repeat("\x01", 200<<10): ""}}), container(), device.PluginError, "begins with -"},
		"a wait with a long message":      {device.Readiness{State: device.Waiting, Wait: device.Wait{Reason: device.PluginError, Message: strings.Repeat("x", 5<<20)}}, container(), device.PluginError, "xxx ..."},
	} {
		t.Run(name, func(t *testing.T) {
			n := newLane(t)
			before := n.counted()
			n.stand(test.st)
			err := n.makes(sandbox(), test.ctr)
			want := "cannot start yet: " + string(test.reason)
			switch {
			case test.reason == "" && test.says == "":
				if err != nil {
					t.Errorf("the container is not made: %v", err)
				}
				return
			case test.reason == "":
				want = test.says
			case strings.Contains(fmt.Sprint(err), "file system does not answer"): // a machine that is too slow to come that far
				return
			}
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), test.says) {
				t.Fatalf("%.500v, want %q and %q", err, want, test.says)
			}
			if len(err.Error()) > 2*maxError {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
			if got := n.counted() - before; got != 2 { // the neighbour's
				t.Errorf("%d claims stand, want the neighbour's 2", got)
			}
		})
	}
}

// A state file of an earlier version has a grant that is too large for a container. The hook reports it to the ledger, which asks the
// plugin for another one.
func TestGrantTooLarge_OfAnOldStateFile_IsAskedForAgain(t *testing.T) {
	t.Parallel()
	p, w := newPlugin(t)
	w.set(withGrant(device.Grant{Env: map[string]string{"BIG": strings.Repeat("x", 5<<20)}}))
	if _, _, err := p.CreateContainer(t.Context(), sandbox(), container()); err == nil {
		t.Error("the container passed")
	}
	if want := []string{"main PluginError lapsed=true"}; !slices.Equal(w.refused, want) || w.claims != 0 {
		t.Errorf("the ledger heard %q, and %d claims stand", w.refused, w.claims)
	}
	st := withGrant(device.Grant{Env: map[string]string{"A": strings.Repeat("x", 1000)}})
	st.Demand.Refs = []string{"A"}
	w.set(st)
	if _, _, err := p.CreateContainer(t.Context(), sandbox(), sized(1_000_000, "$(A)")); err == nil {
		t.Error("the container passed")
	}
	if want := "main ContainerTooLarge lapsed=false"; len(w.refused) != 2 || w.refused[1] != want {
		t.Errorf("the ledger heard %q, want %q", w.refused, want)
	}
}

// A talker is an NRI plugin whose answers the test sets.
type talker struct {
	adjust *api.ContainerAdjustment
	err    error
}

func (p *talker) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	return p.adjust, nil, p.err
}

// Whatever a handler answers, the connection carries it or an error, and stays.
func TestBounded(t *testing.T) {
	t.Parallel()
	r, socket := runtime(t, nil, nil)
	p := &talker{err: errors.New("not yet")}
	lost := make(chan struct{})
	s, err := stub.New(p, stub.WithPluginName("talker"), stub.WithPluginIdx("10"), stub.WithSocketPath(socket), stub.WithOnClose(func() { close(lost) }),
		stub.WithTTRPCOptions(nil, []ttrpc.ServerOpt{ttrpc.WithUnaryServerInterceptor(bounded)}))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	answer := func() (*api.CreateContainerResponse, error) {
		return r.CreateContainer(t.Context(), &api.CreateContainerRequest{Pod: sandbox(), Container: container()})
	}
	for err == nil { // until the runtime has taken the plugin up
		_, err = answer()
	}
	args := func(encoded int) *api.ContainerAdjustment {
		for n := encoded - 20; ; n++ {
			adj := &api.ContainerAdjustment{Args: []string{strings.Repeat("x", n)}}
			if (&api.CreateContainerResponse{Adjust: adj}).SizeVT() == encoded {
				return adj
			}
		}
	}
	for name, test := range map[string]struct {
		talker
		says string // in the error; empty: the answer arrives
	}{
		"as much as is let through":       {talker{adjust: args(maxMessage - maxError)}, ""},
		"a byte more":                     {talker{adjust: args(maxMessage - maxError + 1)}, "internal error: an answer of"},
		"a message less a byte":           {talker{adjust: args(maxMessage - 1)}, "internal error: an answer of"},
		"a message":                       {talker{adjust: args(maxMessage)}, "internal error: an answer of"},
		"a message and a byte":            {talker{adjust: args(maxMessage + 1)}, "internal error: an answer of"},
		"an error as long as two of them": {talker{err: errors.New("oh " + strings.Repeat("é", maxMessage))}, "oh éé"},
	} {
		t.Run(name, func(t *testing.T) {
			*p = test.talker
			got, err := answer()
			if test.says == "" && (err != nil || len(got.GetAdjust().GetArgs()) != 1) {
				t.Errorf("the answer has not arrived: %v", err)
			}
			if test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says) || len(err.Error()) > maxError+200) {
				t.Errorf("%.300v, want %q", err, test.says)
			}
			select {
			case <-lost:
				t.Fatal("the connection was lost")
			default:
			}
		})
	}
}

// Events about containers that are larger than a message fail at the runtime, and the connection stays.
func TestEventsBeyondAMessage(t *testing.T) {
	t.Parallel()
	n := newLane(t)
	large := sized(5<<20, "x")
	for name, event := range map[string]func() error{
		"StartContainer": func() error {
			return n.StartContainer(t.Context(), &api.StartContainerRequest{Pod: sandbox(), Container: large})
		},
		"StopContainer": func() error {
			_, err := n.StopContainer(t.Context(), &api.StopContainerRequest{Pod: sandbox(), Container: large})
			return err
		},
		"RemoveContainer": func() error {
			return n.RemoveContainer(t.Context(), &api.RemoveContainerRequest{Pod: sandbox(), Container: large})
		},
	} {
		if err := event(); err == nil || !strings.Contains(err.Error(), "exceed maximum message size") {
			t.Errorf("%s: %v", name, err)
		}
		if env := n.makeNeighbour(); len(env) != 1 || len(n.lists) > 0 {
			t.Fatalf("after %s the neighbour gets %v, and the connection was lost %d times", name, env, len(n.lists))
		}
	}
}

// An expanded command line never takes more memory than it may have, and what is given back is what the runtime would make of it.
func FuzzExpand(f *testing.F) {
	f.Add("a$(A)b", "$(B)$(A)", "value", "$(A)", 10)
	f.Add("$(A)", "$$(A)", "", "", 0)
	f.Add(strings.Repeat("$(A)", 100), "", strings.Repeat("x", 100), "x", 1000)
	f.Fuzz(func(t *testing.T, first, second, a, b string, most int) {
		most = max(0, min(most, maxAdded))
		args, env := []string{first, second}, map[string]string{"A": a, "B": b}
		got, changed, err := expand(args, []string{"A", "B"}, env, most)
		replace := strings.NewReplacer("$(A)", a, "$(B)", b)
		want := []string{replace.Replace(first), replace.Replace(second)}
		tooLong := length(want) > length(args)+most
		switch {
		case err != nil && !tooLong:
			t.Errorf("%q with %q and %q: %v, and it has %d bytes", args, a, b, err, length(want))
		case err == nil && (tooLong || !slices.Equal(got, want) || changed != !slices.Equal(args, want)):
			t.Errorf("%q with %q and %q became %q, %v; want %q", args, a, b, got, changed, want)
		}
	})
}

func mkdirAndLink(t *testing.T, dir, link string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.Symlink(dir, link)); err != nil {
		t.Fatal(err)
	}
}
