package device

// A Component is a part of devmgrd; Err is nil while it is ready.
type Component struct {
	Name string
	Err  error
}

// A Limit is something that devmgrd cannot do with a release of the container runtime or of Kubernetes, or with its rights.
type Limit struct {
	Release string // name and version, such as "containerd 2.1.9", or "its rights at the API server"
	Text    string // what that means for users: one sentence without a full stop
}
