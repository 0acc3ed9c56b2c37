package connlimit

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/test/plugintest"
)

// atEnd reports whether the other side has closed a socket.
func atEnd(fd int) bool {
	var b [1]byte
	n, _, err := unix.Recvfrom(fd, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return n == 0 && err == nil || err != nil && !errors.Is(err, unix.EAGAIN)
}

// dialVariable has the test binary dial an address, say so, and stay until its input ends.
const dialVariable = "CONNLIMIT_DIAL"

func TestMain(m *testing.M) {
	if at := os.Getenv(dialVariable); at != "" {
		network, address, _ := strings.Cut(at, "!")
		conn, err := net.Dial(strings.Replace(network, "leader", "unix", 1), address)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		stay := func() {
			_, _ = os.Stdin.Read(make([]byte, 1))
			conn.Close()
			os.Exit(0)
		}
		if network == "leader" {
			go stay()
			_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0) // ends the first thread
		}
		stay()
	}
	os.Exit(m.Run())
}

func init() {
	if strings.HasPrefix(os.Getenv(dialVariable), "leader") {
		runtime.LockOSThread() // so that TestMain runs in the first thread
	}
}

// The first thread of a process in a pod ends, and another holds the connection. The kernel shows the process outside of its pod.
func TestUnixClient_FirstThreadHasEnded_IsNoProcessOutside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialler(t, "leader!"+path, nil)
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	plugintest.Eventually(t, "it counts as one that has ended", func() bool {
		name, err := UnixClient(conn)
		return err == nil && name == endedClient
	})
}

// dialler starts a process that holds one connection.
func dialler(t *testing.T, at string, attr *syscall.SysProcAttr) (pid int) {
	t.Helper()
	cmd := exec.Command(plugintest.Executable(t))
	cmd.Env, cmd.Stderr, cmd.SysProcAttr = []string{dialVariable + "=" + at, plugintest.QuickExit}, os.Stderr, attr
	stay, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stay.Close(); _ = cmd.Wait() })
	return cmd.Process.Pid
}

// A local user is known by its user ID, whatever address of the loopback it uses.
func TestTCPClient_LocalUser(t *testing.T) {
	plugintest.NeedRoot(t)
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", "[::]:0"} {
		t.Run(address, func(t *testing.T) {
			l, err := net.Listen("tcp", address)
			if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) {
				t.Skip("this machine has no IPv6:", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			port := l.Addr().(*net.TCPAddr).Port
			host := l.Addr().(*net.TCPAddr).IP.String()
			if host == "::" {
				host = "127.0.0.1"
			}
			dialler(t, "tcp!"+net.JoinHostPort(host, fmt.Sprint(port)), &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}})
			conn, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if name, err := TCPClient(conn); err != nil || name != "user 65534" {
				t.Errorf("the client is %q, %v", name, err)
			}
			dialler(t, "tcp!"+net.JoinHostPort(host, fmt.Sprint(port)), nil)
			conn, err = l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if name, err := TCPClient(conn); err != nil || !strings.HasPrefix(name, "root, cgroup ") || name == "root, cgroup 0" {
				t.Errorf("the client is %q, %v", name, err)
			}
		})
	}
}

// A connection whose client has gone already belongs to no user that the kernel knows: it must not count as root's.
func TestTCPClient_ClosedByClient(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	client.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if name, err := TCPClient(conn); !errors.Is(err, errGone) {
		t.Errorf("the client is %q, %v, want none", name, err)
	}
}

// elsewhere is a connection from another host: the kernel knows no local socket at its other end.
type elsewhere struct {
	net.Conn
	ours, theirs string
}

func (c elsewhere) LocalAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(c.ours))
}
func (c elsewhere) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(c.theirs))
}

// A client on another host is known by its address; a listener of this host at the same port is not it.
func TestTCPClient_OtherHost(t *testing.T) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	for _, test := range []struct{ ours, theirs, want string }{
		{"192.0.2.1:9464", "192.0.2.7:4000", "192.0.2.7"},
		{"[::ffff:192.0.2.1]:9464", "[::ffff:192.0.2.7]:4000", "192.0.2.7"},
		{"[2001:db8::1]:9464", "[2001:db8:1:2:3:4:5:6]:4000", "2001:db8:1:2::/64"},
		{"127.0.0.1:9464", fmt.Sprintf("127.0.0.1:%d", port), "127.0.0.1"},
	} {
		if name, err := TCPClient(elsewhere{ours: test.ours, theirs: test.theirs}); err != nil || name != test.want {
			t.Errorf("%s is %q, %v, want %q", test.theirs, name, err, test.want)
		}
	}
}

func TestUnixClient(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	pid := dialler(t, "unix!"+path, nil)
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if name, err := UnixClient(&Conn{Conn: conn}); err != nil || name != fmt.Sprintf("process %d", pid) {
		t.Errorf("the client is %q, %v, want process %d", name, err, pid)
	}
	if name, err := UnixClient(elsewhere{}); err == nil {
		t.Errorf("a connection that is not of a unix socket is %q", name)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
		t.Fatal(err)
	}
	plugintest.Eventually(t, "the process, which has not been waited for, has ended", func() bool {
		name, err := UnixClient(conn)
		return err == nil && name == endedClient && IsPod(name)
	})
}

// serveVariable has the test binary listen, in a PID namespace of its own, and print the clients that it sees.
const serveVariable = "CONNLIMIT_SERVE"

func init() {
	path := os.Getenv(serveVariable)
	if path == "" {
		return
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("listening")
	for {
		conn, err := l.Accept() // it stays open
		if err != nil {
			os.Exit(1)
		}
		name, err := UnixClient(conn)
		fmt.Printf("%q %v\n", name, err)
	}
}

// A server in a PID namespace of its own, as in a container, tells processes of the host apart, though they have no ID there.
func TestUnixClient_OtherPIDNamespace(t *testing.T) {
	plugintest.NeedRoot(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	server := exec.Command(self)
	server.Env = []string{serveVariable + "=" + path, plugintest.QuickExit}
	server.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatalf("starting a process in a PID namespace: %v", err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	if _, err := fmt.Fscanf(out, "listening\n"); err != nil {
		t.Fatalf("the server does not listen: %v", err)
	}

	var names []string
	read := func() {
		t.Helper()
		var name, failed string
		if _, err := fmt.Fscanf(out, "%q %s\n", &name, &failed); err != nil || failed != "<nil>" {
			t.Fatalf("the server sees %q, %s, %v", name, failed, err)
		}
		names = append(names, name)
	}
	for range 2 {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		read()
	}
	dialler(t, "unix!"+path, nil)
	read()
	if names[0] == "" { // before Linux 6.9 the kernel names no process outside the PID namespace: each connection counts alone
		if names[1] != "" || names[2] != "" {
			t.Errorf("connections are %q, want none named", names)
		}
		return
	}
	if names[0] != names[1] || names[0] == names[2] || !strings.Contains(names[2], "pidfd") {
		t.Errorf("two connections of one process and one of another are %q", names)
	}
}

// The processes of a pod are one client, by the cgroup that the kubelet makes for the pod.
func TestPodOf(t *testing.T) {
	const uid = "0a1b2c3d-1111-2222-3333-444455556666"
	for cgroups, want := range map[string]string{
		"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod0a1b2c3d_1111_2222_3333_444455556666.slice/cri-containerd-ab.scope\n": uid,
		"0::/kubepods.slice/kubepods-pod0a1b2c3d_1111_2222_3333_444455556666.slice/cri-containerd-ab.scope\n":                                      uid,
		"12:pids:/kubepods/burstable/pod" + uid + "/ab\n0::/\n":                                                                                    uid,
		"4:memory:/\n3:pids:/kubepods/pod" + uid + "/ab/below\n":                                                                                   uid,
		"0::/../../kubepods.slice/kubepods-pod0a1b2c3d_1111_2222_3333_444455556666.slice/cri-containerd-ab.scope\n":                                uid,
		"0::/kubepods/pod0123456789abcdef0123456789abcdef/ab\n":                                                                                    "0123456789abcdef0123456789abcdef",
		"0::/user.slice/user-1000.slice/user@1000.service/kubepods/pod" + uid + "/ab\n":                                                            "",
		"0::/system.slice/kubelet.service\n":                                                                                                       "",
		"0::/kubepods.slice\n":                                                                                                                     "",
		"0::/\n":                                                                                                                                   "",
		"":                                                                                                                                         "",
		"no colons":                                                                                                                                "",
		"1:name=systemd:/podman/pod1\n":                                                                                                            "",
	} {
		if got := podOf(cgroups); string(got) != want {
			t.Errorf("%q: %q, want %q", cgroups, got, want)
		}
	}
}

// A process may hand its connections on and end. All that did so are one client, or a pod could have any number of them.
func TestProcessOf_Ended(t *testing.T) {
	cmd := exec.Command(plugintest.Executable(t), "-test.run", "^$")
	cmd.Env = []string{plugintest.QuickExit}
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if got := processOf(cmd.Process.Pid); got != "processes that have ended" {
		t.Errorf("it is %q", got)
	}
	if got, want := processOf(os.Getpid()), fmt.Sprintf("process %d", os.Getpid()); got != want {
		t.Errorf("this process is %q, want %q", got, want)
	}
}
