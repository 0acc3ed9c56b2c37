package device

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// Digest returns a short value for a list of devices: equal for equal lists, and different for different ones.
func Digest(ids []ID) string {
	h := sha256.New()
	var size [binary.MaxVarintLen64]byte
	for _, id := range ids {
		h.Write(binary.AppendUvarint(size[:0], uint64(len(id))))
		h.Write([]byte(id))
	}
	return hex.EncodeToString(h.Sum(nil))
}
