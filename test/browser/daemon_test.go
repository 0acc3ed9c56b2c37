package browser

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/devmgrd/devmgrd/test/plugintest"
)

// binary is devmgrd, which TestMain builds where test/node builds it for other tests.
var binary = filepath.Join("..", "..", "bin", "devmgrd")

// A daemon is devmgrd as a process, on a node without Kubernetes and without a runtime.
type daemon struct {
	t       *testing.T
	dir     string // short: sockets are in it
	address string
	process *exec.Cmd
	log     bytes.Buffer
}

// newDaemon starts devmgrd.
func newDaemon(t *testing.T) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "devmgrd-page-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	d := &daemon{t: t, dir: dir}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d.address = free.Addr().String()
	free.Close()
	t.Cleanup(func() {
		d.end(syscall.SIGKILL)
		if t.Failed() {
			t.Log(d.log.String())
		}
	})
	d.start()
	return d
}

// start starts it, with the plugins' socket there when it returns.
func (d *daemon) start() {
	d.t.Helper()
	in := func(name string) string { return filepath.Join(d.dir, name) }
	if err := os.MkdirAll(in("kubelet"), 0o755); err != nil {
		d.t.Fatal(err)
	}
	d.process = exec.Command(binary, "run", "--set", "kubernetes.mode=none", "--set", "nodeName=worker-7", "--set", "metrics.listen="+d.address,
		"--set", "stateDir="+in("state"), "--set", "runDir="+d.dir, "--set", "plugins.kubeletDir="+in("kubelet"), "--set", "plugins.socketDir="+in("device-plugins"),
		"--set", "plugins.registryDir="+in("registry"), "--set", "admin.socket="+in("admin.sock"), "--set", "nri.socket="+in("none.sock"),
		"--set", "podResources.socket="+in("pr.sock"), "--set", "podResources.kubeletSocket="+in("kubelet-pr.sock"))
	d.process.Stdout, d.process.Stderr = &d.log, &d.log
	if err := d.process.Start(); err != nil {
		d.t.Fatal(err)
	}
	plugintest.Eventually(d.t, "devmgrd serves", func() bool {
		c, err := net.Dial("tcp", d.address)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// end ends it, if it runs, and returns how.
func (d *daemon) end(how syscall.Signal) error {
	if d.process == nil {
		return nil
	}
	defer func() { d.process = nil }()
	if err := d.process.Process.Signal(how); err != nil {
		return err
	}
	return d.process.Wait()
}

// command runs a command against it.
func (d *daemon) command(args ...string) {
	d.t.Helper()
	output, err := exec.CommandContext(d.t.Context(), binary, append(args, "--socket", filepath.Join(d.dir, "admin.sock"))...).CombinedOutput()
	if err != nil {
		d.t.Fatalf("devmgrd %s: %v\n%s", strings.Join(args, " "), err, output)
	}
}

// cell is an expression for what a device's cell says.
func cell(id string) string {
	return fmt.Sprintf(`([...document.querySelectorAll("summary")].find((s) => s.querySelector(".id").textContent === %q) ?? {innerText: ""}).innerText`, id)
}

// Changes of devmgrd and its plugin are on the page within a moment, without a reload: an open page keeps the
// place, the focus and what is open. When the daemon is gone the page says so, and goes on when it is back.
func TestDaemon(t *testing.T) {
	d := newDaemon(t)
	tb := open(t, 1280, 500)
	tb.do(chromedp.Navigate("http://" + d.address + "/"))
	tb.until("the stream tells", `document.querySelector("#live").innerText === "Live"`)
	tb.says("worker-7", "No plugin has registered yet", "nri is not ready")
	value[bool](tb, `window.mine = true`) // goes with the document

	p := plugintest.New(t, filepath.Join(d.dir, "device-plugins"), "vendor.example/gpu",
		plugintest.Dev("GPU-0", plugintest.Healthy, 0), plugintest.Dev("GPU-1", plugintest.Healthy, 0), plugintest.Dev("GPU-2", plugintest.Healthy, 1))
	p.Serve()
	p.MustRegister()
	tb.until("the plugin's devices show up", cell("GPU-2")+`.includes("free")`)
	tb.until("nothing is left of the advice for beginners", `!document.querySelector("#empty")`)

	// With the keyboard alone: to a device, and its details.
	value[bool](tb, `document.querySelector("#devices").focus(); true`)
	for range 2 {
		tb.do(chromedp.KeyEvent("\t"))
	}
	tb.do(chromedp.KeyEvent("\r"))
	tb.until("the second device's details are open", `document.activeElement.closest("details").open && document.activeElement.innerText.includes("GPU-1")`)
	value[bool](tb, `window.scrollTo(0, 150); window.focused = document.activeElement; window.at = scrollY; at > 100`)
	stays := func(after string) {
		t.Helper()
		for what, expression := range map[string]string{
			"the document": `window.mine === true`, "the focus": `document.activeElement === focused && focused.isConnected`,
			"the open detail": `focused.closest("details").open && document.querySelectorAll("details[open]").length === 1`, "the place": `scrollY === at && at > 100`,
		} {
			if !value[bool](tb, expression) {
				t.Errorf("after %s %s is another one", after, what)
			}
		}
	}

	p.SetHealth("GPU-2", plugintest.Unhealthy)
	tb.until("a device is unhealthy", cell("GPU-2")+`.includes("unhealthy") && document.querySelector("#matters").innerText.includes("1 device of vendor.example/gpu unhealthy")`)
	stays("a device has failed")
	d.command("cordon", "vendor.example/gpu/GPU-1", "--reason", "fan noise, <b>ticket</b> 4711")
	tb.until("the device with the focus is cordoned", cell("GPU-1")+`.includes("cordoned") && focused.innerText.includes("fan noise, <b>ticket</b> 4711")`)
	stays("a cordon")
	p.Set(append(p.Listed(), plugintest.Dev("GPU-00", plugintest.Healthy, 0))...)
	tb.until("a new device is before it", cell("GPU-00")+`.includes("free")`)
	stays("a new device")
	d.command("uncordon", "vendor.example/gpu/GPU-1")
	tb.until("the cordon is gone", cell("GPU-1")+`.includes("free")`)
	stays("the end of a cordon")

	since := value[string](tb, `document.querySelector("header time").textContent`)
	tb.until("time passes", fmt.Sprintf(`document.querySelector("header time").textContent !== %q`, since))
	if n := tb.loads(); n != 1 {
		t.Errorf("the document was loaded %d times", n)
	}
	tb.clean(d.address)

	// A clean stop does not wait for the open page. It would wait for 5 s each time, and a busy machine may once.
	for tries := 3; ; tries-- {
		began := time.Now()
		err := d.end(syscall.SIGTERM)
		took := time.Since(began)
		if err == nil && took > 4*time.Second && tries > 1 {
			d.start()
			tb.until("the page is back", `document.querySelector("#live").innerText === "Live"`)
			continue
		}
		if err != nil || took > 4*time.Second {
			t.Errorf("devmgrd ends with %v after %s", err, took)
		}
		break
	}
	tb.until("the page says that it is lost, and for how long", `/^Connection lost, last seen \d+s ago; trying again$/.test(document.querySelector("#live").innerText)`)
	tb.until("it counts on", `/ [2-9]s ago/.test(document.querySelector("#live").innerText)`)
	debug(t, "lost.png", get(tb, chromedp.CaptureScreenshot()))
	tb.readable("lost")
	stays("the daemon's end")
	d.start()
	tb.until("the page is back, with what is true now", `document.querySelector("#live").innerText === "Live" && `+cell("GPU-2")+`.includes("unhealthy")`)
	stays("the daemon's return")
	if n := tb.loads(); n != 1 {
		t.Errorf("the document was loaded %d times", n)
	}

	d.end(syscall.SIGKILL)
	tb.until("a killed daemon is lost, too", `document.querySelector("#live").innerText.startsWith("Connection lost")`)
}
