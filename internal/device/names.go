package device

import (
	"fmt"
	"strings"
)

// A ResourceName names a kind of device as Kubernetes does, for example "vendor.example/gpu". Names from outside enter only
// through ParseResourceName.
type ResourceName string

// An ID is a plugin's name for one device. It is unique only within its resource.
type ID string

// A PodUID identifies one life of a pod: a recreated pod of the same name has another UID.
type PodUID string

// A Pod identifies a pod for people (namespace and name) and for the state file (UID).
type Pod struct {
	UID       PodUID `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// String returns namespace/name, as kubectl prints it.
func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// A Container is a container of a pod. It stays the same when the container restarts under a new runtime ID, and when the
// pod's sandbox is recreated.
type Container struct {
	Pod  PodUID `json:"pod"`
	Name string `json:"name"`
}

const (
	maxLabel  = 63  // a DNS label, and the part of a resource name after the slash
	maxDomain = 244 // a DNS name of 253 characters less the quota prefix "requests."
)

// ParseResourceName parses the name of an extended resource by the rules of Kubernetes (IsExtendedResourceName in its core
// validation): a DNS domain other than kubernetes.io and its subdomains, a slash, and a name of at most 63 letters, digits,
// '-', '_' and '.', which starts and ends with a letter or digit. The prefix "requests." is reserved for quotas. The error
// names the invalid part and shows a valid name.
func ParseResourceName(s string) (ResourceName, error) {
	bad := func(why string) (ResourceName, error) {
		return "", fmt.Errorf("resource name %q: %s; an extended resource is named like vendor.example/gpu", Clip(s), why)
	}
	domain, name, ok := strings.Cut(s, "/")
	switch {
	case !ok:
		return bad("there is no slash between domain and name")
	case strings.Contains(name, "/"):
		return bad("there is more than one slash")
	case strings.HasPrefix(s, "requests."):
		return bad(`the prefix "requests." is reserved for quotas`)
	case strings.Contains(s, "kubernetes.io/"):
		return bad("the domain kubernetes.io is reserved for Kubernetes")
	case !validDomain(domain):
		return bad("the domain is not a lower-case DNS name of at most 244 characters")
	case !validName(name):
		return bad("the part after the slash must be 1 to 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends")
	}
	return ResourceName(s), nil
}

func validDomain(s string) bool {
	if len(s) > maxDomain {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if !consists(label, lowerOrDigit, "-") {
			return false
		}
	}
	return true
}

func validName(s string) bool { return len(s) <= maxLabel && consists(s, alphanumeric, "-_.") }

// consists reports whether a text consists of some characters, and of others only between these. It is not empty.
func consists(s string, of func(rune) bool, between string) bool {
	other := func(c rune) bool { return !of(c) && !strings.ContainsRune(between, c) }
	return s != "" && of(rune(s[0])) && of(rune(s[len(s)-1])) && !strings.ContainsFunc(s, other)
}

func lowerOrDigit(c rune) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }
func alphanumeric(c rune) bool { return lowerOrDigit(c) || 'A' <= c && c <= 'Z' }

// Clip cuts a peer's text to a length for a message.
func Clip(s string) string { return ClipTo(s, 300) }

// ClipTo cuts a text to at most that many bytes, and makes it UTF-8: the API server would store it in another form.
func ClipTo(s string, most int) string {
	const more = " ..."
	if len(s) <= most {
		return strings.ToValidUTF8(s, "?")
	}
	return strings.ToValidUTF8(s[:most-len(more)], "") + more
}
