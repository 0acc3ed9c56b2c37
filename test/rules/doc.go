// Package rules holds tests of the project's own rules, so that no reviewer has to remember them: which package may import which,
// which library belongs to which package, which words the language avoids, that paths in shared directories are left to
// internal/socket/shareddir, that the tests exist which test/conformance.yaml and test/map.yaml name, that headers
// of if and switch change no state, and that the generated parts of documents have the text of their sources.
package rules
