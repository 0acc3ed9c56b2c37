package dra

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Driver is the name of devmgrd as a DRA driver.
const Driver = device.DRADriver

// suffixLength is the number of hexadecimal digits at the end of a derived name.
const suffixLength = 6

// Name returns the name of a device in DRA, a DNS label. It depends on the ID alone.
//
// An ID that is a DNS label is its own name, unless it ends like a derived name: in a hyphen and six hexadecimal digits. The name of
// any other ID is derived: the ID in lower case with hyphens for other characters, cut, and six digits of its SHA-256. So no ID has the
// derived name of another, and two derived names are equal only if their beginnings and 24 bits of their hashes agree. place keeps
// devices of one name in different pools.
func Name(id device.ID) string {
	s := string(id)
	if isLabel(s) && !endsLikeDerived(s) {
		return s
	}
	return derived(s, s, validation.DNS1123LabelMaxLength, false)
}

// PoolName returns the name of pool k of a resource on a node: NODE/RESOURCE/K. The part of the resource after the slash is derived as
// in Name where it is no DNS name: it may have capitals and underscores. If the whole is longer than the API allows, the name is
// NODE/HASH/K with the node's name cut, and the hash of the node and the resource.
func PoolName(node string, r device.ResourceName, k int) string {
	domain, kind, _ := strings.Cut(string(r), "/")
	if len(validation.IsDNS1123Subdomain(kind)) > 0 || endsLikeDerived(kind) {
		kind = derived(kind, string(r), validation.DNS1123LabelMaxLength, true)
	}
	name := fmt.Sprintf("%s/%s/%s/%d", node, domain, kind, k)
	if len(name) <= validation.DNS1123SubdomainMaxLength {
		return name
	}
	end := fmt.Sprintf("/%s/%d", digits(node+"/"+string(r), 16), k)
	return cut(node, validation.DNS1123SubdomainMaxLength-len(end)) + end
}

// SliceName returns the name of the ResourceSlice of pool k of a resource on a node. It ends in 64 bits of the hash of all three,
// because a hyphen between them may also be part of them.
func SliceName(node string, r device.ResourceName, k int) string {
	end := "-" + digits(fmt.Sprintf("%s/%s/%d", node, r, k), 16)
	all := strings.Join([]string{node, Driver, string(r), strconv.Itoa(k)}, "-")
	return cut(lower(all, true), validation.DNS1123SubdomainMaxLength-len(end)) + end
}

// isLabel reports whether s is a DNS label (RFC 1123). The function of apimachinery takes a hundred times as long.
func isLabel(s string) bool {
	if s == "" || len(s) > validation.DNS1123LabelMaxLength || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; ('a' > c || c > 'z') && ('0' > c || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// endsLikeDerived reports whether s ends in a hyphen and the digits of a derived name.
func endsLikeDerived(s string) bool {
	at := len(s) - suffixLength - 1
	if at < 0 || s[at] != '-' {
		return false
	}
	return strings.Trim(s[at+1:], "0123456789abcdef") == ""
}

// derived returns s as a valid name with digits of the hash of whole, at most most bytes. dots are kept if they may be.
func derived(s, whole string, most int, dots bool) string {
	end := digits(whole, suffixLength)
	if begin := cut(lower(s, dots), most-len(end)-1); begin != "" {
		return begin + "-" + end
	}
	return "device-" + end
}

// lower returns s in lower case, with one hyphen for each run of other characters, and none at the ends. Dots between other characters
// are kept if dots.
func lower(s string, dots bool) string {
	var b strings.Builder
	separator := byte(0)
	for i := range len(s) {
		c := s[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		switch {
		case 'a' <= c && c <= 'z' || '0' <= c && c <= '9':
			if separator != 0 && b.Len() > 0 {
				b.WriteByte(separator)
			}
			b.WriteByte(c)
			separator = 0
		case dots && c == '.' && separator == 0:
			separator = '.'
		default:
			separator = '-'
		}
	}
	return b.String()
}

// cut returns the first bytes of a name, at most most, without separators at the end.
func cut(s string, most int) string {
	return strings.TrimRight(s[:min(len(s), max(most, 0))], "-.")
}

// digits returns the first n hexadecimal digits of the SHA-256 of s.
func digits(s string, n int) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])[:n]
}
