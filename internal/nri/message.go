package nri

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/ttrpc"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Limits of messages, in bytes. The runtime and NRI plugins speak ttrpc, whose messages have at most 4 MiB. What happens
// beyond that depends on the direction:
//
//   - A larger answer of a plugin makes ttrpc close the connection. The runtime waits for its timeout, drops the plugin, and
//     makes other containers without it until it is back. So no answer of devmgrd may come near that.
//   - A larger request of the runtime is not sent. The request fails and the connection stays: the container is not made.
//   - The list of all pods and containers is sent in parts, but never in parts of fewer than four pods and four containers.
//     Where four neighbours are larger, no plugin can connect any longer (synchronizing.go).
const (
	maxMessage = 4 << 20

	// maxAdded bounds what devmgrd adds to one container: variables, mounts, device nodes, annotations, and the growth of the
	// command line. Four pods with 256 KiB of annotations (the API server's limit) and four containers with 256 KiB of arguments
	// and variables (the limit of packaging/kubernetes/pod-size.yaml) have 2 MiB, with devmgrd's additions 3.5 MiB. 0.5 MiB are
	// left for labels, mounts and names.
	maxAdded = 384 << 10

	// maxExchange bounds the pod, the container and devmgrd's answer together. ValidateContainerAdjustment has all three in one
	// message, with a line for each added entry, and the next plugin gets the changed container. The rest of the message is left
	// for other plugins' additions.
	maxExchange = 3 << 20

	// maxError bounds the text of an error, which may quote a plugin or a pod.
	maxError = 4 << 10
)

// bounded calls a handler, and replaces an answer that is too large for a message by an error, so that no answer can end the
// connection. Handlers return a better reason before.
func bounded(ctx context.Context, unmarshal ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, method ttrpc.Method) (any, error) {
	answer, err := method(ctx, unmarshal)
	if err != nil {
		return nil, brief(err)
	}
	if m, ok := answer.(interface{ SizeVT() int }); ok {
		if n := m.SizeVT(); n > maxMessage-maxError { // the rest is ttrpc's own
			return nil, fmt.Errorf("devmgrd: internal error: an answer of %d bytes to %s, but a message has at most %d", n, info.FullMethod, maxMessage)
		}
	}
	return answer, nil
}

// brief returns an error whose text has at most maxError bytes.
func brief(err error) error {
	if len(err.Error()) <= maxError {
		return err
	}
	return errors.New(device.ClipTo(err.Error(), maxError))
}

// fits returns a refusal if a container and its adjustment are too large for the runtime's messages.
func fits(pod *api.PodSandbox, ctr *api.Container, adj *api.ContainerAdjustment) error {
	sandbox, own, added := pod.SizeVT(), ctr.SizeVT(), adj.SizeVT()
	if sandbox+own+added <= maxExchange {
		return nil
	}
	return device.Refuse(device.ContainerTooLarge, nil,
		"the container has %d bytes (arguments %d, variables %d), its pod %d and devmgrd's answer %d, but at most %d are allowed together: shorten its arguments, variables or annotations",
		own, length(ctr.GetArgs()), length(ctr.GetEnv()), sandbox, added, maxExchange)
}

func length(all []string) (n int) {
	for _, s := range all {
		n += len(s)
	}
	return n
}
