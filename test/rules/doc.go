// Package rules holds tests of the project's own rules, so that nobody has to remember them: who may import whom, and
// which library is whose.
package rules
