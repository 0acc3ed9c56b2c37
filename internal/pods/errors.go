package pods

import "errors"

var (
	// ErrNotFound: the pod is not in the API, has ended, or does not run on this node.
	ErrNotFound = errors.New("no such pod on this node")
	// ErrUnavailable: the API server could not be reached, or did not answer.
	ErrUnavailable = errors.New("the API server is unavailable")
)
