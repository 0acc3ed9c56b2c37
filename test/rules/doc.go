// Package rules holds tests of the project's own rules, so that no reviewer has to remember them: who may import whom,
// which library is whose, how many riddles the language has, that paths in shared directories are left to internal/shareddir, and that the tests exist which
// docs/conformance.md names.
package rules
