package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// shared are the files that work in directories which other processes write. There a path is
// checked by one system call and used by the next one, and is another file by then. They leave paths to internal/socket/shareddir.
var shared = []string{
	"internal/checkpoint/*.go", "internal/nodestatus/*.go", "internal/podresources/*.go", "internal/registry/*.go", "internal/socket/*.go", "internal/podresources/internal/takeover/*.go",
	"internal/cli/internal/migrate/aside.go", "internal/cli/internal/migrate/export.go", "internal/cli/internal/migrate/import.go", "internal/cli/internal/migrate/migrate.go",
}

// byPath are the functions that take a path.
var byPath = map[string][]string{
	"os": {
		"Chdir", "Chmod", "Chown", "Chtimes", "CopyFS", "Create", "CreateTemp", "DirFS", "Lchown", "Link", "Lstat", "Mkdir", "MkdirAll", "MkdirTemp", "Open",
		"OpenFile", "OpenInRoot", "OpenRoot", "ReadDir", "ReadFile", "Readlink", "Remove", "RemoveAll", "Rename", "Stat", "Symlink", "Truncate", "WriteFile",
	},
	"path/filepath": {"EvalSymlinks", "Glob", "Walk", "WalkDir"},
	"net":           {"Dial", "DialTimeout", "DialUnix", "FileListener", "Listen", "ListenUnix", "Dialer", "ListenConfig"},
	"syscall":       {"Access", "Chmod", "Chown", "Creat", "Lchown", "Link", "Lstat", "Mkdir", "Mkfifo", "Mknod", "Open", "Readlink", "Rename", "Rmdir", "Stat", "Statfs", "Symlink", "Truncate", "Unlink"},
	"golang.org/x/sys/unix": {
		"Access", "Chmod", "Chown", "Creat", "Faccessat", "Fchmodat", "Fchownat", "Fstatat", "Getxattr", "Lchown", "Link", "Linkat", "Lsetxattr", "Lstat", "Mkdir",
		"Mkdirat", "Mkfifo", "Mknod", "Open", "Openat", "Openat2", "Readlink", "Readlinkat", "Rename", "Renameat", "Renameat2", "Rmdir", "Setxattr", "Stat",
		"Statx", "Symlink", "Truncate", "Unlink", "Unlinkat",
	},
}

// methodsByPath are the methods that take a path, by the package that a file imports for them.
var methodsByPath = map[string][]string{module + "internal/loops/dirwatch": {"AddPath"}}

// byPathAllowed are the exceptions, each with its reason.
var byPathAllowed = map[string]string{
	"internal/socket/socket.go net.ListenConfig":                          "it binds a draft through the descriptor of the open directory, and checks what it has bound",
	"internal/socket/vacant.go os.ReadFile":                               "it reads a process's name in /proc",
	"internal/cli/internal/migrate/aside.go os.Lstat":                     "a name in the directory above the kubelet's plugin directory, which is the kubelet's own",
	"internal/cli/internal/migrate/aside.go os.Stat":                      "the kubelet's plugin directory itself, in a directory that is the kubelet's own",
	"internal/cli/internal/migrate/aside.go os.MkdirTemp":                 "in the directory above the kubelet's plugin directory",
	"internal/cli/internal/migrate/aside.go os.Chmod":                     "a directory that the command has just made there, which no container has mounted",
	"internal/cli/internal/migrate/aside.go os.WriteFile":                 "in a directory that the command has just made there",
	"internal/cli/internal/migrate/aside.go os.Rename":                    "of whole directories, in the directory above",
	"internal/cli/internal/migrate/aside.go os.RemoveAll":                 "of a directory that the command has just made; it follows no links",
	"internal/cli/internal/migrate/aside.go path/filepath.WalkDir":        "it lists names, which a person reads, and follows no links",
	"internal/cli/internal/migrate/migrate.go path/filepath.EvalSymlinks": "of directories that the configuration and the command line name",
	"internal/cli/internal/migrate/migrate.go path/filepath.Glob":         "it lists names, which a person reads",
}

// Packages that work in shared directories do so through internal/socket/shareddir.
func TestPathsInSharedDirectories(t *testing.T) {
	root := filepath.Join("..", "..")
	used, files := map[string]bool{}, 0
	for _, pattern := range shared {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %d files (%v)", pattern, len(found), err)
		}
		for _, file := range found {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			files++
			set := token.NewFileSet()
			source, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			below, err := filepath.Rel(root, file)
			if err != nil {
				t.Fatal(err)
			}
			for name, at := range pathFunctions(source) {
				key := filepath.ToSlash(below) + " " + name
				used[key] = true
				if byPathAllowed[key] == "" {
					t.Errorf("%s uses %s in a directory that other processes write; use internal/socket/shareddir, or name the reason in byPathAllowed", set.Position(at), name)
				}
			}
		}
	}
	for key := range byPathAllowed {
		if !used[key] {
			t.Errorf("the exception %q is not needed", key)
		}
	}
	if files < 40 {
		t.Errorf("only %d files were read: is the root right?", files)
	}
}

// pathFunctions returns the functions of byPath and methodsByPath that a file uses, and where.
func pathFunctions(source *ast.File) map[string]token.Pos {
	names, methods := map[string]string{}, map[string]string{} // of the file's imports
	for _, spec := range source.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		name := filepath.Base(path)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = path
		for _, method := range methodsByPath[path] {
			methods[method] = path
		}
	}
	used := map[string]token.Pos{}
	ast.Inspect(source, func(n ast.Node) bool {
		selector, is := n.(*ast.SelectorExpr)
		if !is {
			return true
		}
		if path := methods[selector.Sel.Name]; path != "" {
			used[path+"."+selector.Sel.Name] = selector.Pos()
		}
		if of, is := selector.X.(*ast.Ident); is && slices.Contains(byPath[names[of.Name]], selector.Sel.Name) {
			used[names[of.Name]+"."+selector.Sel.Name] = selector.Pos()
		}
		return true
	})
	return used
}

// A rule that nothing can break says nothing.
func TestPathFunctions(t *testing.T) {
	source, err := parser.ParseFile(token.NewFileSet(), "x.go", `package x
import ("os"; "net"; fp "path/filepath"; "golang.org/x/sys/unix"; "io"; "`+module+`internal/loops/dirwatch")
var a, b = os.Chmod, os.Getpid
func f() { new(net.Dialer).DialContext(nil, "unix", "x"); fp.EvalSymlinks("x"); unix.Fchmod(1, 1); unix.Openat(1, "x", 0, 0); io.ReadAll(nil); other.Open(); new(dirwatch.Watcher).AddPath("x") }`, 0)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for name := range pathFunctions(source) {
		got = append(got, name)
	}
	slices.Sort(got)
	if want := []string{module + "internal/loops/dirwatch.AddPath", "golang.org/x/sys/unix.Openat", "net.Dialer", "os.Chmod", "path/filepath.EvalSymlinks"}; !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}
