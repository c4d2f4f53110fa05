package checks

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// wellKnown are methods whose meaning the standard library has fixed; ioMethods too, but for users they need a word.
var (
	wellKnown = []string{"Error", "Unwrap", "String", "GoString", "Format", "Timeout", "Temporary"}
	ioMethods = []string{"Read", "Write", "Close"}
)

// TestExportedIdentifiersHaveComments walks over all packages but commands and tests. In a group of constants or variables
// one comment is enough, on the group or on the line; fields and interface methods are left to their author.
func TestExportedIdentifiersHaveComments(t *testing.T) {
	root := moduleRoot(t)
	packages := map[string]bool{} // directory: has a package comment
	for _, file := range goFiles(t, root) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, filepath.Join(root, filepath.FromSlash(file)), nil, parser.ParseComments)
		if err != nil {
			t.Error(err)
			continue
		}
		dir := path.Dir(file)
		packages[dir] = packages[dir] || f.Doc != nil
		if f.Name.Name == "main" {
			continue
		}
		plain := wellKnown
		if strings.Contains("/"+file, "/internal/") {
			plain = slices.Concat(wellKnown, ioMethods)
		}
		for _, id := range uncommented(f, plain) {
			p := fset.Position(id.Pos())
			t.Errorf("%s:%d: %s has no comment", file, p.Line, id.Name)
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(packages)) {
		if !packages[dir] {
			t.Errorf("%s has no package comment", dir)
		}
	}
}

// uncommented returns the exported names of a file that no comment explains, besides methods named as in plain.
func uncommented(f *ast.File, plain []string) []*ast.Ident {
	var found []*ast.Ident
	add := func(commented bool, names ...*ast.Ident) {
		for _, n := range names {
			if !commented && n.IsExported() {
				found = append(found, n)
			}
		}
	}
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil || exportedReceiver(d.Recv) && !slices.Contains(plain, d.Name.Name) {
				add(d.Doc != nil, d.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					add(s.Doc != nil || d.Doc != nil && len(d.Specs) == 1, s.Name)
				case *ast.ValueSpec:
					add(d.Doc != nil || s.Doc != nil || s.Comment != nil, s.Names...)
				}
			}
		}
	}
	return found
}

func exportedReceiver(recv *ast.FieldList) bool {
	typ := recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.IndexListExpr:
			typ = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return false
		}
	}
}

func TestUncommented(t *testing.T) {
	const src = `package p
type A struct{}
// B is.
type B struct{}
// C and D are.
const ( C = 1; D = 2 )
const ( E = 1 // e
 F = 2 )
func G() {}
// H does.
func H() {}
func (A) I() {}
func (*B) Error() string { return "" }
func (b *B) J() {}
type k struct{}
func (k) L() {}
func (g M[T]) N() {}
`
	f, err := parser.ParseFile(token.NewFileSet(), "p.go", src, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, id := range uncommented(f, wellKnown) {
		got = append(got, id.Name)
	}
	if want := []string{"A", "F", "G", "I", "J", "N"}; !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
}
