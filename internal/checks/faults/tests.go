package main

import (
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A mark is a comment "// fault: ID, ID" above a test. With "(software)" at its end the test runs on the software device, perhaps beside
// others.
type mark struct {
	ids  []string
	file string
	line int
	test string // TestName, TestName/subtest, or the name of a function that tests call

	host, guest, software bool // where the test runs
}

const (
	prefix         = "// fault:"
	softwareSuffix = "(software)"
)

// isTestFile tells which files may carry marks: tests, and the conformance suite.
func isTestFile(path string) bool { return strings.HasSuffix(path, "_test.go") || isSuite(path) }

// isSuite tells which files may be of the conformance suite, which runs on the host and in guests.
func isSuite(path string) bool {
	return strings.HasPrefix(path, "verbs/verbstest/") && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go")
}

// ofSoftware tells which tests are the software device's own.
func ofSoftware(path string) bool { return strings.HasPrefix(path, "internal/softiwarp/") }

// runsSuite is what a test of a provider calls.
const runsSuite = "verbstest.Run(t, "

// guestOnly reports whether a file is built on Linux with the tag guest but not without.
func guestOnly(f *ast.File) bool {
	for _, group := range f.Comments {
		for _, c := range group.List {
			expr, err := constraint.Parse(c.Text)
			if err != nil || c.Pos() > f.Package {
				continue
			}
			host := func(tag string) bool { return slices.Contains([]string{"linux", "unix", "amd64", "cgo"}, tag) }
			return !expr.Eval(host) && expr.Eval(func(tag string) bool { return host(tag) || tag == "guest" })
		}
	}
	return false
}

// findMarks reads the marks in all test files below root, nested modules too.
func findMarks(root fs.FS) ([]mark, error) {
	var marks []mark
	suite := false // runs on the software device
	err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || path == "build") {
			return filepath.SkipDir
		}
		if d.IsDir() || !isTestFile(path) {
			return nil
		}
		src, err := fs.ReadFile(root, path)
		if err != nil {
			return err
		}
		suite = suite || ofSoftware(path) && strings.Contains(string(src), runsSuite)
		found, err := parseMarks(path, src)
		marks = append(marks, found...)
		return err
	})
	for i := range marks {
		if suite && isSuite(marks[i].file) {
			marks[i].software = true
		}
	}
	return marks, err
}

func parseMarks(path string, src []byte) ([]mark, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, path, src, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	guest := guestOnly(f)
	lines := strings.Split(string(src), "\n")
	var marks []mark
	for _, group := range f.Comments {
		var ids []string
		software := ofSoftware(path)
		for _, c := range group.List {
			text, ok := strings.CutPrefix(c.Text, prefix)
			if !ok {
				continue
			}
			if rest, ok := strings.CutSuffix(strings.TrimSpace(text), softwareSuffix); ok {
				text, software = rest, true
			}
			for id := range strings.SplitSeq(text, ",") {
				id = strings.TrimSpace(id)
				if !idPattern.MatchString(id) {
					return nil, fmt.Errorf("%v: %q is no id such as CLOSE-1", fset.Position(c.Pos()), id)
				}
				ids = append(ids, id)
			}
		}
		if len(ids) == 0 {
			continue
		}
		end := fset.Position(group.End()).Line
		next := ""
		if end < len(lines) {
			next = lines[end] // lines count from 1
		}
		test := testBelow(fset, f, group, next)
		if test == "" {
			return nil, fmt.Errorf("%s:%d: %v stands above no test", path, end, ids)
		}
		marks = append(marks, mark{
			ids: ids, file: path, line: end + 1, test: test,
			host: !guest, guest: guest || isSuite(path), software: software && !guest,
		})
	}
	return marks, nil
}

// firstString is the name of a subtest: the first string literal of a line such as t.Run("x", ...), {"x", ...} or
// "x": {...}.
var firstString = regexp.MustCompile(`"(?:[^"\\]|\\.)+"|` + "`[^`]+`")

// testBelow names the test that a comment stands above: next is the line after it. It is "" if there is none.
func testBelow(fset *token.FileSet, f *ast.File, group *ast.CommentGroup, next string) string {
	line := fset.Position(group.End()).Line + 1
	for _, decl := range f.Decls {
		fn, isFunc := decl.(*ast.FuncDecl)
		if isFunc && fset.Position(fn.Name.Pos()).Line == line {
			if !takesTest(fn) {
				return ""
			}
			return fn.Name.Name
		}
		if decl.Pos() >= group.Pos() || decl.End() <= group.End() {
			continue
		}
		name, err := strconv.Unquote(firstString.FindString(next))
		if err != nil {
			return ""
		}
		name = strings.ReplaceAll(name, " ", "_")
		if isFunc {
			return fn.Name.Name + "/" + name
		}
		return name // an entry of a table outside of any function
	}
	return ""
}

// takesTest reports whether a function gets a *testing.T or the like, or something of the suite's own named T.
func takesTest(fn *ast.FuncDecl) bool {
	for _, param := range fn.Type.Params.List {
		typ := param.Type
		if star, ok := typ.(*ast.StarExpr); ok {
			typ = star.X
		}
		switch x := typ.(type) {
		case *ast.SelectorExpr:
			if pkg, ok := x.X.(*ast.Ident); ok && pkg.Name == "testing" {
				return true
			}
		case *ast.Ident:
			if x.Name == "T" {
				return true
			}
		}
	}
	return false
}
