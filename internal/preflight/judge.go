package preflight

import (
	"fmt"
	"strings"
)

// Judge returns the findings, in the order in which they are best repaired.
func Judge(f Facts) []Finding {
	var j judge
	if !f.Root {
		j.fail("user", "run this as root", "only root can read the facts")
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
	j.api(f)
	j.plugins(f)
	j.checkpoint(f)
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
		j.ok("daemon", "it does not run")
	case len(f.Daemon.Problems) == 0:
		j.ok("daemon", "devmgrd %s runs, and every part of it is ready", f.Daemon.Version)
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
		j.warn("state", "restore it from a backup, if there is one that is newer than the last change; or start devmgrd, which sets it aside and asks the runtime what is in use", "%v", s.Err)
	case s.Err != nil:
		j.fail("state", "repair that, or give devmgrd another stateDir", "%v", s.Err)
	case s.Version == 0:
		j.ok("state", "there is none yet; it will be in %s", s.Dir)
	default:
		j.ok("state", "%s is sound, and %d pods have devices by it", s.Dir, s.Pods)
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
