// Package config turns a YAML file, the environment and --set flags into one checked, typed Config.
//
// It owns the keys, their defaults, their documentation (devmgrd.yaml, which is embedded as Reference) and their
// rules. It promises that a Config it hands out is complete and sound, and that a refusal names every mistake at
// once: where it was written, which key, what is wrong, and what to do.
//
// The order of events in Load: collect the file, the environment and the flags, later ones winning; refuse keys
// that do not exist; decode each value; fill in what depends on other values; check the rules.
//
// It starts nothing, reads nothing but the file it is given, and no package below it hears of viper, flags or
// environment variables.
package config
