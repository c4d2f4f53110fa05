package checks

import (
	"errors"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// exampleLink is a link to a function of a test file: [ExampleQP](../verbs/example_queues_test.go).
var exampleLink = regexp.MustCompile(`\[(\w+)\]\(([\w./]+_test\.go)\)`)

// functionsOf returns the source of each function of a Go file without its indentation, and the names of those that go test runs as examples.
func functionsOf(file string) (source map[string]string, runs map[string]bool, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, data, parser.ParseComments)
	if err != nil {
		return nil, nil, err
	}
	source, runs = map[string]string{}, map[string]bool{}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok {
			begin := fset.Position(fn.Pos()).Offset
			if fn.Doc != nil {
				begin = fset.Position(fn.Doc.Pos()).Offset
			}
			source[fn.Name.Name] = flat(string(data[begin:fset.Position(fn.End()).Offset]))
		}
	}
	for _, e := range doc.Examples(f) {
		runs["Example"+e.Name] = e.Output != "" || e.EmptyOutput
	}
	return source, runs, nil
}

// flat is code without indentation, a line feed before and after each line.
func flat(code string) string {
	var b strings.Builder
	b.WriteByte('\n')
	for line := range strings.Lines(code) {
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	return b.String()
}

// untested returns what is wrong with the Go code of a document: each block must be part of a function that the last link before it
// names, and each linked example must be one that go test runs.
func untested(name, text string) (wrong []string) {
	const none = "no function of a test file"
	linked, code := none, ""
	var block *strings.Builder
	for i, line := range strings.Split(text, "\n") {
		complain := func(format string, args ...any) {
			wrong = append(wrong, fmt.Sprintf("%s:%d: ", name, i+1)+fmt.Sprintf(format, args...))
		}
		switch {
		case block != nil && line == "```":
			if !strings.Contains(code, flat(block.String())) {
				complain("the code that ends here is not in %s", linked)
			}
			block = nil
		case block != nil:
			block.WriteString(line + "\n")
		case line == "```go":
			block = new(strings.Builder)
		default:
			for _, m := range exampleLink.FindAllStringSubmatch(line, -1) {
				source, runs, err := functionsOf(filepath.Join(filepath.Dir(name), filepath.FromSlash(m[2])))
				linked, code = m[1], source[m[1]]
				switch {
				case err != nil:
					complain("%v", err)
				case code == "":
					complain("%s has no function %s", m[2], linked)
				case strings.HasPrefix(linked, "Example") && !runs[linked]:
					complain("%s has no output that go test compares", linked)
				}
			}
		}
	}
	return wrong
}

// The code of docs/verbs.md is that of examples which are tests, and its table has all the words.
func TestCodeOfDocsIsTested(t *testing.T) {
	name := filepath.Join(moduleRoot(t), "docs", "verbs.md")
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range untested(name, string(data)) {
		t.Error(w)
	}
	if n := strings.Count(string(data), "\n```go\n"); n < 20 {
		t.Errorf("only %d blocks of code: the search is broken", n)
	}
	for _, word := range []string{"QP", "SQ", "RQ", "SRQ", "WQE", "WR", "CQ", "CQE", "WC", "MR", "lkey", "rkey", "PD", "AH"} {
		row := regexp.MustCompile(`(?m)^\| ` + word + ` \|.*$`).FindString(string(data))
		if !exampleLink.MatchString(row) {
			t.Errorf("no row with an example for %s", word)
		}
	}
}

func TestUntestedCodeIsFound(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x.md")
	const src = "package p\n\nfunc Example() {\n\tf(1)\n\tg()\n\t// Output: 1\n}\n\nfunc ExampleA() {}\n\nfunc h() {}\n"
	if err := os.WriteFile(filepath.Join(filepath.Dir(name), "x_test.go"), []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]int{
		"[Example](x_test.go)\n```go\nf(1)\ng()\n```":           0,
		"[h](x_test.go)\n```go\nfunc h() {}\n```":               0,
		"[Example](x_test.go)\n```go\nf(2)\n```":                1,
		"[Example](x_test.go)\n```go\nf(1)\n\ng()\n```":         1,
		"[Example](x_test.go)\n```go\n(1)\n```":                 1,
		"```go\nf(1)\n```":                                      1,
		"[ExampleA](x_test.go)":                                 1,
		"[ExampleB](x_test.go)":                                 1 + 0,
		"[Example](y_test.go)":                                  1,
		"[Example](x_test.go)\n[h](x_test.go)\n```go\ng()\n```": 1,
	} {
		if got := untested(name, text); len(got) != want {
			t.Errorf("%q: %q, want %d", text, got, want)
		}
	}
}

// linkTarget is where a link of a document goes.
var linkTarget = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// brokenLinks returns the links of a document to files and headings that are not there. Other sites are not asked.
func brokenLinks(root, name string) (broken []string) {
	data, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		return []string{err.Error()}
	}
	for _, m := range linkTarget.FindAllStringSubmatch(string(data), -1) {
		u, err := url.Parse(m[1])
		if err == nil && u.Scheme != "" {
			continue
		}
		target := path.Join(path.Dir(name), strings.TrimSuffix(u.Path, "/"))
		if u.Path == "" {
			target = name
		}
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(target)))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			broken = append(broken, m[1])
		case u.Fragment != "" && !slices.Contains(anchors(string(text)), u.Fragment):
			broken = append(broken, m[1])
		}
	}
	return broken
}

// anchors are the headings of a document as links name them.
func anchors(text string) (all []string) {
	dropped := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for _, h := range headings(text) {
		title := strings.ToLower(strings.TrimSpace(strings.TrimLeft(h, "#")))
		all = append(all, strings.ReplaceAll(dropped.ReplaceAllString(title, ""), " ", "-"))
	}
	return all
}

// headings are the lines of a document that begin with #, outside of code.
func headings(text string) (all []string) {
	for i, part := range strings.Split("\n"+text, "\n```") {
		if i%2 == 0 {
			all = append(all, regexp.MustCompile(`(?m)^#+ .*$`).FindAllString(part, -1)...)
		}
	}
	return all
}

func TestLinksOfDocs(t *testing.T) {
	root := moduleRoot(t)
	documents := 0
	for _, file := range sourceFiles(t, root) {
		if path.Ext(file) != ".md" {
			continue
		}
		documents++
		for _, link := range brokenLinks(root, file) {
			t.Errorf("%s: there is no %s", file, link)
		}
	}
	if documents < 6 {
		t.Errorf("only %d documents: the search is broken", documents)
	}
}

// The two READMEs say the same: the Chinese one has the headings, the code and the links of the English one, in order.
func TestReadmesAgree(t *testing.T) {
	root := moduleRoot(t)
	var levels, code, links [2][]string
	for i, name := range []string{"README.md", "README.zh-CN.md"} {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		text := string(data)
		for _, h := range headings(text) {
			levels[i] = append(levels[i], h[:strings.Index(h, " ")])
		}
		code[i] = codeOf(text)
		for _, m := range linkTarget.FindAllStringSubmatch(text, -1) {
			if !strings.HasPrefix(m[1], "README") {
				links[i] = append(links[i], m[1])
			}
		}
		slices.Sort(links[i])
	}
	for _, c := range []struct {
		what string
		of   [2][]string
	}{{"headings", levels}, {"code", code}, {"links", links}} {
		if !slices.Equal(c.of[0], c.of[1]) {
			t.Errorf("%s differ:\n%q\n%q", c.what, c.of[0], c.of[1])
		}
	}
}

// codeOf returns the code blocks of a document and what the rows of its tables begin with, comments left out.
func codeOf(text string) (all []string) {
	comment := regexp.MustCompile(`\s*(#|//) .*`)
	for i, part := range strings.Split("\n"+text, "\n```") {
		if i%2 == 1 {
			all = append(all, comment.ReplaceAllString(part, ""))
			continue
		}
		for _, m := range regexp.MustCompile("(?m)^\\| (`.*?) \\|").FindAllStringSubmatch(part, -1) {
			all = append(all, regexp.MustCompile("`[^`]*`").FindString(m[1]))
		}
	}
	return all
}
