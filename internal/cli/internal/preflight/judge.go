package preflight

import (
	"fmt"
	"strings"
	"time"
)

// Judge returns the findings, in the order in which an operator should fix them.
func Judge(f Facts) []Finding {
	var j judge
	if !f.Root {
		j.fail("user", "run this as root", "only root can see all the facts")
		return j
	}
	j.daemon(f)
	j.state(f)
	j.sockets(f)
	j.runtime(f)
	j.nri(f)
	j.timeout(f)
	j.validator(f)
	j.sizes(f)
	j.cgroups(f)
	j.userNamespaces(f)
	j.release(f)
	j.api(f)
	j.claims(f)
	j.plugins(f)
	j.checkpoint(f)
	j.neighbours(f)
	return j
}

type judge []Finding

func (j *judge) ok(check, format string, args ...any) {
	*j = append(*j, Finding{OK, check, fmt.Sprintf(format, args...), ""})
}

func (j *judge) warn(check, remedy, format string, args ...any) {
	*j = append(*j, Finding{Warn, check, fmt.Sprintf(format, args...), remedy})
}

func (j *judge) fail(check, remedy, format string, args ...any) {
	*j = append(*j, Finding{Fail, check, fmt.Sprintf(format, args...), remedy})
}

func (j *judge) daemon(f Facts) {
	if f.ConfigFile != "" {
		j.ok("configuration", "%s", f.ConfigFile)
	} else {
		j.ok("configuration", "there is no file; the defaults are in force")
	}
	switch {
	case f.Daemon == nil:
		j.ok("daemon", "not running")
	case len(f.Daemon.Problems) == 0:
		j.ok("daemon", "devmgrd %s runs, and all its components are ready", f.Daemon.Version)
	default:
		for _, p := range f.Daemon.Problems {
			j.fail("daemon", "see devmgrd status, and journalctl -u devmgrd", "devmgrd %s runs, but %s", f.Daemon.Version, p)
		}
	}
}

func (j *judge) state(f Facts) {
	s := f.State
	switch {
	case s.InUse:
		j.ok("state", "%s is in use by the running devmgrd", s.Dir)
	case s.Damaged:
		j.warn("state", "restore a backup that is newer than the last change, if there is one; or start devmgrd, which sets the file aside and asks the runtime for the devices in use", "%v", s.Err)
	case s.Err != nil:
		j.fail("state", "fix that, or set another stateDir", "%v", s.Err)
	case s.Version == 0:
		j.ok("state", "no state file yet; it will be in %s", s.Dir)
	default:
		j.ok("state", "%s is sound; %d pods have devices", s.Dir, s.Pods)
	}
}

func (j *judge) release(f Facts) {
	switch o := f.Openers; {
	case o == nil:
	case o.Err != nil:
		j.fail("openers", "systemctl enable --now devmgrd-openers.socket; until then no device with release.check: openers becomes free again", "%v", o.Err)
	default:
		j.ok("openers", "the search for processes that use devices takes %v of CPU time for %d processes", o.CPU.Round(time.Millisecond), o.Processes)
	}
	for _, c := range f.Commands {
		switch {
		case c.Err != nil:
			j.fail("commands", "correct "+c.Key+", or install the program", "%s: %v", c.Key, c.Err)
		case !f.Host.Systemd:
			j.fail("commands", "remove "+c.Key+", which systemd runs", "%s %s cannot be run: systemd is not in charge of this machine", c.Key, c.Path)
		default:
			j.ok("commands", "%s: %s", c.Key, c.Path)
		}
	}
}

func (j *judge) sockets(f Facts) {
	if f.Daemon != nil {
		return
	}
	var free []string
	for _, s := range f.Sockets {
		switch {
		case s.Init:
			j.ok("socket", "%s is held by systemd for devmgrd", s.At)
		case s.Err != nil && s.Key == "metrics.listen": // devices do not depend on it
			j.warn("socket", "choose another "+s.Key, "%v", s.Err)
		case s.Err != nil:
			j.fail("socket", "or choose another "+s.Key, "%v", s.Err)
		default:
			free = append(free, s.At)
		}
	}
	if len(free) > 0 {
		j.ok("sockets", "free: %s", strings.Join(free, ", "))
	}
}
