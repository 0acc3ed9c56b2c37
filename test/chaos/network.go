package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/cluster"
)

// networkLimit is how long a pod's network may take to go before its devices are free all the same.
const networkLimit = 30 * time.Second

const (
	networkLog  = hostDir + "/network.log"  // what the CNI plugin has done
	networkMood = hostDir + "/network.json" // how it behaves
)

// A networkMoodFile is how the CNI plugin behaves: until a time each DEL takes as long. Without the file none does.
type networkMoodFile struct {
	Until time.Time
	Takes time.Duration
}

// A visit is a line of the CNI plugin's log: an ADD, or a DEL at its end.
type visit struct {
	Command, Sandbox, Pod string
	Foreign               bool   // the pod is none of the sequences': a tenant's, the attacker's
	Namespace             string // the file of the network namespace
	Wall                  time.Time
}

// isNetworkPlugin reports whether the runtime has called this program as a CNI plugin. It is called after the one that connects a pod, and for
// a DEL before that one.
func isNetworkPlugin() bool { return os.Getenv("CNI_COMMAND") != "" }

// runNetworkPlugin does what the runtime asks for.
func runNetworkPlugin() error {
	var settings struct {
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if err := json.NewDecoder(os.Stdin).Decode(&settings); err != nil {
		return err
	}
	v := visit{Command: os.Getenv("CNI_COMMAND"), Sandbox: os.Getenv("CNI_CONTAINERID"), Namespace: os.Getenv("CNI_NETNS")}
	for arg := range strings.SplitSeq(os.Getenv("CNI_ARGS"), ";") {
		switch name, value, _ := strings.Cut(arg, "="); name {
		case "K8S_POD_NAME":
			v.Pod = value
		case "K8S_POD_NAMESPACE":
			v.Foreign = value != metav1.NamespaceDefault
		}
	}
	switch v.Command {
	case "VERSION":
		return json.NewEncoder(os.Stdout).Encode(map[string]any{"cniVersion": "1.0.0", "supportedVersions": []string{"0.4.0", "1.0.0", "1.1.0"}})
	case "ADD":
		return errors.Join(v.note(), json.NewEncoder(os.Stdout).Encode(settings.PrevResult))
	case "DEL":
		for began := time.Now(); hangs(began); {
			time.Sleep(50 * time.Millisecond)
		}
		return v.note()
	}
	return nil
}

// hangs reports whether a DEL that has begun then must take longer.
func hangs(began time.Time) bool {
	text, err := os.ReadFile(networkMood)
	if err != nil {
		return false
	}
	var m networkMoodFile
	return json.Unmarshal(text, &m) == nil && began.Before(m.Until) && time.Since(began) < m.Takes
}

// note appends a line in one write, since several pods' networks change at the same time.
func (v visit) note() error { return v.noteIn(networkLog) }

func (v visit) noteIn(path string) error {
	v.Wall = time.Now()
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = log.Write(append(line, '\n'))
	return errors.Join(err, log.Close())
}

// hangNetworks has each DEL of the CNI plugin take some seconds for a while. As a rule all pods with devices are deleted by force then, and a pod is
// created that needs some of these devices.
func hangNetworks(ctx context.Context, w *world, dice *rand.Rand) (string, error) {
	handsOn := dice.IntN(4) > 0
	takes, lasts := time.Duration(1000+dice.IntN(9000))*time.Millisecond, time.Duration(3000+dice.IntN(12000))*time.Millisecond
	what := fmt.Sprintf("for %s each deletion of a pod's network takes %s", lasts, takes)
	text, err := json.Marshal(networkMoodFile{Until: time.Now().Add(lasts), Takes: takes})
	if err != nil {
		return what, err
	}
	if err := os.WriteFile(networkMood+".new", text, 0o600); err != nil {
		return what, err
	}
	if err := os.Rename(networkMood+".new", networkMood); err != nil || !handsOn {
		return what, err
	}
	deleted, now := map[string]bool{}, int64(0)
	for _, h := range holders() {
		if len(h.has) == 0 || deleted[h.pod] {
			continue
		}
		deleted[h.pod] = true
		what += "; delete " + h.pod + " by force"
		w.forget(h.pod)
		err = errors.Join(err, w.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(ctx, h.pod, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	}
	name, failure := w.create(ctx, deviceCount-1)
	return fmt.Sprintf("%s; create %s (%d devices%s)", what, name, deviceCount-1, w.how(name)), errors.Join(err, failure)
}

// networkPlugin is this program as a CNI plugin.
func networkPlugin(self string) []cluster.CNIPlugin { return []cluster.CNIPlugin{{Path: self}} }

// networks are the pods' networks that the CNI plugin has made, and not removed.
type networks struct {
	path string // of the CNI plugin's log
	log  *os.File
	rest string                     // a line that is being written
	open map[string]map[string]bool // by pod: sandboxes
	made map[string]string          // pods, by the file of a network namespace that may exist
}

// read reads what the CNI plugin has done since the last time.
func (n *networks) read() error {
	if n.log == nil {
		log, err := os.Open(n.path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		n.log = log
	}
	text, err := io.ReadAll(n.log)
	if err != nil {
		return err
	}
	lines := strings.SplitAfter(n.rest+string(text), "\n")
	n.rest = lines[len(lines)-1]
	for _, line := range lines[:len(lines)-1] {
		var v visit
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			return err
		}
		if v.Command == "DEL" {
			delete(n.open[v.Pod], v.Sandbox)
			continue
		}
		if n.open[v.Pod] == nil {
			n.open[v.Pod] = map[string]bool{}
		}
		n.open[v.Pod][v.Sandbox] = true
		if !v.Foreign {
			n.made[v.Namespace] = v.Pod
		}
	}
	return nil
}

// boot forgets all networks: the power has been cut.
func (n *networks) boot() { clear(n.open) }

func newNetworks(path string) *networks {
	return &networks{path: path, open: map[string]map[string]bool{}, made: map[string]string{}}
}

// has reports whether a pod still has a network.
func (n *networks) has(pod string) bool { return len(n.open[pod]) > 0 }

// remain reports whether a network namespace exists whose pod is one of the sequences' and not among those. A runtime that is killed during a DEL leaves it, also
// if the DEL ends, and a kubelet that is killed too has it removed when it collects garbage, each minute.
func (n *networks) remain(pods map[string]bool) bool {
	for file, pod := range n.made {
		if _, err := os.Lstat(file); err != nil {
			delete(n.made, file)
		} else if !pods[pod] {
			return true
		}
	}
	return false
}
