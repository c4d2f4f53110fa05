package checks

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// layers says which packages of this module a package, and those below it, may import besides those under the same
// entry. Names are relative to the module; "." is the root package. The longest entry that fits decides. The drawing is
// docs/architecture.md.
var layers = map[string][]string{
	"verbs": {},
	"cm":    {"verbs"},
	"ring":  {},

	"internal/acceptqueue": {},
	"internal/lograte":     {},
	"internal/backoff":     {},

	"internal/rdmacore":  {"internal/backoff", "cm", "verbs"},
	"internal/softiwarp": {"internal/backoff", "internal/lograte", "cm", "verbs"},
	"verbs/verbstest":    {"cm", "verbs"},

	".":      {"internal/rdmacore", "internal/softiwarp", "cm", "verbs"},
	"rconn":  {"internal/acceptqueue", "internal/lograte", ".", "ring", "cm", "verbs"},
	"compat": {"internal/acceptqueue", "internal/lograte", "rconn", ".", "cm", "verbs"},

	// Programs use what everybody can use.
	"examples": {"compat", "rconn", ".", "cm", "verbs"},
	"bench":    {"compat", "rconn", ".", "cm", "verbs"},
	"cmd":      {"compat", "rconn", ".", "cm", "verbs"},
	"testbed":  {"compat", "rconn", ".", "cm", "verbs"},

	// Guest tests look at every layer.
	"testbed/tests": {"internal/checks", "compat", "rconn", "ring", ".", "internal/rdmacore", "internal/softiwarp", "verbs/verbstest", "cm", "verbs"},

	"internal/checks": {"rconn", ".", "cm", "verbs"},
}

// stdOnly are the packages that need nothing but the standard library.
var stdOnly = []string{"verbs", "cm", "ring"}

// ringNever is what keeps ring pure logic: no I/O, no clock, no goroutines that wait for each other.
var ringNever = []string{"context", "io", "log", "log/slog", "net", "os", "sync", "syscall", "time"}

// configurations in which the imports are looked at: build tags choose files.
var configurations = []struct {
	name string
	env  []string
	args []string
}{
	{"default", nil, nil},
	{"guest", nil, []string{"-tags", "guest"}},
	{"no cgo", []string{"CGO_ENABLED=0"}, nil},
	{"darwin", []string{"CGO_ENABLED=0", "GOOS=darwin"}, nil},
	{"windows", []string{"CGO_ENABLED=0", "GOOS=windows"}, nil},
}

// listed is what we read of go list's output.
type listed struct {
	ImportPath   string
	Standard     bool
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func goList(t *testing.T, env []string, args ...string) []listed {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Standard,Imports,TestImports,XTestImports"}, args...)...)
	cmd.Dir = moduleRoot(t)
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, &stderr)
	}
	var pkgs []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

// relative turns an import path into a name of layers; ok is false for other modules' packages.
func relative(path string) (name string, ok bool) {
	if path == module {
		return ".", true
	}
	return strings.CutPrefix(path, module+"/")
}

// layerOf finds the entry of layers that decides about a package.
func layerOf(name string) (string, bool) {
	best := ""
	for l := range layers {
		if (name == l || strings.HasPrefix(name, l+"/")) && len(l) > len(best) {
			best = l
		}
	}
	return best, best != ""
}

// wrongImports returns the imports that break the rule for the package name.
func wrongImports(name string, imports []string, also ...string) []string {
	layer, _ := layerOf(name)
	var wrong []string
	for _, imp := range imports {
		rel, ok := relative(imp)
		if !ok {
			continue
		}
		target, known := layerOf(rel)
		if !known || target != layer && !slices.Contains(layers[layer], target) && !slices.Contains(also, target) {
			wrong = append(wrong, rel)
		}
	}
	return wrong
}

func TestImportsPointDownward(t *testing.T) {
	for _, c := range configurations {
		t.Run(c.name, func(t *testing.T) {
			for _, p := range goList(t, c.env, append(c.args, "./...")...) {
				name, ok := relative(p.ImportPath)
				if !ok {
					t.Fatalf("%s is not in the module %s", p.ImportPath, module)
				}
				if _, ok := layerOf(name); !ok {
					t.Errorf("%s has no entry in layers: give it its place there and in docs/architecture.md", name)
					continue
				}
				for _, imp := range wrongImports(name, p.Imports) {
					t.Errorf("%s must not import %s", name, imp)
				}
				// Tests within a package may use the fabric too, where the package may use cm. Those of an external test package
				// may import what they like.
				var also []string
				if layer, _ := layerOf(name); slices.Contains(layers[layer], "cm") {
					also = append(also, "verbs/verbstest")
				}
				for _, imp := range wrongImports(name, p.TestImports, also...) {
					t.Errorf("tests in package %s must not import %s: make them an external test package", name, imp)
				}
			}
		})
	}
}

// TestDependencies looks at everything a package pulls in, not only at what it names itself.
func TestDependencies(t *testing.T) {
	for _, name := range stdOnly {
		t.Run(name, func(t *testing.T) {
			layer := layers[name]
			for _, p := range goList(t, nil, "-deps", "./"+name) {
				rel, ours := relative(p.ImportPath)
				switch {
				case ours && rel != name && !slices.Contains(layer, rel):
					t.Errorf("%s depends on %s", name, rel)
				case !ours && !p.Standard:
					t.Errorf("%s depends on %s: standard library only", name, p.ImportPath)
				}
				if rel != "ring" {
					continue
				}
				for _, imp := range p.Imports {
					if slices.Contains(ringNever, imp) {
						t.Errorf("ring imports %s: it has no I/O, no clock and no locks", imp)
					}
				}
			}
		})
	}
}

// TestRules checks the checker: the entries are acyclic, and a few imports that must be found are.
func TestRules(t *testing.T) {
	for name, may := range layers {
		for _, m := range may {
			if _, ok := layers[m]; !ok {
				t.Errorf("%s may import %s, which has no entry", name, m)
			}
			if slices.Contains(layers[m], name) {
				t.Errorf("%s and %s may import each other", name, m)
			}
		}
	}
	for _, c := range []struct {
		name, imp string
		wrong     bool
	}{
		{"verbs", "cm", true},
		{"verbs", "verbs/verbstest", true},
		{"cm", "verbs", false},
		{"ring", "verbs", true},
		{"ring/sim", "ring", false},
		{"internal/rdmacore", "rconn", true},
		{"rconn", "internal/rdmacore", true},
		{"rconn", ".", false},
		{".", "rconn", true},
		{"cmd/rdmaproxy", "rconn", false},
		{"cmd/rdmaproxy", "internal/rdmacore", true},
		{"rconn", "nowhere", true},
	} {
		path := module + "/" + c.imp
		if c.imp == "." {
			path = module
		}
		if got := len(wrongImports(c.name, []string{path, "fmt"})) > 0; got != c.wrong {
			t.Errorf("%s importing %s: wrong = %v, want %v", c.name, c.imp, got, c.wrong)
		}
	}
	if len(layers) < 10 || !slices.Contains(slices.Collect(maps.Keys(layers)), ".") {
		t.Error("layers lost entries")
	}
}

// TestCgoInOnePlace looks at all files, whatever their build tags.
func TestCgoInOnePlace(t *testing.T) {
	root := moduleRoot(t)
	for _, file := range goFiles(t, root) {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.ImportsOnly)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, imp := range f.Imports {
			path, _ := strconv.Unquote(imp.Path.Value)
			if path == "C" && !strings.HasPrefix(file, "internal/rdmacore/") {
				t.Errorf("%s imports C: cgo is for internal/rdmacore alone", file)
			}
		}
	}
}
