package engine

import (
	"fmt"
	"io"
	"os"
)

// maxFileBytes bounds the files that are named by flags: tokens, headers and certificates.
const maxFileBytes = 1 << 20

// readFile reads a small regular file. A pipe that nobody writes to, or a
// device that never ends, would otherwise hold the program up.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err == nil && len(content) > maxFileBytes {
		err = fmt.Errorf("%s: larger than %d bytes", path, maxFileBytes)
	}
	return content, err
}
