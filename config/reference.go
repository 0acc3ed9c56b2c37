package config

import _ "embed" // for Reference

// Reference is the commented configuration file: every key with its meaning, and its default commented out.
//
//go:embed devmgrd.yaml
var Reference string
