package checks

import (
	"io/fs"
	"os"
	"path/filepath"
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

// sourceFiles lists the files that belong to the project, as slash-separated paths below root: no hidden folder other than .ci,
// nothing built.
func sourceFiles(t *testing.T, root string) []string {
	t.Helper()
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
		if d.Type().IsRegular() && !strings.HasSuffix(path, ".test") {
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			files = append(files, filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 10 {
		t.Fatalf("only %d files below %s: the search is broken", len(files), root)
	}
	return files
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
