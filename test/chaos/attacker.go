package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// attackerPod is a plugin pod. What a process in its container could do to its directory the attacker does from outside, with a
// container's rights.
const attackerPod = "attacker"

const attacks = "/run/chaos/attacks" // where the attacker counts

// addAttacker makes the attacker's pod, and starts the attacker in the directory that devmgrd has made for it.
func (w *world) addAttacker(ctx context.Context, self string) error {
	pod := node.Pod(attackerPod, "", 0, "report", "--then-sleep")
	pod.Namespace = metav1.NamespaceSystem // it is none of those that are counted
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	pod.Spec.Volumes = []corev1.Volume{{Name: "plugins", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/kubelet/device-plugins"}}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "plugins", MountPath: "/plugins"}}
	made, err := w.Client().CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	dir := filepath.Join("/run/devmgrd/plugins", string(made.UID), "device-plugins")
	if err := w.eventually(ctx, time.Minute, func() (bool, string) {
		_, err := os.Lstat(filepath.Join(dir, "kubelet.sock"))
		return err == nil, "the attacker's pod has no directory"
	}); err != nil {
		return err
	}
	w.attacker = cluster.NewProcess("attacker", filepath.Join(w.LogDir(), "attacker.log"), []string{self, "attacker", dir, strconv.FormatUint(w.options.seed, 10)}, nil)
	w.keeper.keep(w.attacker, true)
	return w.attacker.Start(ctx)
}

// An attacker writes in its plugin directory.
type attacker struct {
	dir  string
	dice *rand.Rand
	held []net.Conn
	n    int // of what it has registered
}

// runAttacker attacks until it is killed.
func runAttacker(dir, seed string) error {
	if os.Getenv("CHAOS_RIGHTS") == "" {
		if err := errors.Join(plugintest.DropRights(), os.Setenv("CHAOS_RIGHTS", "none")); err != nil {
			return err
		}
		return syscall.Exec("/proc/self/exe", os.Args, os.Environ()) // all threads have the rights of this one then
	}
	n, err := strconv.ParseUint(seed, 10, 64)
	if err != nil {
		return err
	}
	a := &attacker{dir: dir, dice: rand.New(rand.NewPCG(n, 1))}
	acts := []func() bool{a.replace, a.replace, a.links, a.flood, a.register, a.foreign, a.list, a.litter, a.churn, a.flap, a.listen}
	for done := readAttacks(); ; {
		if acts[a.dice.IntN(len(acts))]() {
			done++
		}
		if err := os.WriteFile(attacks, []byte(strconv.Itoa(done)), 0o600); err != nil {
			return err
		}
		time.Sleep(time.Duration(5+a.dice.IntN(400)) * time.Millisecond)
	}
}

// readAttacks returns how many attacks have come to something: devmgrd was there to be attacked.
func readAttacks() int {
	text, _ := os.ReadFile(attacks)
	n, _ := strconv.Atoi(string(text)) // 0 before the first
	return n
}

func (a *attacker) path(name string) string { return filepath.Join(a.dir, name) }

// own returns a name of devmgrd's.
func (a *attacker) own() string {
	return a.path([]string{"kubelet.sock", "kubelet_internal_checkpoint"}[a.dice.IntN(2)])
}

// replace puts something else in the place of what is devmgrd's.
func (a *attacker) replace() bool {
	path := a.own()
	removed := os.Remove(path)
	switch a.dice.IntN(6) {
	case 0:
		_ = os.Symlink("/etc/passwd", path)
	case 1:
		_ = syscall.Mkfifo(path, 0o600)
	case 2:
		_ = os.MkdirAll(filepath.Join(path, "x", "y"), 0o700)
	case 3:
		_ = os.WriteFile(path, []byte("{"), 0o600)
	case 4:
		_ = os.Symlink(path, path)
	}
	return removed == nil
}

// links exchanges drafts for links, for a moment.
func (a *attacker) links() bool {
	link, exchanged := a.path("link"), false
	_ = os.Remove(a.own())
	for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
		entries, err := os.ReadDir(a.dir)
		if err != nil {
			return false
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".kubelet") {
				_ = os.Symlink("/etc/passwd", link)
				exchanged = os.Rename(link, a.path(e.Name())) == nil || exchanged
			}
		}
	}
	return exchanged
}

// flood holds connections without a word, and lets them go with the next flood.
func (a *attacker) flood() bool {
	for _, conn := range a.held {
		conn.Close()
	}
	a.held = nil
	for range 300 {
		conn, err := net.DialTimeout("unix", a.path("kubelet.sock"), 100*time.Millisecond)
		if err != nil {
			break
		}
		a.held = append(a.held, conn)
	}
	return len(a.held) > 100
}

// register registers resources on which no process listens.
func (a *attacker) register() bool {
	heard := false
	for range 1 + a.dice.IntN(20) {
		a.n++
		heard = a.call(fmt.Sprintf("evil%d.example/junk", a.n%300), fmt.Sprintf("none-%d.sock", a.n)) || heard
	}
	return heard
}

// foreign registers what is not its own: sockets of the host, through paths and links.
func (a *attacker) foreign() (heard bool) {
	good := filepath.Join(node.SocketDir, "chaos.sock")
	_ = os.Symlink(good, a.path("foreign.sock"))
	for _, endpoint := range []string{"foreign.sock", good, "../../../device-plugins/chaos.sock", "kubelet.sock", ""} {
		heard = a.call("evil.example/foreign", endpoint) || heard
	}
	return heard
}

// list serves a list of many devices with long IDs for a while.
func (a *attacker) list() bool {
	_ = os.Remove(a.path("evil.sock"))
	listener, err := net.Listen("unix", a.path("evil.sock"))
	if err != nil {
		return false
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, &manyDevices{n: 1 + a.dice.IntN(5000)})
	go server.Serve(listener)
	defer server.Stop()
	heard := a.call("evil.example/many", "evil.sock")
	time.Sleep(time.Duration(a.dice.IntN(2000)) * time.Millisecond)
	return heard
}

// litter fills the directory with files, and removes them again.
func (a *attacker) litter() bool {
	var failed error
	for i := range 500 {
		failed = errors.Join(failed, os.WriteFile(a.path(fmt.Sprintf("litter-%d.sock", i)), nil, 0o600))
	}
	for i := range 500 {
		_ = os.Remove(a.path(fmt.Sprintf("litter-%d.sock", i)))
	}
	return failed == nil
}

// churn has devmgrd look at a directory of many files again and again, for a second.
func (a *attacker) churn() bool {
	for d := range 5 {
		dir := a.path(fmt.Sprintf("many-%d", d))
		if os.Mkdir(dir, 0o755) != nil {
			continue // they are there since the last time
		}
		for i := range 3000 {
			_ = os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.sock", i)), nil, 0o600)
		}
	}
	touched := a.path("touched.sock")
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if os.WriteFile(touched, nil, 0o600) != nil {
			return false
		}
		_ = os.Remove(touched)
	}
	return true
}

// flap serves devices in several pools of ResourceSlices, of which some change their health all the time, for a few seconds.
func (a *attacker) flap() bool {
	_ = os.Remove(a.path("flap.sock"))
	listener, err := net.Listen("unix", a.path("flap.sock"))
	if err != nil {
		return false
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, &flappingDevices{})
	go server.Serve(listener)
	defer server.Stop()
	heard := a.call(flappingName, "flap.sock")
	time.Sleep(time.Duration(2000+a.dice.IntN(4000)) * time.Millisecond)
	return heard
}

// listen takes kubelet.sock for a moment.
func (a *attacker) listen() bool {
	_ = os.Remove(a.path("kubelet.sock"))
	l, err := net.Listen("unix", a.path("kubelet.sock"))
	if err != nil {
		return false
	}
	time.Sleep(time.Duration(a.dice.IntN(1000)) * time.Millisecond)
	l.Close()
	return true
}

// call registers, and reports whether devmgrd has answered.
func (a *attacker) call(resource, endpoint string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+a.path("kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return false
	}
	defer conn.Close()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: endpoint, ResourceName: resource})
	return err == nil || status.Code(err) == codes.InvalidArgument || status.Code(err) == codes.FailedPrecondition
}

// flappingName is offered through DRA where the other resources are.
const flappingName = "evil.example/flap"

// flappingDevices is a plugin with 512 devices, one of each 64 of which changes its health ten times a second.
type flappingDevices struct{ manyDevices }

func (*flappingDevices) ListAndWatch(_ *pluginapi.Empty, stream pluginapi.DevicePlugin_ListAndWatchServer) error {
	for n := 0; ; n++ {
		list := &pluginapi.ListAndWatchResponse{}
		for i := range 512 {
			health := pluginapi.Healthy
			if i%64 == 0 && n%2 == 1 {
				health = pluginapi.Unhealthy
			}
			list.Devices = append(list.Devices, &pluginapi.Device{ID: fmt.Sprintf("flap-%d", i), Health: health})
		}
		if err := stream.Send(list); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// manyDevices is a plugin with n devices.
type manyDevices struct {
	pluginapi.UnimplementedDevicePluginServer
	n int
}

func (m *manyDevices) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (m *manyDevices) ListAndWatch(_ *pluginapi.Empty, stream pluginapi.DevicePlugin_ListAndWatchServer) error {
	list := &pluginapi.ListAndWatchResponse{}
	for i := range m.n {
		list.Devices = append(list.Devices, &pluginapi.Device{ID: fmt.Sprintf("%d-%s", i, strings.Repeat("x", 900)), Health: pluginapi.Healthy})
	}
	if err := stream.Send(list); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}
