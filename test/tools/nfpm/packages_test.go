// Package nfpm holds the modules of the program that makes the packages, and compares the packages that it has made.
package nfpm

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rpmutils "github.com/sassoftware/go-rpmutils"
)

// packagesVariable names the directory with the deb and the rpm of each architecture.
const packagesVariable = "PACKAGES"

// A content is what a package has and runs. Directories are not compared: a deb lists those of the system as well.
type content struct {
	version string
	files   map[string]file   // by path
	scripts map[string]string // by moment: preinst, postinst, prerm, postrm
	needs   []string          // packages and programs
}

// A file is one that a package installs.
type file struct {
	mode   int // the permissions
	owner  string
	digest string // of its bytes, SHA-256
	config bool   // an upgrade keeps the administrator's changes
}

// The files that only one of the two kinds of packages has, and where the rpm has the others.
var (
	onlyDeb = []string{"/etc/apparmor.d/devmgrd", "/usr/share/doc/devmgrd/changelog.gz", "/usr/share/doc/devmgrd/copyright", "/usr/share/lintian/overrides/devmgrd"}
	onlyRPM = []string{"/usr/share/licenses/devmgrd/LICENSE"}
	moved   = map[string]string{"/usr/share/zsh/vendor-completions/_devmgrd": "/usr/share/zsh/site-functions/_devmgrd"}
)

// The deb and the rpm of an architecture install the same files, need no other package, and run the scripts of packaging.
func TestPackages_DebAndRPM_InstallTheSame(t *testing.T) {
	dir := os.Getenv(packagesVariable)
	found := 0
	for _, arch := range []struct {
		deb, rpm string
		machine  elf.Machine
	}{{"amd64", "x86_64", elf.EM_X86_64}, {"arm64", "aarch64", elf.EM_AARCH64}} {
		debs, err := filepath.Glob(filepath.Join(dir, "devmgrd_*_"+arch.deb+".deb"))
		rpms, otherErr := filepath.Glob(filepath.Join(dir, "devmgrd-*-1."+arch.rpm+".rpm"))
		if err := errors.Join(err, otherErr); err != nil || len(debs) > 1 || len(debs) != len(rpms) {
			t.Fatalf("%s has the packages %q and %q, %v", dir, debs, rpms, err)
		}
		if len(debs) == 0 {
			continue
		}
		found++
		t.Run(arch.deb, func(t *testing.T) {
			deb, rpm := readDeb(t, debs[0], arch.deb, arch.machine), readRPM(t, rpms[0], arch.rpm)
			if deb.version != rpm.version || !strings.Contains(debs[0], "devmgrd_"+deb.version+"_") {
				t.Errorf("%s has version %s, the rpm %s", debs[0], deb.version, rpm.version)
			}
			if len(deb.needs) > 0 || !slices.Equal(rpm.needs, []string{"/bin/sh"}) { // that of the scriptlets
				t.Errorf("the deb needs %q, the rpm %q", deb.needs, rpm.needs)
			}
			for there, here := range moved {
				rpm.files[there] = rpm.files[here]
				delete(rpm.files, here)
			}
			for name, f := range deb.files {
				if _, also := rpm.files[name]; also == slices.Contains(onlyDeb, name) {
					t.Errorf("%s: in the rpm as well: %t", name, also)
				} else if also && f != rpm.files[name] {
					t.Errorf("%s is %+v in the deb and %+v in the rpm", name, f, rpm.files[name])
				}
			}
			for name := range rpm.files {
				if _, also := deb.files[name]; also == slices.Contains(onlyRPM, name) {
					t.Errorf("%s: in the deb as well: %t", name, also)
				}
			}
			for name, f := range deb.files {
				want := 0o644
				if path.Dir(name) == "/usr/bin" {
					want = 0o755
				}
				if f.mode != want || f.owner != "root:root" || f.config != strings.HasPrefix(name, "/etc/") {
					t.Errorf("%s is %+v", name, f)
				}
			}
			scripts(t, deb, "deb", map[string]string{"postinst": "postinst", "prerm": "prerm", "postrm": "postrm"})
			scripts(t, rpm, "rpm", map[string]string{"postinst": "post", "prerm": "preun", "postrm": "postun"})
		})
	}
	if found == 0 {
		t.Fatalf("%s=%q has no packages: make deb rpm, or make release, makes them", packagesVariable, dir)
	}
}

// scripts compares a package's scripts with those of packaging, by moment and name.
func scripts(t *testing.T, c content, kind string, want map[string]string) {
	t.Helper()
	if got := slices.Sorted(maps.Keys(c.scripts)); !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
		t.Errorf("the %s runs %q", kind, got)
	}
	for moment, name := range want {
		text, err := os.ReadFile(filepath.Join("../../../packaging", kind, name))
		if err != nil {
			t.Fatal(err)
		}
		if strings.TrimSpace(c.scripts[moment]) != strings.TrimSpace(string(text)) {
			t.Errorf("the %s's %s is not packaging/%s/%s:\n%s", kind, moment, kind, name, c.scripts[moment])
		}
		cmd := exec.Command("sh", "-n")
		cmd.Stdin = strings.NewReader(c.scripts[moment])
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("the shell cannot read the %s's %s: %v\n%s", kind, moment, err, out)
		}
	}
}

// readDeb reads a Debian package with dpkg-deb.
func readDeb(t *testing.T, name, arch string, machine elf.Machine) content {
	t.Helper()
	c := content{version: field(t, name, "Version"), files: map[string]file{}, scripts: map[string]string{}}
	if got := field(t, name, "Architecture"); got != arch {
		t.Errorf("%s is for %s", name, got)
	}
	for _, f := range []string{"Depends", "Pre-Depends", "Recommends"} {
		if needs := field(t, name, f); needs != "" {
			c.needs = append(c.needs, needs)
		}
	}
	config := []string{}
	archive(t, dpkg(t, "--ctrl-tarfile", name), func(h *tar.Header, text []byte) {
		switch base := path.Base(h.Name); base {
		case "conffiles":
			config = strings.Fields(string(text))
		case "preinst", "postinst", "prerm", "postrm":
			c.scripts[base] = string(text)
		}
	})
	archive(t, dpkg(t, "--fsys-tarfile", name), func(h *tar.Header, bytes []byte) {
		at := path.Join("/", h.Name)
		c.files[at] = file{int(h.Mode), h.Uname + ":" + h.Gname, digest(bytes), slices.Contains(config, at)}
		if h.Typeflag != tar.TypeReg || h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s is %+v", at, h)
		}
		if at == "/usr/bin/devmgrd" {
			isFor(t, bytes, machine)
		}
	})
	return c
}

// isFor checks the machine of a program, which is static.
func isFor(t *testing.T, program []byte, machine elf.Machine) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		t.Fatal(err)
	}
	if f.Machine != machine || slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		t.Errorf("the program is for %s and has %d segments, want a static one for %s", f.Machine, len(f.Progs), machine)
	}
}

// archive calls visit with each file of a tar archive that is not a directory.
func archive(t *testing.T, text []byte, visit func(*tar.Header, []byte)) {
	t.Helper()
	r := tar.NewReader(bytes.NewReader(text))
	for {
		h, err := r.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		visit(h, content)
	}
}

// field returns one field of a Debian package, empty if it has none.
func field(t *testing.T, name, field string) string {
	t.Helper()
	return strings.TrimSpace(string(dpkg(t, "--field", name, field)))
}

func dpkg(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("dpkg-deb", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("dpkg-deb %q: %v", args, err)
	}
	return out
}

// readRPM reads an RPM package, whose own checksums have to agree.
func readRPM(t *testing.T, name, arch string) content {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	header, _, err := rpmutils.Verify(f, nil)
	if err != nil {
		t.Fatalf("verifying %s: %v", name, err)
	}
	nevra, err := header.GetNEVRA()
	if err != nil {
		t.Fatal(err)
	}
	if nevra.Name != "devmgrd" || nevra.Release != "1" || nevra.Arch != arch {
		t.Errorf("%s is %s", name, nevra)
	}
	c := content{version: nevra.Version, files: map[string]file{}, scripts: map[string]string{}}
	needs, _ := header.GetStrings(rpmutils.REQUIRENAME) // it fails if there are none
	for _, n := range needs {
		if !strings.HasPrefix(n, "rpmlib(") { // what rpm itself has to understand
			c.needs = append(c.needs, n)
		}
	}
	for moment, tag := range map[string]int{"preinst": rpmutils.PREIN, "postinst": rpmutils.POSTIN, "prerm": rpmutils.PREUN, "postrm": rpmutils.POSTUN} {
		if header.HasTag(tag) {
			text, err := header.GetString(tag)
			if err != nil {
				t.Fatal(err)
			}
			c.scripts[moment] = text
		}
	}
	files, err := header.GetFiles()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		const format, directory, regular = 0o170000, 0o040000, 0o100000
		switch f.Mode() & format {
		case directory:
			if f.Mode()&0o7777 != 0o755 || f.UserName() != "root" {
				t.Errorf("directory %s has mode %o and owner %s", f.Name(), f.Mode(), f.UserName())
			}
			continue
		case regular:
		default:
			t.Errorf("%s has mode %o", f.Name(), f.Mode())
		}
		const keep = rpmutils.RPMFILE_CONFIG | rpmutils.RPMFILE_NOREPLACE
		c.files[f.Name()] = file{f.Mode() & 0o7777, f.UserName() + ":" + f.GroupName(), f.Digest(), f.Flags()&keep == keep}
	}
	return c
}

func digest(text []byte) string { return fmt.Sprintf("%x", sha256.Sum256(text)) }
