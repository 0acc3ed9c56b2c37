package cli

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/test/plugintest"
)

// What the test binary is when these are set: the daemon, with so many descriptors, or who holds so many connections.
const (
	daemonVariable = "FLOOD_DAEMON_DESCRIPTORS"
	holdVariable   = "FLOOD_CONNECTIONS"
)

// standIn is what the test binary does in place of the tests, if anything.
func standIn() {
	if most := os.Getenv(daemonVariable); most != "" {
		n, _ := strconv.ParseUint(most, 10, 64)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n}); err != nil {
			panic(err)
		}
		os.Unsetenv(daemonVariable)
		os.Exit(Run(os.Args[1:], os.Stdout, os.Stderr))
	}
	if most := os.Getenv(holdVariable); most != "" {
		n, _ := strconv.Atoi(most)
		if os.Args[1] == "register" {
			registerWithoutEnd(os.Args[2], n)
			os.Exit(0)
		}
		hold(os.Args[1], os.Args[2], n)
		os.Exit(0)
	}
}

// beginnings are what a client sends first: of a request that never ends, and of a gRPC connection without a request.
var beginnings = map[string]string{
	"tcp":  "GET /metrics HTTP/1.1\r\nHost: localhost\r\n",
	"unix": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
}

// registerWithoutEnd makes this many calls of Register on one connection, for a socket that takes connections and answers
// nothing. It ends with its standard input.
func registerWithoutEnd(dir string, calls int) {
	l, err := net.Listen("unix", filepath.Join(dir, "silent.sock"))
	if err != nil {
		panic(err)
	}
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	client := pluginapi.NewRegistrationClient(conn)
	for i := range calls {
		go func() {
			_, _ = client.Register(context.Background(), &pluginapi.RegisterRequest{
				Version: pluginapi.Version, Endpoint: "silent.sock", ResourceName: fmt.Sprintf("silent.example/r%d", i),
			})
		}()
	}
	var all []net.Conn
	for len(all) < maxDialled {
		c, err := l.Accept()
		if err != nil {
			panic(err)
		}
		all = append(all, c)
	}
	fmt.Println("tried")
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all = append(all, c)
		}
	}()
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// maxDialled is as many sockets as devmgrd dials at once for one process that registers.
const maxDialled = 32

// hold opens connections from many addresses and keeps them, opens those again that are closed, and says once that it has tried
// them all. It ends with its standard input.
func hold(network, address string, most int) {
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(most + 100), Max: uint64(most + 100)})
	var next, tried atomic.Int64
	var logged sync.Once
	for range 100 {
		go func() {
			open := map[int64]net.Conn{}
			for {
				n := next.Add(1)
				slot := n % int64(most)
				if old := open[slot]; old != nil {
					old.Close()
				}
				dialer := net.Dialer{}
				if network == "tcp" {
					dialer.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, byte(n>>8), byte(n)|1)}
				}
				if conn, err := dialer.Dial(network, address); err == nil {
					_, _ = conn.Write([]byte(beginnings[network]))
					open[slot] = conn
				}
				if tried.Add(1) >= int64(most) {
					logged.Do(func() { fmt.Println("tried") })
					select {} // the connections stay
				}
			}
		}()
	}
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// attack has another process hold connections, and returns when it has tried to open all of them.
func attack(t *testing.T, binary string, uid uint32, connections int, network, address string) {
	t.Helper()
	cmd := exec.Command(binary, network, address)
	cmd.Env = []string{fmt.Sprintf("%s=%d", holdVariable, connections), plugintest.QuickExit}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	cmd.Stderr = os.Stderr
	stay, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stay.Close(); _ = cmd.Wait() })
	if line := make([]byte, 6); true {
		if _, err := out.Read(line); err != nil || string(line) != "tried\n" {
			t.Fatalf("the attacker says %q, %v", line, err)
		}
	}
}

// get asks a daemon's web server; status 0: there is no answer.
func get(address, path string) (status int, body string) {
	r, err := http.Get("http://" + address + path)
	if err != nil {
		return 0, ""
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(text)
}

// A process is this package's daemon, run apart from the test.
type process struct {
	t               *testing.T
	dir, web, admin string
	sockets         string
	pid             int
}

// startDaemon runs one with so many descriptors at most, without Kubernetes.
func startDaemon(t *testing.T, descriptors int) *process {
	t.Helper()
	dir, err := os.MkdirTemp("", "devmgrd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &process{t: t, dir: dir, web: free.Addr().String(), admin: filepath.Join(dir, "run", "admin.sock"), sockets: filepath.Join(dir, "s")}
	free.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "run", "--set", "kubernetes.mode=none", "--set", "nodeName=worker-7", "--set", "metrics.listen="+d.web,
		"--set", "stateDir="+filepath.Join(dir, "state"), "--set", "runDir="+filepath.Join(dir, "run"),
		"--set", "plugins.socketDir="+d.sockets, "--set", "plugins.kubeletDir="+filepath.Join(dir, "kubelet"),
		"--set", "podResources.kubeletSocket=", "--set", "nri.socket="+filepath.Join(dir, "none"))
	cmd.Env = []string{fmt.Sprintf("%s=%d", daemonVariable, descriptors), "PATH=" + os.Getenv("PATH"), plugintest.QuickExit}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d.pid = cmd.Process.Pid
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil || t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Errorf("the daemon has ended with %v:\n%s", err, text)
		}
	})
	plugintest.Eventually(t, "it serves", func() bool {
		status, _ := get(d.web, "/healthz")
		code, _, _ := execute("status", "--socket", d.admin)
		return status == http.StatusOK && code == 0
	})
	return d
}

// descriptors counts the daemon's open files.
func (d *process) descriptors() int {
	d.t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.pid))
	if err != nil {
		d.t.Fatal(err)
	}
	return len(all)
}

// works has the daemon do what it is for: answer a command, take a plugin up, and tell Prometheus.
func (d *process) works(resource string) {
	d.t.Helper()
	if code, _, text := execute("status", "--socket", d.admin); code != 0 {
		d.t.Fatalf("devmgrd status: %s", text)
	}
	p := plugintest.New(d.t, d.sockets, resource, plugintest.Devices(2)...)
	p.Serve()
	p.MustRegister()
	plugintest.Eventually(d.t, "the plugin serves", func() bool {
		_, out, _ := execute("plugins", "--socket", d.admin)
		return strings.Contains(out, resource) && strings.Contains(out, "serving")
	})
	if status, body := get(d.web, "/metrics"); status != http.StatusOK || !strings.Contains(body, "devmgrd_ready") {
		d.t.Errorf("/metrics: status %d, %d bytes", status, len(body))
	}
}

// A local user who opens as many connections to the HTTP port as it can takes none from other clients.
func TestFlood_HTTPPort_DaemonWorks(t *testing.T) {
	plugintest.NeedRoot(t) // to start a process as another user
	binary := plugintest.Executable(t)
	d := startDaemon(t, 1000)
	attack(t, binary, 65534, 3000, "tcp", d.web)
	if n := d.descriptors(); n > 500 {
		t.Errorf("the daemon has %d descriptors open", n)
	}
	d.works("vendor.example/gpu")
	// devmgrd makes another kubelet.sock where a plugin has removed it: that takes descriptors.
	path := filepath.Join(d.sockets, "kubelet.sock")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	plugintest.Eventually(t, "kubelet.sock is back", func() bool { _, err := os.Lstat(path); return err == nil })
	d.works("vendor.example/nic")
}

// A process in a plugin's container that opens all the connections that it can to kubelet.sock keeps no plugin from registering.
func TestFlood_RegistrationConnections_DaemonWorks(t *testing.T) {
	plugintest.NeedRoot(t) // to dial kubelet.sock
	binary := plugintest.Executable(t)
	d := startDaemon(t, 1000)
	attack(t, binary, 0, 3000, "unix", filepath.Join(d.sockets, "kubelet.sock"))
	if n := d.descriptors(); n > 700 {
		t.Errorf("the daemon has %d descriptors open", n)
	}
	d.works("vendor.example/gpu")
}

// Nor does one that calls Register thousands of times at once, and has devmgrd wait for its answers.
func TestFlood_RegistrationCalls_DaemonWorks(t *testing.T) {
	plugintest.NeedRoot(t) // to dial kubelet.sock
	binary := plugintest.Executable(t)
	d := startDaemon(t, 1000)
	attack(t, binary, 0, 3000, "register", d.sockets)
	d.works("vendor.example/gpu")
	if n := d.descriptors(); n > 200 {
		t.Errorf("the daemon has %d descriptors open", n)
	}
}
