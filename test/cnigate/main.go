// Command cnigate is a CNI plugin for tests. It is called after the one that connects a pod, and asks a PodResources socket
// which devices the pod has, at the moment when plugins that move a device into the pod's network ask: the sandbox is being
// made, no container is. It logs the answer as one line, and fails the ADD without one. The
// network stays as it is. While there is a FIFO, each DEL waits until another program writes to it.
//
//	{"type": "cnigate", "socket": "/var/lib/kubelet/pod-resources/kubelet.sock", "log": "/run/cnigate.log", "fifo": "/run/cnigate.fifo"}
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/devmgrd/devmgrd/test/cnigate/visit"
)

// limit is how long a pod's network waits for an answer: what plugins in use take.
const limit = 10 * time.Second

// settings is what comes on standard input.
type settings struct {
	CNIVersion string          `json:"cniVersion"`
	PrevResult json.RawMessage `json:"prevResult"`
	Socket     string          `json:"socket"`
	Log        string          `json:"log"`
	FIFO       string          `json:"fifo"`
}

// failure is how a CNI plugin says that it has failed.
type failure struct {
	CNIVersion string `json:"cniVersion"`
	Code       int    `json:"code"`
	Message    string `json:"msg"`
}

func main() {
	var s settings
	err := json.NewDecoder(os.Stdin).Decode(&s)
	switch command := os.Getenv("CNI_COMMAND"); {
	case command == "VERSION":
		say(map[string]any{"cniVersion": "1.0.0", "supportedVersions": []string{"0.4.0", "1.0.0", "1.1.0"}})
	case err == nil && command == "ADD":
		if err = add(s); err == nil {
			say(s.PrevResult)
		}
	case err == nil && command == "DEL":
		if f, missing := os.Open(s.FIFO); missing == nil { // it returns when the FIFO has a writer
			f.Close()
		}
	}
	if err != nil {
		say(failure{CNIVersion: "1.0.0", Code: 100, Message: "cnigate: " + err.Error()})
		os.Exit(1)
	}
}

func say(answer any) { _ = json.NewEncoder(os.Stdout).Encode(answer) }

// add asks for the pod's devices and notes the answer, whatever it is.
func add(s settings) error {
	if len(s.PrevResult) == 0 {
		return errors.New("it has to be called after another plugin: there is no prevResult")
	}
	namespace, name := pod(os.Getenv("CNI_ARGS"))
	seen := visit.Visit{Pod: namespace + "/" + name}
	began := time.Now()
	answer, err := ask(s.Socket, &podresources.GetPodResourcesRequest{PodNamespace: namespace, PodName: name})
	seen.Took = time.Since(began).Seconds()
	if err != nil {
		err = fmt.Errorf("which devices has pod %s: %w", seen.Pod, err)
		seen.Error = err.Error()
	}
	seen.Devices = map[string][]string{}
	for _, c := range answer.GetPodResources().GetContainers() {
		for _, d := range c.GetDevices() {
			seen.Devices[d.GetResourceName()] = append(seen.Devices[d.GetResourceName()], d.GetDeviceIds()...)
		}
	}
	return errors.Join(err, note(s.Log, seen))
}

// pod finds the pod in CNI_ARGS: "K8S_POD_NAMESPACE=default;K8S_POD_NAME=a;...".
func pod(args string) (namespace, name string) {
	for arg := range strings.SplitSeq(args, ";") {
		switch key, value, _ := strings.Cut(arg, "="); key {
		case "K8S_POD_NAMESPACE":
			namespace = value
		case "K8S_POD_NAME":
			name = value
		}
	}
	return namespace, name
}

func ask(socket string, request *podresources.GetPodResourcesRequest) (*podresources.GetPodResourcesResponse, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return podresources.NewPodResourcesListerClient(conn).Get(ctx, request)
}

// note appends a line in one write, since several pods' networks are made at the same time.
func note(path string, seen visit.Visit) error {
	line, err := json.Marshal(seen)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = log.Write(append(line, '\n'))
	return errors.Join(err, log.Close())
}
