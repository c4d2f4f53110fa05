package checks

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// requirements are the modules that the library may require itself. Their own requirements follow, marked indirect.
var requirements = []string{"golang.org/x/net", "golang.org/x/sys", "github.com/stretchr/testify"}

// goMod is what we read of go mod edit -json.
type goMod struct {
	Module  struct{ Path string }
	Require []struct {
		Path     string
		Indirect bool
	}
	Replace []struct {
		Old, New struct{ Path, Version string }
	}
	Tool []struct{ Path string }
}

func readMod(t *testing.T, file string) goMod {
	t.Helper()
	cmd := exec.Command("go", "mod", "edit", "-json", file)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	var m goMod
	if err := json.Unmarshal(out, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestLibraryRequirements(t *testing.T) {
	m := readMod(t, filepath.Join(moduleRoot(t), "go.mod"))
	if m.Module.Path != module {
		t.Errorf("module is %s, want %s", m.Module.Path, module)
	}
	for _, r := range m.Require {
		if !r.Indirect && !slices.Contains(requirements, r.Path) {
			t.Errorf("go.mod requires %s: what needs more goes into a nested module", r.Path)
		}
	}
	if len(m.Replace)+len(m.Tool) > 0 {
		t.Error("go.mod has replace or tool lines: tools belong to tools/go.mod")
	}
}

// TestNestedModules checks their paths and that those which use the library use this one, not a published version.
func TestNestedModules(t *testing.T) {
	root := moduleRoot(t)
	for _, file := range sourceFiles(t, root) {
		dir, ok := strings.CutSuffix(file, "/go.mod")
		if filepath.Base(file) == "go.work" {
			t.Errorf("%s: no workspaces, nested modules replace the library by path", file)
		}
		if !ok {
			continue
		}
		m := readMod(t, filepath.Join(root, filepath.FromSlash(file)))
		if want := module + "/" + dir; m.Module.Path != want {
			t.Errorf("%s is module %s, want %s", file, m.Module.Path, want)
		}
		for _, r := range m.Require {
			if r.Path != module {
				continue
			}
			up := strings.Repeat("../", strings.Count(dir, "/")+1)
			replaced := false
			for _, rep := range m.Replace {
				replaced = replaced || rep.Old.Path == module && filepath.ToSlash(filepath.Clean(rep.New.Path))+"/" == up
			}
			if !replaced {
				t.Errorf("%s requires %s without replacing it by %s", file, module, up)
			}
		}
	}
}

// TestNothingOfThisMachine finds what only makes sense on the machine of whoever wrote it: paths of a checkout, and the hosts from
// which packages come there. The patterns are put together here so that this file does not contain them.
func TestNothingOfThisMachine(t *testing.T) {
	root := moduleRoot(t)
	const start = `(^|[^\w$./}-])` // of a path: not within a longer one, not after a variable
	patterns := []*regexp.Regexp{
		regexp.MustCompile(start + `/wo` + `rk/`),
		regexp.MustCompile(`(proxy|sum)\.golang` + `\.org|(deb|security)\.debian` + `\.org|registry\.npm` + `js\.org`),
	}
	home, _ := os.UserHomeDir()
	for _, dir := range []string{root, home} {
		// What is as short as /src or /root may mean something else: root's home is there in guests too.
		if dir = filepath.ToSlash(dir); strings.Count(dir, "/") >= 2 {
			patterns = append(patterns, regexp.MustCompile(start+regexp.QuoteMeta(dir)+`\b`))
		}
	}
	for _, p := range []string{" /wo" + "rk/x", "http://deb.debian" + ".org/debian"} {
		if !slices.ContainsFunc(patterns, func(re *regexp.Regexp) bool { return re.MatchString(p) }) {
			t.Errorf("no pattern finds %q", p)
		}
	}
	for _, file := range sourceFiles(t, root) {
		data, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
		if err != nil {
			t.Error(err)
			continue
		}
		for i, line := range bytes.Split(data, []byte("\n")) {
			for _, re := range patterns {
				if found := re.Find(line); found != nil {
					t.Errorf("%s:%d names %q", file, i+1, found)
				}
			}
		}
	}
}
