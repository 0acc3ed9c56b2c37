// Package rules holds tests of the project's own rules, so that nobody has to remember them: who may import whom,
// which library is whose, how many riddles the language has, that paths in shared directories are left to internal/shareddir, that the
// tests exist which docs/conformance.md names, and that the generated parts of documents have the text of their sources.
package rules
