package checkpoint

import "encoding/json"

// Believable returns a file its right checksum; nil if it is none at all.
func Believable(data []byte) []byte {
	var w wire
	if json.Unmarshal(data, &w) != nil {
		return nil
	}
	data, err := marshal(w.Data)
	if err != nil {
		return nil
	}
	return data
}

// Update is one look of a Mirror.
func (m *Mirror) Update() error { return m.update() }
