package checks

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/rconn/rdma"

// moduleRoot is the directory of the library's go.mod.
func moduleRoot(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil {
		t.Fatal(err)
	}
	return root
}

// sourceFiles lists the files that belong to the project, as slash-separated paths below root: those that git has or would add, so that
// nothing built is among them, wherever it lies. Without git or a checkout, as in an unpacked archive, all files count but those in hidden folders
// other than .ci, and in build.
func sourceFiles(t *testing.T, root string) []string {
	t.Helper()
	files, err := trackedFiles(root)
	if err != nil {
		files, err = walkedFiles(root)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 10 {
		t.Fatalf("only %d files below %s: the search is broken", len(files), root)
	}
	return files
}

// trackedFiles asks git. The error is that of git, or says that root is not the top of a checkout.
func trackedFiles(root string) ([]string, error) {
	top, err := exec.Command("git", "-C", root, "rev-parse", "--show-cdup").Output()
	if err != nil {
		return nil, err
	}
	if strings.TrimSpace(string(top)) != "" {
		return nil, errors.New("within another checkout")
	}
	out, err := exec.Command("git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		return nil, err
	}
	var files []string
	for name := range strings.SplitSeq(string(out), "\x00") {
		info, err := os.Lstat(filepath.Join(root, filepath.FromSlash(name)))
		if name != "" && err == nil && info.Mode().IsRegular() && !isBinary(filepath.Join(root, name)) { // else deleted, or a link
			files = append(files, name)
		}
	}
	return files, nil
}

// isBinary tells by the first bytes, as git does: programs that were built without -o lie anywhere.
func isBinary(name string) bool {
	file, err := os.Open(name)
	if err != nil {
		return false // whoever reads it will say so
	}
	defer file.Close()
	head := make([]byte, 8000)
	n, _ := io.ReadFull(file, head)
	return bytes.IndexByte(head[:n], 0) >= 0
}

func walkedFiles(root string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			name := d.Name()
			hidden := strings.HasPrefix(name, ".") && name != ".ci"
			if path != root && (hidden || path == filepath.Join(root, "build")) {
				return filepath.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(root, path)
		if err == nil && d.Type().IsRegular() && d.Name() != ".git" && !isBinary(path) {
			files = append(files, filepath.ToSlash(rel))
		}
		return err
	})
	return files, err
}

// What is built or ignored is found by neither search, what is new by both.
func TestSourceFilesAreSource(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module x\n", "new.go": "package x\n", "program": "\x7fELF\x00", "build/out": "text\n", ".hidden/x": "text\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"go.mod", "new.go"}
	worktree := filepath.Join(root, ".git")
	if err := os.WriteFile(worktree, []byte("gitdir: elsewhere\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if files, err := walkedFiles(root); err != nil || !slices.Equal(files, want) {
		t.Errorf("walked: %q, %v, want %q", files, err, want)
	}
	if _, err := trackedFiles(root); err == nil {
		t.Error("not a checkout, and no error")
	}
	if err := os.Remove(worktree); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, ".gitignore"), []byte("/build/\n.hidden\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "go.mod"}} {
		if out, err := exec.Command("git", append([]string{"-C", root}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	files, err := trackedFiles(root)
	slices.Sort(files)
	if want := []string{".gitignore", "go.mod", "new.go"}; err != nil || !slices.Equal(files, want) {
		t.Errorf("of git: %q, %v, want %q", files, err, want)
	}
}

// goFiles lists the Go files of the library's module. Nested modules are left out.
func goFiles(t *testing.T, root string) []string {
	t.Helper()
	all := sourceFiles(t, root)
	var nested []string
	for _, f := range all {
		if dir, ok := strings.CutSuffix(f, "/go.mod"); ok {
			nested = append(nested, dir+"/")
		}
	}
	var files []string
	for _, f := range all {
		if strings.HasSuffix(f, ".go") && !strings.Contains("/"+f, "/testdata/") && !hasAnyPrefix(f, nested) {
			files = append(files, f)
		}
	}
	return files
}

func hasAnyPrefix(s string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}
