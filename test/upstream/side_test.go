//go:build e2e

package upstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/lockfile"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/nspawn"
)

// These variables carry what is known and made outside to the process in the machine.
const (
	sideVariable    = "TESTUPSTREAM_SIDE"    // the side that this process is
	resultsVariable = "TESTUPSTREAM_RESULTS" // the directory for the report and the logs
	packageVariable = "TESTUPSTREAM_PACKAGE" // devmgrd's Debian package
)

// options are the machine's of a side.
func options(side string) nspawn.Options {
	o := nspawn.Options{
		Dir:       "test/upstream",
		Packages:  []string{"busybox-static", "sudo"}, // of the containers, and of the suite
		Variables: []string{sideVariable},
		Writable:  []string{resultsVariable},
	}
	if side == "devmgrd" {
		o.ReadOnly = []string{packageVariable}
	}
	return o
}

// build makes all that the sides run, before the time limit of the test begins. A side finds it in the cache and in the environment.
func build(ctx context.Context, sides []string) error {
	if err := options("").Build(ctx); err != nil {
		return err
	}
	before := []func(context.Context) error{cluster.Needs(cluster.NodeSuite), node.Build}
	if slices.Contains(sides, "devmgrd") {
		before = append(before, buildPackage)
	}
	for _, f := range before {
		if err := f(ctx); err != nil {
			return err
		}
	}
	return nil
}

// The files of a side in its directory.
const (
	reportFile = "report.json"
	suiteLog   = "suite.log"
)

// busyboxImage is upstream's name; the programs are Debian's.
const busyboxImage = "registry.k8s.io/e2e-test-images/busybox:1.37.0-2"

// runSide runs the suite on one side, in a machine of its own, and ends the process. The report is in the results' directory.
func runSide(side string) {
	nspawn.Main(func() int {
		if err := inMachine(side); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}, options(side))
}

// inUse is the lock on the package's directory, which the machine sees. It ends with this process.
var inUse *os.File

// buildPackage makes devmgrd's Debian package.
func buildPackage(ctx context.Context) (err error) {
	dir := filepath.Join(nspawn.Source(), "bin", "upstream")
	if inUse, err = lockfile.Take(ctx, dir+".lock", nil); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "building devmgrd's Debian package")
	cmd := exec.CommandContext(ctx, "make", "--no-print-directory", "deb", "DIST="+dir)
	cmd.Dir = nspawn.Source()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make deb: %w\n%s", err, out)
	}
	found, err := filepath.Glob(filepath.Join(dir, "devmgrd_*.deb"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("make deb has made %q, want one package: %w", found, err)
	}
	return os.Setenv(packageVariable, found[0])
}

// inMachine starts a cluster in the machine, and devmgrd on its side, and runs the suite.
func inMachine(side string) error {
	ctx := context.Background()
	results := os.Getenv(resultsVariable)
	tools, err := cluster.Build(ctx, os.Stderr, cluster.Kubernetes, cluster.NodeSuite)
	if err != nil {
		return err
	}
	if err := nspawn.Nest(); err != nil {
		return err
	}
	c, err := cluster.Start(ctx, tools, cluster.Options{
		Units: true, Dir: filepath.Join(results, "logs"), Log: os.Stderr,
		KubeletConfig: "readOnlyPort: 10255", // as upstream's own runner has it: metrics are read there
	})
	if err != nil {
		return err
	}
	if err := c.LoadImage(ctx, busybox()); err != nil {
		return err
	}
	if side == "devmgrd" {
		if err := installDevmgrd(ctx); err != nil {
			return err
		}
		defer keepJournal(filepath.Join(results, "logs", "devmgrd.log"))
	}
	const dir = "/var/lib/e2e-node" // the suite's working directory
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := handOverKubelet(ctx, tools, dir, filepath.Join(results, "logs", "kubelet.log")); err != nil {
		return err
	}
	return runSuite(ctx, c, tools.Path("e2e_node.test"), dir, side)
}

// busybox is the image of upstream's pods.
func busybox() cluster.Image {
	image := cluster.Image{Name: busyboxImage, Entrypoint: []string{"/bin/sh"}, Files: map[string]string{"/bin/busybox": "/bin/busybox"}, Links: map[string]string{}}
	for _, applet := range []string{"[", "ash", "cat", "echo", "egrep", "env", "false", "grep", "ls", "sh", "sleep", "test", "true", "wc"} {
		image.Links["/bin/"+applet] = "busybox"
	}
	return image
}

// installDevmgrd installs the package, changes one setting, and starts devmgrd as the package says.
func installDevmgrd(ctx context.Context) error {
	if err := command(ctx, "apt-get", "install", "--yes", "--quiet", "--no-install-recommends", os.Getenv(packageVariable)); err != nil {
		return err
	}
	// The suite asks at the kubelet's path who has which devices.
	if err := os.WriteFile("/etc/devmgrd/config.yaml", []byte("podResources:\n  takeover: true\n"), 0o644); err != nil {
		return err
	}
	if err := command(ctx, "systemctl", "enable", "--now", "devmgrd.socket", "devmgrd.service"); err != nil {
		return err
	}
	return until(ctx, "devmgrd to be ready", func() error { return answers("http://127.0.0.1:9464/readyz") })
}

// handOverKubelet puts the kubelet where upstream's runner has it: a service whose name begins with "kubelet-", which the
// suite restarts, with its configuration in the suite's working directory, which the suite rewrites.
func handOverKubelet(ctx context.Context, tools cluster.Tools, dir, log string) error {
	pid, err := exec.CommandContext(ctx, "systemctl", "show", "--value", "--property=MainPID", "kubelet.service").Output()
	if err != nil {
		return fmt.Errorf("finding the kubelet: %w", err)
	}
	line, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/cmdline")
	if err != nil {
		return fmt.Errorf("finding the kubelet: %w", err)
	}
	args := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	config := filepath.Join(dir, "kubelet-config")
	moved := false
	for i, arg := range args {
		switch name, value, _ := strings.Cut(arg, "="); name {
		case "--config":
			text, err := os.ReadFile(value)
			if err != nil {
				return err
			}
			if err := os.WriteFile(config, text, 0o644); err != nil {
				return err
			}
			args[i], moved = "--config="+config, true
		case "--v":
			args[i] = "--v=4"
		}
	}
	if !moved {
		return fmt.Errorf("the kubelet has no --config among %q", args)
	}
	if err := command(ctx, "systemctl", "stop", "kubelet.service"); err != nil {
		return err
	}
	unit := fmt.Sprintf(`[Service]
Type=notify
ExecStart=%s
Environment=PATH=%s
Delegate=yes
KillMode=process
StandardOutput=append:%s
StandardError=append:%s
`, strings.Join(args, " "), tools.SearchPath(os.Getenv("PATH")), log, log)
	if err := os.WriteFile("/etc/systemd/system/kubelet-e2e.service", []byte(unit), 0o644); err != nil {
		return err
	}
	if err := errors.Join(command(ctx, "systemctl", "daemon-reload"), command(ctx, "systemctl", "start", "kubelet-e2e.service")); err != nil {
		return err
	}
	if err := until(ctx, "the kubelet to be healthy", func() error { return answers("http://127.0.0.1:10248/healthz") }); err != nil {
		return err
	}
	return until(ctx, "the PodResources API", func() error {
		conn, err := net.Dial("unix", "/var/lib/kubelet/pod-resources/kubelet.sock")
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// runSuite runs the suite to its end. That specs fail is no error here.
func runSuite(ctx context.Context, c *cluster.Cluster, suite, dir, side string) error {
	results := os.Getenv(resultsVariable)
	// Upstream's default demands options of the kernel that not every distribution sets.
	spec := filepath.Join(dir, "system-spec.yaml")
	if err := os.WriteFile(spec, []byte("os: Linux\nkernelSpec:\n  versions: ['.*']\n"), 0o644); err != nil {
		return err
	}
	const unit = "e2e-node.service"
	if side == "devmgrd" { // some specs are device plugins themselves, and the host's
		if err := command(ctx, "install", "-D", "-m", "0644", "/usr/share/devmgrd/systemd/host-plugin.conf", "/etc/systemd/system/"+unit+".d/devmgrd.conf"); err != nil {
			return err
		}
	}
	files, err := Expected()
	if err != nil {
		return err
	}
	args := []string{
		"--quiet", "--wait", "--collect", "--pipe", "--unit=" + unit, "--working-directory=" + dir, "--setenv=PATH=" + os.Getenv("PATH"), "--", suite,
		"--start-services=false", "--stop-services=false", "--prepull-images=false", "--system-spec-file=" + spec,
		"--host=" + c.RESTConfig().Host, "--bearer-token=" + c.RESTConfig().BearerToken, "--node-name=" + c.NodeName(),
		"--ginkgo.json-report=" + filepath.Join(results, reportFile), "--ginkgo.no-color", "--ginkgo.v",
		"--ginkgo.timeout=2h",
		"--ginkgo.seed=1", // the order of the specs
		// A focus, whatever it is, includes the specs that upstream's jobs leave out, as flaky or as of a feature.
		"--ginkgo.focus=" + cmp.Or(strings.ReplaceAll(*focusFlag, "$", "$$"), "."),
	}
	if side == "kubelet" {
		// Upstream's specs restart the kubelet at their end and do not wait for it: the next spec may be refused at the
		// kubelet's sockets. devmgrd's sockets stay, so its specs have one attempt.
		args = append(args, "--ginkgo.flake-attempts=3")
	}
	for _, f := range files {
		args = append(args, "--ginkgo.focus-file="+f.File+"$$")
	}
	log, err := os.Create(filepath.Join(results, suiteLog))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, "systemd-run", args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("running the suite: %w", err)
	}
	tidying, stop := context.WithCancel(ctx)
	defer stop()
	go tidy(tidying, c)
	Progress(os.Stderr, log, out)
	err = cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("running the suite: %w", err)
	}
	if _, err := os.Stat(filepath.Join(results, reportFile)); err != nil {
		return fmt.Errorf("running the suite: status %d, and no report; its log is %s", cmd.ProcessState.ExitCode(), log.Name())
	}
	return nil
}

// tidy lets pods go that a spec has left behind, until ctx ends. "will not attempt to admit the succeeded pod" sets a finalizer
// and removes it at its end only: where the spec fails the pod stays, and every later spec wants a node without pods.
func tidy(ctx context.Context, c *cluster.Cluster) {
	const finalizer = "example.com/test-finalizer"
	_ = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		pods, err := c.Client().CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, nil
		}
		for _, pod := range pods.Items {
			if pod.DeletionTimestamp != nil && slices.Contains(pod.Finalizers, finalizer) {
				patch := []byte(`{"metadata": {"finalizers": null}}`)
				_, _ = c.Client().CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
			}
		}
		return false, nil
	})
}

func command(ctx context.Context, words ...string) error {
	if out, err := exec.CommandContext(ctx, words[0], words[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(words, " "), err, out)
	}
	return nil
}

// answers reports why a page is not there, if it is not.
func answers(url string) error {
	client := http.Client{Timeout: 5 * time.Second}
	answer, err := client.Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

// patience is how long a side waits for what has to come. The two sides share the processors.
const patience = 6 * time.Minute

// until waits for a condition to have no error.
func until(ctx context.Context, what string, condition func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var last error
	err := cluster.Poll(ctx, func(context.Context) (bool, error) {
		last = condition()
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for %s: %w", what, last)
	}
	return nil
}

// keepJournal keeps devmgrd's log, which goes with the machine otherwise.
func keepJournal(path string) {
	out, _ := exec.Command("journalctl", "--no-pager", "--output=cat", "--unit=devmgrd.service").Output()
	_ = os.WriteFile(path, out, 0o644)
}
