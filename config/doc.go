// Package config turns a YAML file, the environment and --set flags into one checked, typed Config.
//
// It owns the keys, their defaults, their documentation (devmgrd.yaml, which is embedded as Reference) and their
// rules. It promises that each Config it returns is complete and valid, and that an error lists every mistake: its
// source, the key, the problem, and the remedy.
//
// Load collects the file, the environment and the flags, of which later ones win; refuses unknown keys; moves the values of
// deprecated keys to those that replace them; decodes each value; fills in values that depend on others; and checks the rules.
//
// The package starts nothing. It reads the given file, or the default one, and the host's name. No other package uses viper.
package config
