package podresources

import (
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	podresourcesv1 "github.com/devmgrd/devmgrd/api/devmgrd/podresources/v1"
	"github.com/devmgrd/devmgrd/internal/device"
)

const (
	// readLimit is how long a reader may keep one response waiting.
	readLimit = 10 * time.Second
	// partBytes is the size of one part of a snapshot, unless a single pod is larger: by default clients accept 4 MiB.
	partBytes = 1 << 20
	// batch is the number of changes read at once.
	batch = 256
)

var (
	errSlow = status.Error(codes.ResourceExhausted, "the watch was read too slowly; watch again with the last resume point")
	errStop = status.Error(codes.Unavailable, "devmgrd is stopping; watch again with the last resume point")
)

// watcher serves PodResourcesService.
type watcher struct {
	podresourcesv1.UnimplementedPodResourcesServiceServer
	*Server
}

// resume returns the resume point after a revision.
func (s *Server) resume(revision uint64) string { return fmt.Sprintf("%s-%d", s.epoch, revision) }

// revision returns the revision of a resume point, or false if the point is not of this process.
func (s *Server) revision(resume string) (uint64, bool) {
	epoch, number, _ := strings.Cut(resume, "-")
	n, err := strconv.ParseUint(number, 10, 64)
	return n, err == nil && epoch == s.epoch
}

// Watch sends a snapshot, unless the client can resume, and then every change.
func (w watcher) Watch(request *podresourcesv1.WatchRequest, stream grpc.ServerStreamingServer[podresourcesv1.WatchResponse]) error {
	out := w.sender(stream)
	defer close(out.responses)
	at, known := w.revision(request.Resume)
	if known {
		_, known = w.cfg.Allocator.ChangesSince(at, 0)
	}
	if !known {
		s := w.cfg.Allocator.Snapshot()
		for part := range parts(s) {
			r := &podresourcesv1.WatchResponse{Content: &podresourcesv1.WatchResponse_Snapshot{Snapshot: part}}
			if part.Last {
				r.Resume = w.resume(s.Revision)
			}
			if err := out.send(r); err != nil {
				return err
			}
		}
		at = s.Revision
	}
	for {
		updated := w.cfg.Allocator.Updated()
		changes, known := w.cfg.Allocator.ChangesSince(at, batch)
		if !known {
			return errSlow
		}
		for _, c := range changes {
			at = c.Revision
			change := changeOf(c)
			if change == nil {
				continue
			}
			if err := out.send(&podresourcesv1.WatchResponse{Resume: w.resume(at), Content: &podresourcesv1.WatchResponse_Change{Change: change}}); err != nil {
				return err
			}
		}
		if len(changes) > 0 {
			continue
		}
		select {
		case <-updated:
		case <-w.stopping:
			return errStop
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}

// A sender sends responses to a client that may read slowly, so that a watch ends in time all the same.
type sender struct {
	responses chan *podresourcesv1.WatchResponse
	failed    chan error
	limit     time.Duration // of one response
	stopping  <-chan struct{}
	ended     <-chan struct{}
}

func (w watcher) sender(stream grpc.ServerStreamingServer[podresourcesv1.WatchResponse]) sender {
	s := sender{make(chan *podresourcesv1.WatchResponse), make(chan error, 1), w.readLimit, w.stopping, stream.Context().Done()}
	w.work.Go(func() { // it ends with the stream at the latest
		for r := range s.responses {
			if err := stream.Send(r); err != nil {
				s.failed <- err
				return
			}
		}
	})
	return s
}

func (s sender) send(r *podresourcesv1.WatchResponse) error {
	select {
	case s.responses <- r:
		return nil
	case err := <-s.failed:
		return err
	case <-time.After(s.limit):
		return errSlow
	case <-s.stopping:
		return errStop
	case <-s.ended:
		return status.Error(codes.Canceled, "the client is gone")
	}
}

// parts yields all pods that have devices, in parts, each made when the one before has been sent.
func parts(s *device.Snapshot) iter.Seq[*podresourcesv1.Snapshot] {
	return func(yield func(*podresourcesv1.Snapshot) bool) {
		part, n := &podresourcesv1.Snapshot{First: true}, 0
		for _, status := range s.Pods {
			if len(status.Assignments) == 0 {
				continue
			}
			p := podOf(status.PodAllocation)
			size := proto.Size(p)
			if n > 0 && n+size > partBytes {
				if !yield(part) {
					return
				}
				part, n = &podresourcesv1.Snapshot{}, 0
			}
			n += size
			part.Pods = append(part.Pods, p)
		}
		part.Last = true
		yield(part)
	}
}

// changeOf returns a change for the client; nil: the pod had no devices before, and has none now.
func changeOf(c device.Change) *podresourcesv1.Change {
	change := &podresourcesv1.Change{Time: timestamppb.New(c.At)}
	switch {
	case c.After != nil && len(c.After.Assignments) > 0:
		change.What = &podresourcesv1.Change_Assigned{Assigned: podOf(c.After)}
	case c.Before != nil && len(c.Before.Assignments) > 0:
		change.What = &podresourcesv1.Change_Released{Released: podOf(c.Before)}
	default:
		return nil
	}
	return change
}

func podOf(from *device.PodAllocation) *podresourcesv1.Pod {
	p := &podresourcesv1.Pod{Namespace: from.Pod.Namespace, Name: from.Pod.Name, Uid: string(from.Pod.UID), Ended: !from.Active}
	for _, as := range from.Assignments {
		c := &podresourcesv1.Container{Name: as.Container.Name}
		for _, s := range as.Shares {
			for i, id := range s.IDs {
				d := &podresourcesv1.Device{ResourceName: string(s.Resource), Id: string(id)}
				if s.Near != nil {
					for _, node := range s.Near[i] {
						d.NumaNodes = append(d.NumaNodes, int64(node))
					}
				}
				c.Devices = append(c.Devices, d)
			}
		}
		p.Containers = append(p.Containers, c)
	}
	return p
}
