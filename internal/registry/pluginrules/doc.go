// Package pluginrules holds the operator's rules for device plugins: which pods may serve a resource, and what a plugin may put
// into containers.
//
//	rules.go    the rules: parsed, and asked about one registration or one grant; pure
//	pattern.go  patterns of names and paths; pure
//	guard.go    the rules of this node at work: log, metric, event; refusals where they are enforced
//	file.go     reads a rules file
//	seen.go     what plugins have granted on this node, for suggestions
//	suggest.go  a rules file from what a node has seen; pure
//
// The first rule with a pattern that matches a resource decides about it. A resource that no rule matches has no plugin that may
// serve it.
//
// # What is compared
//
// A registration is compared with the rule when the plugin registers, and again each time devmgrd dials it. A grant is
// compared when the plugin answers Allocate, so that nothing that is refused reaches the state file, and again when a
// container is created, since grants of the state file may be older than the rules.
//
// Paths are compared twice, because a link leads anywhere: as the plugin granted them, without "." and "..", and as the host
// resolves them when a container is created. Both must be below a path of the rule. A device that a rule allows by its major number
// may have any path.
//
// # Promises
//
//   - Without rules nothing is refused, and nothing costs more than a note of the names in a grant.
//   - In report mode nothing is refused.
//   - Each violation is logged, counted and reported as an event once for a container or plugin, and again after
//     4096 others.
//   - The values of variables and annotations are never stored, logged or suggested: they may be secret.
package pluginrules
