package rules

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// limit matches a limit that a document names, with the package below internal and the constant that has it: 256 KiB (`pods.maxPodSize`).
var limit = regexp.MustCompile("([0-9][0-9 ]*(?: [A-Za-z]+)?) \\(`([a-z/]+)\\.([A-Za-z]+)`\\)")

// units are those of limits.
var units = map[string]int64{
	"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "ms": int64(time.Millisecond), "s": int64(time.Second), "min": int64(time.Minute), "h": int64(time.Hour),
}

// THREATS.md has the limits of what others set, as they are in the code.
func TestLimits(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "THREATS.md"))
	if err != nil {
		t.Fatal(err)
	}
	all := limit.FindAllStringSubmatch(string(text), -1)
	if len(all) < 70 {
		t.Errorf("only %d limits were read", len(all))
	}
	for _, one := range all {
		want, ok := amount(one[1])
		got, err := constantOf(filepath.Join(root, "internal", one[2]), one[3])
		if err != nil || !ok || got != want {
			t.Errorf("%s: the code has %d, %v", one[0], got, err)
		}
	}
}

// trustedPeers are the files whose gRPC clients call the kubelet or the container runtime, which may do with the node what they like.
var trustedPeers = []string{"internal/cri/cri.go", "internal/podresources/ask.go", "internal/podresources/kubelet.go"}

// gRPC takes headers of 16 MiB with each call and each answer unless a server or a client says otherwise.
func TestGRPC_HeadersHaveALimit(t *testing.T) {
	option := map[string]string{"grpc.NewServer(": "grpc.MaxHeaderListSize(", "grpc.NewClient(": "grpc.WithMaxHeaderListSize("}
	found := 0
	err := filepath.WalkDir(filepath.Join(root, "internal"), func(file string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		text, err := os.ReadFile(file)
		for made, limited := range option {
			if n := strings.Count(string(text), made); n > 0 && !slices.ContainsFunc(trustedPeers, func(p string) bool { return filepath.Join(root, p) == file }) {
				found += n
				if strings.Count(string(text), limited) < n {
					t.Errorf("%s: %s...) without %s...)", file, made, limited)
				}
			}
		}
		return err
	})
	if err != nil || found < 5 {
		t.Errorf("%d servers and clients were found: %v", found, err)
	}
}

// amount reads a number with its unit; a word that is no unit is what is counted.
func amount(text string) (int64, bool) {
	words := strings.Fields(text)
	factor := int64(1)
	if last := words[len(words)-1]; last[0] < '0' || last[0] > '9' {
		if words = words[:len(words)-1]; units[last] > 0 {
			factor = units[last]
		}
	}
	var n int64
	_, err := fmt.Sscan(strings.Join(words, ""), &n)
	return n * factor, err == nil
}

// constantOf returns the value of an integer constant of a package.
func constantOf(dir, name string) (int64, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return 0, err
	}
	values := map[string]ast.Expr{}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return 0, err
		}
		for _, d := range file.Decls {
			group, is := d.(*ast.GenDecl)
			if !is || group.Tok != token.CONST {
				continue
			}
			for _, s := range group.Specs {
				spec := s.(*ast.ValueSpec)
				for i, id := range spec.Names {
					if i < len(spec.Values) {
						values[id.Name] = spec.Values[i]
					}
				}
			}
		}
	}
	for word, d := range map[string]time.Duration{"Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour} {
		values["time."+word] = &ast.BasicLit{Kind: token.INT, Value: fmt.Sprint(int64(d))}
	}
	if values[name] == nil {
		return 0, fmt.Errorf("no constant %s among %v", name, slices.Sorted(maps.Keys(values)))
	}
	n, exact := constant.Int64Val(constant.ToInt(valueOf(values[name], values)))
	if !exact {
		return 0, fmt.Errorf("%s is no integer", name)
	}
	return n, nil
}

// valueOf evaluates a constant expression.
func valueOf(e ast.Expr, names map[string]ast.Expr) constant.Value {
	switch e := e.(type) {
	case *ast.BasicLit:
		return constant.MakeFromLiteral(e.Value, e.Kind, 0)
	case *ast.ParenExpr:
		return valueOf(e.X, names)
	case *ast.Ident:
		return valueOf(names[e.Name], names)
	case *ast.SelectorExpr:
		return valueOf(names[fmt.Sprintf("%s.%s", e.X, e.Sel)], names)
	case *ast.BinaryExpr:
		x, y := valueOf(e.X, names), valueOf(e.Y, names)
		if e.Op == token.SHL {
			n, _ := constant.Uint64Val(y)
			return constant.Shift(x, e.Op, uint(n))
		}
		if x.Kind() == constant.Unknown || y.Kind() == constant.Unknown {
			break
		}
		return constant.BinaryOp(x, e.Op, y)
	}
	return constant.MakeUnknown()
}
