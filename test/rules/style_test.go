package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// A header of if or switch has a condition and what declares its values. What changes state stands on a line of its own, where a reader looks for it.
func TestHeaders_ChangeNoState(t *testing.T) {
	root := filepath.Join("..", "..")
	files := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != root:
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, ".pb.go"):
			return nil
		}
		files++
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, at := range headers(file) {
			t.Errorf("%s: the header changes state: put that on a line before", set.Position(at))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 500 {
		t.Errorf("%d files were read", files)
	}
}

// headers returns the headers of if and switch that change state.
func headers(file *ast.File) (all []token.Pos) {
	ast.Inspect(file, func(n ast.Node) bool {
		var header ast.Stmt
		switch n := n.(type) {
		case *ast.IfStmt:
			header = n.Init
		case *ast.SwitchStmt:
			header = n.Init
		}
		if changesState(header) {
			all = append(all, n.Pos())
		}
		return true
	})
	return all
}

// changesState reports whether a statement does more than to declare or to set variables.
func changesState(s ast.Stmt) bool {
	assign, is := s.(*ast.AssignStmt)
	if !is {
		return s != nil
	}
	for _, to := range assign.Lhs {
		if _, plain := to.(*ast.Ident); !plain {
			return true
		}
	}
	return false
}

func TestHeaders(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "", `package p
func f() {
	if x := 1; x > 0 {}
	if x, err = f(); err != nil {}
	if s.x = 1; true {}
	if m[k]--; true {}
	switch delete(m, k); {}
	switch m[k] = 1; {}
}`, 0)
	if err != nil {
		t.Fatal(err)
	}
	if found := headers(file); len(found) != 4 {
		t.Errorf("%d headers change state, want 4", len(found))
	}
}
