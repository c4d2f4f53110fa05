package checks

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// enders are functions that end the process, by package. log.Panic is among them: a library returns errors.
var enders = map[string][]string{
	"os":      {"Exit"},
	"syscall": {"Exit"},
	"log":     {"Fatal", "Fatalf", "Fatalln", "Panic", "Panicf", "Panicln"},
	"runtime": {"Goexit"},
}

// Only programs and tests end the process; a library never does.
//
// fault: MEM-8
func TestLibraryDoesNotExit(t *testing.T) {
	root := moduleRoot(t)
	checked := 0
	for _, file := range goFiles(t, root) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, filepath.Join(root, filepath.FromSlash(file)), nil, 0)
		if err != nil {
			t.Error(err)
			continue
		}
		if f.Name.Name == "main" {
			continue
		}
		checked++
		for _, at := range exits(f) {
			t.Errorf("%v ends the process or the goroutine", fset.Position(at))
		}
	}
	if checked < 50 {
		t.Errorf("only %d files: the search is broken", checked)
	}
}

// exits finds the uses of enders.
func exits(f *ast.File) (found []token.Pos) {
	ast.Inspect(f, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, ok := sel.X.(*ast.Ident)
		if !ok {
			return true
		}
		for _, name := range enders[pkg.Name] {
			if sel.Sel.Name == name {
				found = append(found, sel.Pos())
			}
		}
		return true
	})
	return found
}

func TestExitsAreFound(t *testing.T) {
	const src = `package p
func f() { os.Exit(1); g := log.Fatalf; g("x"); log.Print("y"); os.Getenv("z") }`
	f, err := parser.ParseFile(token.NewFileSet(), "p.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(exits(f)); n != 2 {
		t.Errorf("%d uses found, want 2", n)
	}
}
