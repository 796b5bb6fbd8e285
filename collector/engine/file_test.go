package engine

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Files that never open or never end are refused at once, with their name.
func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	pipe, large, good := filepath.Join(dir, "pipe"), filepath.Join(dir, "large"), filepath.Join(dir, "good")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{large: strings.Repeat("x", maxFileBytes+1), good: "token\n"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{pipe, large, dir, "/dev/zero", filepath.Join(dir, "none")} {
		if _, err := readToken(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s as a token: %v", path, err)
		}
		if _, err := readHeaders(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s as headers: %v", path, err)
		}
	}
	if token, err := readToken(good); token != "token" || err != nil {
		t.Errorf("token %q, %v", token, err)
	}
}
