package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/devmgrd/devmgrd/test/cluster"
)

// A fleet is all nodes, and the control plane that they use.
type fleet struct {
	options
	cluster *cluster.Cluster
	client  kubernetes.Interface
	kubelet *meter
	devmgrd *meter
	nodes   []*node
	rows    []row
}

// A row is what one scenario has cost.
type row struct {
	name             string
	lasted           time.Duration
	kubelet, devmgrd count
	peak             int32         // answers to devmgrds in the busiest second
	cpu              time.Duration // of the API server
	note             string
}

func run(ctx context.Context, o options) (err error) {
	tools, err := cluster.Build(ctx, os.Stderr)
	if err != nil {
		return err
	}
	c, err := cluster.Start(ctx, tools, cluster.Options{Log: os.Stderr})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	config := rest.CopyConfig(c.RESTConfig())
	config.QPS, config.Burst = 1000, 1000
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	f := &fleet{options: o, cluster: c, client: client, kubelet: newMeter(), devmgrd: newMeter()}
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		for _, n := range f.nodes {
			n.work.Wait()
		}
	}()
	for i := range o.nodes {
		f.nodes = append(f.nodes, &node{name: fmt.Sprintf("sim-%05d", i), config: c.RESTConfig(), kubelet: f.kubelet, devmgrd: f.devmgrd})
	}
	for _, s := range []struct {
		name string
		do   func(context.Context) (note string, err error)
	}{
		{"all kubelets start, without devmgrd", f.startKubelets},
		{"rest, without devmgrd", f.restFor},
		{"all devmgrds start", f.startDevmgrds},
		{"rest", f.restFor},
		{"roll-out of devmgrd", f.rollOut},
		{fmt.Sprintf("%d pods start and end in a second", o.pods), f.startPods},
		{"restart of the API server", f.restartAPIServer},
		{"rest after it", f.restFor},
	} {
		if err := f.measure(ctx, s.name, s.do); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	f.print(os.Stdout)
	if o.written != "" {
		return f.write(o.written)
	}
	return nil
}

// measure plays a scenario and records its cost.
func (f *fleet) measure(ctx context.Context, name string, do func(context.Context) (string, error)) error {
	fmt.Fprintf(os.Stderr, "%s ...\n", name)
	kubelet, devmgrd, cpu, began := f.kubelet.now(), f.devmgrd.now(), f.cpu(), time.Now()
	note, err := do(ctx)
	if err != nil {
		return err
	}
	r := row{name, time.Since(began), f.kubelet.now().minus(kubelet), f.devmgrd.now().minus(devmgrd), f.devmgrd.peak(began), f.cpu() - cpu, note}
	if r.cpu < 0 { // another process
		r.cpu = f.cpu()
	}
	f.rows = append(f.rows, r)
	fmt.Fprintf(os.Stderr, "  %s: kubelets %d requests, devmgrds %d reads, %d watches, %d writes; %s\n", r.lasted.Round(time.Second/10), r.kubelet.requests(), r.devmgrd.reads, r.devmgrd.watches, r.devmgrd.writes, note)
	return nil
}

// cpu returns the time that the API server has used.
func (f *fleet) cpu() time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", f.cluster.APIServer.Pid()))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// memory returns the API server's, in MiB.
func (f *fleet) memory() int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", f.cluster.APIServer.Pid()))
	if err != nil {
		return 0
	}
	pages, _ := strconv.Atoi(strings.Fields(string(text))[1])
	return pages * os.Getpagesize() >> 20
}

// spread calls f for each node, evenly within a time.
func (f *fleet) spread(ctx context.Context, within time.Duration, do func(*node) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for i, n := range f.nodes {
		group.Go(func() error {
			pause(ctx, within*time.Duration(i)/time.Duration(len(f.nodes)))
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return do(n)
		})
	}
	return group.Wait()
}

func (f *fleet) startKubelets(ctx context.Context) (string, error) {
	err := f.spread(ctx, f.within, func(n *node) error { return n.startKubelet(ctx) })
	return fmt.Sprintf("API server: %d MiB", f.memory()), err
}

func (f *fleet) restFor(ctx context.Context) (string, error) {
	pause(ctx, f.rest)
	return fmt.Sprintf("API server: %d MiB", f.memory()), ctx.Err()
}

func (f *fleet) startDevmgrds(ctx context.Context) (string, error) {
	if err := f.spread(ctx, f.within, func(n *node) error { return n.startDevmgrd(ctx) }); err != nil {
		return "", err
	}
	took, err := f.settled(ctx)
	return fmt.Sprintf("all ready %s after the last start; API server: %d MiB", took.Round(time.Second/10), f.memory()), err
}

// settled waits until each devmgrd is ready.
func (f *fleet) settled(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	for _, n := range f.nodes {
		for n.ready() != nil {
			pause(ctx, 100*time.Millisecond)
			if ctx.Err() != nil || time.Since(began) > 10*time.Minute {
				return 0, fmt.Errorf("node %s is not ready: %w", n.name, n.ready())
			}
		}
	}
	took := time.Since(began)
	pause(ctx, 40*time.Second) // the conditions follow, which may be 30 s behind
	return took, nil
}

// rollOut replaces each devmgrd, as a DaemonSet does a tenth of all nodes after the other.
func (f *fleet) rollOut(ctx context.Context) (string, error) {
	if err := f.spread(ctx, f.within, func(n *node) error {
		n.close()
		return n.startDevmgrd(ctx)
	}); err != nil {
		return "", err
	}
	took, err := f.settled(ctx)
	return fmt.Sprintf("all ready %s after the last start", took.Round(time.Second/10)), err
}

// startPods has pods with one device each start at random nodes, and deletes each after 10 s.
func (f *fleet) startPods(ctx context.Context) (string, error) {
	pods := f.client.CoreV1().Pods(metav1.NamespaceDefault)
	_, err := f.client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	before := f.devmgrd.now()
	tick := time.NewTicker(time.Second / time.Duration(f.pods))
	defer tick.Stop()
	var work sync.WaitGroup
	total := int(f.starts/time.Second) * f.pods
	failures := make(chan error, 2*total)
	for i := range total {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", ctx.Err()
		}
		name := fmt.Sprintf("pod-%06d", i)
		one := resource.MustParse("1")
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
			NodeName: f.nodes[rand.IntN(len(f.nodes))].name,
			Containers: []corev1.Container{{Name: "main", Image: "registry.example/main:1", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{corev1.ResourceName(gpu): one}, Requests: corev1.ResourceList{corev1.ResourceName(gpu): one},
			}}},
		}}
		work.Go(func() {
			if _, err := pods.Create(ctx, p, metav1.CreateOptions{}); err != nil {
				failures <- err
				return
			}
			pause(ctx, 10*time.Second)
			if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
				failures <- err
			}
		})
	}
	work.Wait()
	close(failures)
	for err := range failures {
		return "", err
	}
	for { // until all are gone
		left, err := pods.List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return "", err
		}
		if len(left.Items) == 0 {
			break
		}
		pause(ctx, 100*time.Millisecond)
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
	}
	did := f.devmgrd.now().minus(before)
	each := float64(did.requests()-did.watches) / float64(total)
	if each > 3 {
		return "", fmt.Errorf("%.2f requests of devmgrd for each pod, besides watches", each)
	}
	return fmt.Sprintf("%d pods; %.2f requests of devmgrd for each, besides watches", total, each), nil
}

func (f *fleet) restartAPIServer(ctx context.Context) (string, error) {
	if err := f.cluster.APIServer.Kill(); err != nil {
		return "", err
	}
	pause(ctx, 5*time.Second)
	if err := f.cluster.APIServer.Start(ctx); err != nil {
		return "", err
	}
	began := time.Now()
	if err := f.cluster.WaitAPIServer(ctx); err != nil {
		return "", err
	}
	served := time.Since(began)
	if _, err := f.settled(ctx); err != nil {
		return "", err
	}
	took := time.Since(began) - 40*time.Second
	return fmt.Sprintf("it serves after %s, all devmgrds are in step after %s", served.Round(time.Second/10), took.Round(time.Second/10)), nil
}

// table writes the rows as Markdown.
func (f *fleet) table(to io.Writer) {
	fmt.Fprintln(to, "| scenario | seconds | kubelets: requests | devmgrd: reads | watches opened | writes | not answered | answers in the busiest second | KiB to and from a node | devmgrd to kubelet, requests | API server, CPU seconds | |")
	fmt.Fprintln(to, "|---|---|---|---|---|---|---|---|---|---|---|---|")
	for _, r := range f.rows {
		ratio := "-"
		if r.devmgrd.requests() > 0 && r.kubelet.requests() > 0 {
			ratio = fmt.Sprintf("%.3f", float64(r.devmgrd.requests())/float64(r.kubelet.requests()))
		}
		fmt.Fprintf(to, "| %s | %.0f | %d | %d | %d | %d | %d | %d | %.1f | %s | %.1f | %s |\n", r.name, r.lasted.Seconds(), r.kubelet.requests(),
			r.devmgrd.reads, r.devmgrd.watches, r.devmgrd.writes, r.devmgrd.failed, r.peak, float64(r.devmgrd.received+r.devmgrd.sent)/1024/float64(len(f.nodes)), ratio, r.cpu.Seconds(), r.note)
	}
}

func (f *fleet) print(to io.Writer) {
	fmt.Fprintf(to, "\n%d nodes; the longest list of pods that a devmgrd has received: %d\n\n", len(f.nodes), longestList.Load())
	f.table(to)
}

const (
	mark    = "<!-- generated by make scale -->\n"
	markEnd = "<!-- end -->\n"
)

// write puts the table between the marks of a document.
func (f *fleet) write(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(text), mark)
	_, tail, also := strings.Cut(rest, markEnd)
	if !ok || !also {
		return fmt.Errorf("%s has no marks for the table", file)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d nodes, %s.\n\n", len(f.nodes), time.Now().UTC().Format(time.DateOnly))
	f.table(&b)
	return os.WriteFile(file, []byte(head+mark+b.String()+markEnd+tail), 0o644)
}

// placeholderDir returns the directory that stands for the kubelet's plugin directory on all nodes.
func placeholderDir() (string, error) {
	dir := filepath.Join(os.TempDir(), "devmgrd-scale")
	return dir, os.MkdirAll(dir, 0o755)
}
